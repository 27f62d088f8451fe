"""Detectors of the unknown that any classifier with features can have: the usual references, fitted on training data.

Each gives a score per sample, larger for what looks known. None is ever shown a sample of the unknown kinds that it is
judged on. NBSR's own is its precision alpha_0, which a density factor makes fall far from the training data; these
stand beside it, on the same features for every model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nbsr_core.belief.density import DensityFactor
from nbsr_core.learning.learners import Inside, Learner
from nbsr_core.learning.splits import Splits
from nbsr_core.options.specs import DetectorName, DistanceSpec, EvaluationOptions

NEIGHBOURS = 50  # k of Sun et al. for ten classes of 5,000 pictures
MOST_NEIGHBOURS_FROM = 20_000  # rows of the training split, evenly spaced, that neighbours are looked for in
QUERIES_AT_ONCE = 2_048


@dataclass(frozen=True, eq=False)
class Seen:
    """What a model says of samples: its answer, and what that is made from, if the model has features."""

    probs: Float[Tensor, "N K"]
    inside: Inside | None

    def rows(self, chosen: Tensor) -> Seen:
        """Of some of the samples, by their numbers or as a mask."""
        inside = self.inside
        part = None if inside is None else Inside(inside.features[chosen], inside.logits[chosen])
        return Seen(self.probs[chosen], part)


Score = Callable[[Seen], Float[Tensor, " N"]]
"""Larger for what looks known."""


def look(learner: Learner, x: Tensor) -> Seen:
    """What detectors see of a set of samples."""
    return Seen(learner.probabilities(x), learner.inside(x) if learner.has_features else None)


def fit_detectors(learner: Learner, splits: Splits, options: EvaluationOptions) -> dict[str, Score]:
    """The detectors by name; of a model without features only those that need none."""
    found: dict[str, Score] = {}
    names = options.all_detectors
    if "confidence" in names:
        found["confidence"] = confidence
    if not (learner.has_features and set(names) - {"confidence"}):
        return found
    inside = learner.inside(splits.train.x)
    labels = learner.labels(splits.train.y)
    fitted: dict[DetectorName, Callable[[], Score]] = {
        "energy": lambda: energy,
        "mahalanobis": lambda: mahalanobis(inside.features, labels, options.mahalanobis),
        "knn": lambda: nearest_neighbours(inside.features),
        "vim": lambda: virtual_logit(inside),
    }
    return found | {name: fit() for name, fit in fitted.items() if name in names}


def detectors_of(learner: Learner, names: Sequence[DetectorName]) -> list[str]:
    """Which of these detectors the model can have."""
    return [name for name in names if name == "confidence" or learner.has_features]


def confidence(seen: Seen) -> Float[Tensor, " N"]:
    """The largest probability (Hendrycks and Gimpel 2017)."""
    return seen.probs.max(-1).values.double()


def energy(seen: Seen) -> Float[Tensor, " N"]:
    """`logsumexp` of the logits (Liu et al. 2020); of NBSR, whose logits are `log alpha`, it is `log alpha_0`."""
    return _inside(seen).logits.double().logsumexp(-1)


def mahalanobis(features: Float[Tensor, "N d"], labels: Int[Tensor, " N"], measured: DistanceSpec) -> Score:
    """Distance from the nearest class mean under one shrunk covariance: that of a density factor so measured."""
    density = factor_of(measured, features.shape[1]).fit_distance(features, labels)
    return lambda seen: -density.distance(_inside(seen).features).double()


def factor_of(measured: DistanceSpec, size: int) -> DensityFactor:
    """A density factor over features of this size that measures so."""
    return DensityFactor(size, directions=measured.directions, normalise=measured.normalise, power=measured.power)


def nearest_neighbours(features: Float[Tensor, "N d"], neighbours: int = NEIGHBOURS) -> Score:
    """Distance to the k-th nearest training sample on the unit sphere (Sun et al. 2022)."""
    step = -(-len(features) // MOST_NEIGHBOURS_FROM)
    known = F.normalize(features[::step], dim=-1)
    rank = min(neighbours, len(known))

    def score(seen: Seen) -> Float[Tensor, " N"]:
        asked = F.normalize(_inside(seen).features, dim=-1)
        similar = [(part @ known.T).topk(rank, dim=1).values[:, -1] for part in asked.split(QUERIES_AT_ONCE)]
        return torch.cat(similar).double()  # falls as the distance, sqrt(2 - 2 cos), grows

    return score


def virtual_logit(inside: Inside) -> Score:
    """Energy less what lies outside the principal space of the training features (ViM, Wang et al. 2022).

    The principal space has as many dimensions as there: 512 of 768 and more, 1,000 of 2,048 and more, otherwise half.
    Features are centred on their mean: the origin of the original, at which a linear head is undecided, does not exist
    for other heads.
    """
    features = inside.features.double()
    size = features.shape[1]
    kept = 1000 if size >= 2048 else 512 if size >= 768 else size // 2
    centre = features.mean(0)
    axes = torch.linalg.eigh((features - centre).T @ (features - centre)).eigenvectors[:, : size - kept]

    def residual(rows: Float[Tensor, "M d"]) -> Float[Tensor, " M"]:
        outside: Tensor = (rows.double() - centre) @ axes
        return outside.square().sum(-1).sqrt()

    # On training samples the virtual logit is as large as the largest of the others.
    largest = inside.logits.double().max(-1).values
    weight = largest.sum() / residual(features).sum().clamp_min(torch.finfo(torch.float64).tiny)
    return lambda seen: energy(seen) - weight * residual(_inside(seen).features)


def _inside(seen: Seen) -> Inside:
    assert seen.inside is not None, "detectors that need features are fitted for models that have them"
    return seen.inside

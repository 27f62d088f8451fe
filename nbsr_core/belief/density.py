"""How close is this input to what the model has seen? A factor in (0, 1] on all evidence.

Evidence alone does not see the unknown: an expert is a linear map, and far from the data it extrapolates with
full confidence. So evidence is scaled by how plausible the oracle `h` is under the training features: near them
the factor is 1 and nothing changes, far from them it falls towards 0, alpha falls back to the prior and the
vacuity rises to 1. That makes the paper's Corollary 1 (unknown inputs elicit near-zero evidence) true by
construction; strict positivity, and with it Theorem 1, stays.

The distance is Mahalanobis to the nearest class mean, with one covariance for all classes. Directions that the
training data hardly use count too: that is where the unknown often shows. How far they may be trusted follows
from the amount of data, by shrinking the covariance (oracle approximating shrinkage, Chen et al. 2010): with
fewer features than dimensions it is mostly the plain distance, with many it is the covariance itself.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.errors import InputError, NotFittedError
from nbsr_core.kernels import Backend, DensityShape, backend_for, closeness_at

FEWEST_FEATURES = 20
FOLDS = 5

# Thresholds and spreads below these would only measure rounding: training features without any variation.
SMALLEST_THRESHOLD = 0.1
SMALLEST_SPREAD = 0.001
SMALLEST_FEATURE = 1e-6


class DensityFactor(nn.Module):
    """`factor(h) = exp(-((d(h) - threshold) / spread)^2 / 2)` beyond the threshold, 1 within it.

    The threshold is the distance that new data of the known kind rarely exceed. The spread is a sixth of the way from
    their median to the threshold: half as far again beyond the threshold, 1% of the evidence is left.

    It sees most where the oracle is the plain output of a linear layer: a ReLU or tanh at its end folds away much of
    what tells the unknown from the known.

    Args:
        oracle_dim: size d of the oracle.
        directions: principal directions with a variance of their own (all by default); the rest share one.
        normalise: project `h` to the unit sphere first (for deep image features, whose length varies wildly).
        power: each feature becomes `sign(h) |h|^power` before all else. Features behind a ReLU are often zero and
            seldom large; a power well below 1 makes the distance see which of them are there at all.
        quantile: share of new in-distribution data that shall keep its evidence whole.
        floor: smallest factor. It leaves evidence positive, and of the largest (e^15) next to nothing.
    """

    def __init__(
        self,
        oracle_dim: int,
        *,
        directions: int | None = None,
        normalise: bool = False,
        power: float = 1.0,
        quantile: float = 0.99,
        floor: float = 1e-9,
    ) -> None:
        super().__init__()
        directions = oracle_dim if directions is None else directions
        if oracle_dim < 1:
            raise InputError(f"oracle_dim must be at least 1, got {oracle_dim}")
        if not 1 <= directions <= oracle_dim:
            raise InputError(f"density directions must lie in 1..{oracle_dim} (oracle_dim), got {directions}")
        if not 0 < power <= 1:
            raise InputError(f"density power must lie in (0, 1], got {power}")
        if not 0.5 < quantile < 1:
            raise InputError(f"density quantile must lie in (0.5, 1), got {quantile}")
        if not 0 < floor < 1:
            raise InputError(f"density floor must lie in (0, 1), got {floor}")
        self.directions, self.normalise, self.power = directions, normalise, power
        self.quantile, self.floor = quantile, floor
        self.centre: Tensor
        self.whitening: Tensor
        self.means: Tensor
        self.threshold: Tensor
        self.spread: Tensor
        self.register_buffer("centre", torch.zeros(oracle_dim))
        self.register_buffer("whitening", torch.zeros(oracle_dim, oracle_dim))
        self.register_buffer("means", torch.zeros(0, oracle_dim))
        self.register_buffer("threshold", torch.tensor(math.nan))
        self.register_buffer("spread", torch.tensor(math.nan))

    @property
    def fitted(self) -> bool:
        return self.means.shape[0] > 0

    @torch.no_grad()
    def fit(
        self,
        h: Float[Tensor, "N d"],
        y: Int[Tensor, " N"] | None = None,
        *,
        fresh: Float[Tensor, "M d"] | None = None,
    ) -> DensityFactor:
        """Learn where the training features lie, and how far from them new data of the same kind do.

        Args:
            h: training features.
            y: their labels; with them, close means close to the features of *some* class.
            fresh: features of data on which the backbone was not trained (the validation split), to set threshold
                and spread. Without them, each fifth of `h` is measured against the other four; a backbone that
                overfits packs `h` closer than new data, and more than `1 - quantile` of those is doubted then.
        """
        features, labels = self._to_learn_from(h, y)
        if fresh is None:
            held_out = self._cross_fitted_distances(features, labels)
            self._fit_shape(features, labels)
        else:
            self._check("fresh features", fresh, FEWEST_FEATURES)
            self._fit_shape(features, labels)
            held_out = self._measured(self._place(fresh.to(features)))
        self.trust(held_out)
        return self

    @torch.no_grad()
    def fit_distance(self, h: Float[Tensor, "N d"], y: Int[Tensor, " N"] | None = None) -> DensityFactor:
        """Learn where the training features lie and no more: enough for `distance`, a fraction of the work of `fit`."""
        self._fit_shape(*self._to_learn_from(h, y))
        return self

    def _to_learn_from(
        self, h: Float[Tensor, "N d"], y: Int[Tensor, " N"] | None
    ) -> tuple[Float[Tensor, "N d"], Int[Tensor, " N"]]:
        """Features in their place, in double precision, and labels, one kind of all where there are none."""
        self._check("training features", h, FEWEST_FEATURES)
        if y is not None and y.shape != h.shape[:1]:
            raise InputError(f"labels must have shape [{len(h)}] like the features, got {list(y.shape)}")
        labels = torch.zeros(len(h), dtype=torch.int64) if y is None else y
        return self._place(h.double()), labels.long().to(h.device)

    @torch.no_grad()
    def trust(self, held_out: Float[Tensor, " M"]) -> None:
        """Set threshold and spread by the distances of new data of the known kind."""
        # The rank above which the next sample of the same kind lies with a chance of at most 1 - quantile.
        rank = min(math.ceil((len(held_out) + 1) * self.quantile), len(held_out))
        threshold = max(float(held_out.kthvalue(rank).values), SMALLEST_THRESHOLD)
        self.threshold.fill_(threshold)
        self.spread.fill_(max((threshold - float(held_out.median())) / 6, SMALLEST_SPREAD))

    def _measured(self, features: Float[Tensor, "N d"], mean: Int[Tensor, " N"] | None = None) -> Float[Tensor, " N"]:
        return self._backend(features, mean).distances(features, self._shape, mean, 1)

    def _cross_fitted_distances(self, features: Float[Tensor, "N d"], labels: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Distance of each row from a shape that was fitted without it, every class spread over all folds."""
        fold = torch.empty_like(labels)
        fold[labels.argsort(stable=True)] = torch.arange(len(labels), device=labels.device) % FOLDS
        distances = []
        for left_out in range(FOLDS):
            inside = fold != left_out
            self._fit_shape(features[inside], labels[inside])
            distances.append(self._measured(features[~inside]))
        return torch.cat(distances)

    def _fit_shape(self, features: Float[Tensor, "N d"], labels: Int[Tensor, " N"]) -> None:
        """Class means and the whitening of what varies within classes."""
        size, dim = features.shape
        classes, index = labels.unique(return_inverse=True)
        sums = features.new_zeros(len(classes), dim).index_add_(0, index, features)
        means = sums / index.bincount(minlength=len(classes)).unsqueeze(1)
        within = features - means[index]
        freedom = max(size - len(classes), 1)
        variances, axes = torch.linalg.eigh(within.T @ within / freedom)
        variances, axes = variances.flip(0).clamp_min(0), axes.flip(1)
        variances = _shrunk(variances, freedom)
        if self.directions < dim:
            variances[self.directions :] = variances[self.directions :].mean()
        centre = features.mean(0)
        rounding = 1e-6 * (features - centre).square().mean() + 1e-10 * centre.square().mean() + 1e-12
        whitening = (axes / variances.clamp_min(rounding).sqrt()).contiguous()  # as it is after loading, bit by bit
        self.centre, self.whitening = centre.to(self.threshold), whitening.to(self.threshold)
        self.means = ((means - centre) @ whitening).to(self.threshold)

    def distance(self, h: Float[Tensor, "N d"], *, mean: Int[Tensor, " N"] | None = None) -> Float[Tensor, " N"]:
        """Mahalanobis distance of each oracle to the nearest class mean over sqrt(d): about 1 on known data.

        Where it is known whose oracle it should be, `mean` says to which mean each row is compared instead.
        """
        return self._measured(self._features(h), mean)

    def forward(
        self, h: Float[Tensor, "N d"], *, mean: Int[Tensor, " N"] | None = None, length: int = 1
    ) -> Float[Tensor, " N"]:
        """The factor on all evidence, in [floor, 1].

        Args:
            h: oracles, one per row.
            mean: as for `distance`.
            length: rows of a sequence, in which the largest distance so far counts for those after it.
        """
        if len(h) % length:
            raise InputError(f"rows must come in sequences of {length}, got {len(h)} rows")
        features = self._features(h)
        return self._backend(features, mean).closeness(features, self._shape, mean, length)

    def of_distance(self, distance: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """The factor at given distances, for those that are more than one oracle's (the farthest of a sequence)."""
        return closeness_at(distance, self._shape)

    @property
    def _shape(self) -> DensityShape:
        return DensityShape(self.centre, self.whitening, self.means, self.threshold, self.spread, self.floor)

    def _backend(self, features: Float[Tensor, "N d"], mean: Int[Tensor, " N"] | None) -> Backend:
        kinds, size = self.means.shape
        macs = size * max(size, kinds if mean is None else 1)
        return backend_for(features, self.centre, self.threshold, macs=macs)

    def _features(self, h: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """Oracles as distances are measured on them, once there is something to measure them against."""
        if not self.fitted:
            raise NotFittedError("the density factor was not fitted: call model.fit_density(features) first")
        self._check("features", h, 0)
        return self._place(h)

    def _place(self, h: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        if self.power != 1:
            # Shifted, so that the slope at zero, where many features are, is finite.
            h = h.sign() * ((h.abs() + SMALLEST_FEATURE) ** self.power - SMALLEST_FEATURE**self.power)
        return F.normalize(h, dim=-1) if self.normalise else h

    def _check(self, what: str, h: Tensor, fewest: int) -> None:
        size = self.whitening.shape[0]
        if h.ndim != 2 or h.shape[1] != size:
            raise InputError(f"{what} must have shape [N, {size}], got {list(h.shape)}")
        if h.shape[0] < fewest:
            raise InputError(f"a density factor needs at least {fewest} {what}, got {h.shape[0]}")
        if fewest and not bool(h.isfinite().all()):
            raise InputError(f"{what} must be finite, got NaN or infinity")

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """The number of classes is learned: take the shape of the means from what is loaded."""
        means = state_dict.get(prefix + "means")
        if means is not None and means.ndim == 2:
            self.means = self.means.new_zeros(len(means), self.means.shape[1])
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _shrunk(variances: Float[Tensor, " d"], freedom: int) -> Float[Tensor, " d"]:
    """Eigenvalues of a covariance drawn towards their mean, as far as `freedom` samples leave them in doubt."""
    dim, total, squares = len(variances), variances.sum(), variances.square().sum()
    doubt = (1 - 2 / dim) * squares + total.square()
    signal = (freedom + 1 - 2 / dim) * (squares - total.square() / dim)
    weight = (doubt / signal.clamp_min(1e-300)).clamp(max=1.0)
    return (1 - weight) * variances + weight * variances.mean()

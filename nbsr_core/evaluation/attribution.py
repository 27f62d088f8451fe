"""Which inputs drove this belief, and through which expert? Path-dependent input x gradient.

The belief in a class is a sum of what the visited experts added, so its gradient splits exactly by expert (paper,
path-dependent feature attribution): `I(x) = x * d alpha_{T,y} / dx = sum_t x * d e_{t,y} / dx`. Explained is the
raw belief: calibration mixes the classes and would break the sum. A density factor is part of the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics import checked_labels
from nbsr_core.model.network import NBSR, evaluating
from nbsr_core.trace.visit import Amount, Feature


@dataclass(frozen=True, eq=False)
class Attribution:
    """Attribution of the raw belief in one class per sample.

    Attributes:
        by_expert: contribution of each input through the expert visited at each step, [T, B, *input]; 0 where a
            walk was already over.
        nodes: the experts in question, [T, B].
        label: the class whose belief is explained, [B].
    """

    by_expert: Float[Tensor, "T B ..."]
    nodes: Int[Tensor, "T B"]
    label: Int[Tensor, " B"]

    @property
    def total(self) -> Float[Tensor, "B ..."]:
        """The whole attribution: the parts summed over the walk."""
        return self.by_expert.sum(0)


def attribute(
    model: NBSR,
    x: Float[Tensor, "B ..."],
    label: Int[Tensor, " B"] | None = None,
    *,
    side: Float[Tensor, "B s"] | None = None,
) -> Attribution:
    """Explain the belief in `label` (the predicted class by default) of each sample in `x`.

    The path is the one that the model would take. It is piecewise constant in x, so the gradient is along it.
    `side` is the routers' side information, for models that have any.
    """
    if not x.is_floating_point():
        raise InputError(f"attribution needs a floating-point input to differentiate by, got dtype {x.dtype}")
    if label is not None:
        label = checked_labels(label, len(x), model.num_classes).to(x.device)
    with evaluating(model), torch.enable_grad():
        probe = x.detach().clone().requires_grad_(True)
        trace = model(probe, side=side)
        chosen = trace.belief(trace.depth).argmax(-1) if label is None else label
        parts = []
        for step in trace.steps:
            said = step.evidence.gather(1, chosen.unsqueeze(1)).sum()
            (gradient,) = torch.autograd.grad(said, probe, retain_graph=True)
            parts.append(probe.detach() * gradient)
    return Attribution(torch.stack(parts), trace.nodes[1:], chosen)


def varied(x: Tensor) -> Tensor | None:
    """The input as something that can be varied a little: bytes are intensities (pixels), other whole numbers stand for
    something (tokens) and cannot be; None for these.
    """
    if x.is_floating_point():
        return x
    return x.float() if x.dtype == torch.uint8 else None


def strongest_features(
    attribution: Float[Tensor, "*input"], x: Shaped[Tensor, "*input"], splits: Splits, count: int
) -> tuple[Feature, ...]:
    """The inputs of one sample with the largest attributions, by name; those without any are left out.

    Where several features stand for one input of a person's (a category of a table), their attributions add up.
    """
    flat, values, known = attribution.flatten(), x.flatten(), splits.readings(x)
    if known is not None:
        said = [Feature(r.name, None, r.words, float(flat[r.places.start : r.places.stop].sum())) for r in known]
        said.sort(key=lambda feature: -abs(feature.attribution))
        return tuple(feature for feature in said[:count] if feature.attribution)
    name = feature_namer(splits)
    order = flat.abs().argsort(descending=True, stable=True)[:count].tolist()
    features = []
    for index in order:
        if not flat[index]:
            break
        column = splits.train.x.flatten(1)[:, index]
        binary = bool(((column == 0) | (column == 1)).all())
        state = ("present" if values[index] else "absent") if binary else None
        features.append(Feature(name(index), float(values[index]), state, float(flat[index])))
    return tuple(features)


def shares_by_input(shares: Float[Tensor, " F"], splits: Splits) -> list[Amount]:
    """What each input of a person's has of a whole, the largest first; those without any are left out."""
    known = splits.readings(splits.test.x[0])
    if known is None:
        name = feature_namer(splits)
        found = [Amount(name(index), value) for index, value in enumerate(shares.tolist())]
    else:
        found = [Amount(r.name, float(shares[r.places.start : r.places.stop].sum())) for r in known]
    return [amount for amount in sorted(found, key=lambda amount: -amount.value) if amount.value]


def feature_namer(splits: Splits) -> Callable[[int], str]:
    """Names of inputs by their place; where there is no name for each (pixels), the place itself."""
    shape = splits.test.x.shape[1:]
    if len(splits.feature_names) == math.prod(shape):
        return lambda index: splits.feature_names[index]

    def place(index: int) -> str:
        coordinates = []
        for size in reversed(shape):
            index, within = divmod(index, size)
            coordinates.append(within)
        return f"input {coordinates[::-1]}"

    return place

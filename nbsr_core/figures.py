"""Pictures of beliefs. Plain matplotlib figures; saving and showing them is the caller's business."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.network import NBSR, evaluating

# Red, green, blue as the paper's toy has them, but told apart by colour-blind readers too.
CLASS_COLOURS = np.array([[0.84, 0.15, 0.16], [0.0, 0.62, 0.45], [0.0, 0.32, 0.75]])
MARKERS = "os^"


def belief_map(
    model: NBSR,
    x: Float[Tensor, "N 2"],
    y: Int[Tensor, " N"],
    *,
    feature_names: Sequence[str],
    class_names: Sequence[str],
    resolution: int = 200,
) -> Figure:
    """The plane of two features, one panel a depth: hue = expected class, saturation = precision (paper, Fig. toy).

    White is the prior, where nothing is known; the colours are full where the precision at the last depth is (at its
    95% quantile). A last, narrow panel is the key to both. `x` and `y` are drawn as points.
    """
    if x.ndim != 2 or x.shape[1] != 2 or model.num_classes != len(CLASS_COLOURS):
        raise InputError(f"a belief map needs inputs [N, 2] and 3 classes, got {list(x.shape)} and {model.num_classes}")
    low, high = (x.amin(0) - 0.4).tolist(), (x.amax(0) + 0.4).tolist()
    grid = torch.cartesian_prod(*(torch.linspace(a, b, resolution) for a, b in zip(low, high, strict=True)))
    with evaluating(model), torch.no_grad():
        trace = model(grid.to(x))
    prior, full = float(trace.prior.sum()), float(trace.precision[-1].quantile(0.95))
    figure = Figure(figsize=(4.9 * trace.depth + 1.7, 4.6), layout="constrained")
    widths = [4.9] * trace.depth + [1.1]
    *panels, key = figure.subplots(1, trace.depth + 1, width_ratios=widths, squeeze=False)[0]
    for depth, panel in enumerate(panels, start=1):
        saturation = ((trace.precision[depth] - prior) / (full - prior)).clamp(max=1).cpu().numpy()
        image = _tinted(trace.probabilities(depth).cpu().numpy(), saturation)
        panel.imshow(
            image.reshape(resolution, resolution, 3).swapaxes(0, 1),
            origin="lower",
            extent=(low[0], high[0], low[1], high[1]),
            aspect="auto",
            interpolation="bilinear",
        )
        for k, name in enumerate(class_names):
            points = x[y == k].cpu()
            panel.scatter(
                *points.T, s=24, marker=MARKERS[k], facecolor="white", edgecolor=CLASS_COLOURS[k] * 0.75, label=name
            )
        node = trace.graph.nodes[int(trace.nodes[depth, 0])].name
        mean = float(trace.precision[depth].mean())
        panel.set(title=rf"depth {depth}: {node}, mean $\alpha_0$ = {mean:.1f}", xlabel=feature_names[0])
        panel.sharey(panels[0])
        panel.tick_params(labelleft=depth == 1)
    panels[0].set_ylabel(feature_names[1])
    panels[-1].legend(loc="upper right", framealpha=0.9)
    _draw_key(key, class_names, prior, full)
    return figure


def _tinted(probabilities: Float[np.ndarray, "N 3"], saturation: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N 3"]:
    """White where nothing is known, the classes' mixed colour where much is."""
    colours: np.ndarray = 1 - saturation[:, None] * (1 - probabilities @ CLASS_COLOURS)
    return colours


def _draw_key(panel: Axes, class_names: Sequence[str], prior: float, full: float) -> None:
    """What the colours mean: one column a class, paler where the precision is low."""
    levels = np.linspace(0, 1, 100)
    columns = [_tinted(np.broadcast_to(row, (len(levels), 3)), levels) for row in np.eye(3)]
    panel.imshow(np.stack(columns, axis=1), origin="lower", extent=(-0.5, 2.5, prior, full), aspect="auto")
    panel.set_xticks(range(3), class_names, rotation=90)
    panel.set(title=r"precision $\alpha_0$")
    panel.yaxis.tick_right()


def sharpening(precision: Float[np.ndarray, "depths samples"], variance: Float[np.ndarray, "depths samples"]) -> Figure:
    """Precision and largest marginal variance by depth, with the bound of Theorem 1."""
    depths = np.arange(len(precision))
    bound = 1 / (4 * (precision + 1))
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    spread = np.quantile(precision, [0.05, 0.95], axis=1)
    left.fill_between(depths, *spread, alpha=0.2, color=CLASS_COLOURS[2], label="5-95% of samples")
    left.plot(depths, precision.mean(1), "o-", color=CLASS_COLOURS[2], label="mean")
    left.set_title(r"precision $\alpha_0$")
    right.plot(depths, bound.mean(1), "--", color="grey", label=r"bound $1/(4(\alpha_0+1))$, mean")
    right.plot(depths, variance.mean(1), "o-", color=CLASS_COLOURS[0], label="mean")
    right.set_title("largest marginal variance")
    for panel in (left, right):
        panel.set(xlabel="depth", xticks=depths)
        panel.set_ylim(bottom=0)
        panel.legend()
    return figure

"""Pictures of beliefs. Plain matplotlib figures; saving and showing them is the caller's business."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.network import NBSR

# Red, green, blue as the paper's toy has them, but told apart by colour-blind readers too.
CLASS_COLOURS = np.array([[0.84, 0.15, 0.16], [0.0, 0.62, 0.45], [0.0, 0.32, 0.75]])


def belief_map(
    model: NBSR,
    x: Tensor,
    y: Tensor,
    *,
    feature_names: Sequence[str],
    class_names: Sequence[str],
    resolution: int = 200,
) -> Figure:
    """The plane of two features at each depth: hue = expected class, saturation = precision alpha_0 (paper, Fig. toy)."""
    if x.shape[1] != 2 or model.num_classes != len(CLASS_COLOURS):
        raise InputError(f"a belief map needs 2 features and 3 classes, got {x.shape[1]} and {model.num_classes}")
    low, high = x.min(0).values - 0.5, x.max(0).values + 0.5
    axes = [torch.linspace(float(a), float(b), resolution) for a, b in zip(low, high, strict=True)]
    grid = torch.cartesian_prod(*axes)
    model.eval()
    with torch.no_grad():
        trace = model(grid)
    most = float(trace.precision[-1].quantile(0.95))
    figure = Figure(figsize=(5.2 * trace.depth, 4.6), layout="constrained")
    panels = figure.subplots(1, trace.depth, sharex=True, sharey=True, squeeze=False)[0]
    for depth, panel in enumerate(panels, start=1):
        hue = trace.probabilities(depth).numpy() @ CLASS_COLOURS
        saturation = (trace.precision[depth] / most).clamp(max=1).numpy()[:, None]
        image = (1 - saturation) + saturation * hue
        panel.imshow(
            image.reshape(resolution, resolution, 3).swapaxes(0, 1),
            origin="lower",
            extent=(float(low[0]), float(high[0]), float(low[1]), float(high[1])),
            aspect="auto",
        )
        for k, name in enumerate(class_names):
            points = x[y == k]
            marker = "os^"[k]
            panel.scatter(
                points[:, 0],
                points[:, 1],
                s=18,
                marker=marker,
                color=CLASS_COLOURS[k],
                edgecolor="white",
                linewidth=0.6,
                label=name,
            )
        node = trace.graph.nodes[int(trace.nodes[depth, 0])].name
        panel.set_title(f"depth {depth}: {node}, mean precision {float(trace.precision[depth].mean()):.1f}")
        panel.set_xlabel(feature_names[0])
    panels[0].set_ylabel(feature_names[1])
    panels[-1].legend(loc="upper right", framealpha=0.9)
    return figure


def sharpening(precision: np.ndarray, variance: np.ndarray) -> Figure:
    """Precision and variance by depth, with the bound of Theorem 1. Arrays are [depths, samples]."""
    depths = np.arange(len(precision))
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(depths, precision.mean(1), "o-", color="#0051bf")
    left.fill_between(depths, *np.quantile(precision, [0.05, 0.95], axis=1), alpha=0.2, color="#0051bf")
    left.set(title="precision (mean, 5-95% of samples)", xlabel="depth", ylabel=r"$\alpha_0$", xticks=depths)
    bound = 1 / (4 * (precision + 1))
    right.plot(depths, variance.mean(1), "o-", color="#d6272a", label="largest marginal variance")
    right.plot(depths, bound.mean(1), "--", color="grey", label=r"bound $1/(4(\alpha_0+1))$")
    right.set(title="variance", xlabel="depth", xticks=depths, ylim=(0, None))
    right.legend()
    return figure

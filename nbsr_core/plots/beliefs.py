"""Pictures of beliefs. Plain matplotlib figures; saving and showing them is the caller's business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core._extras import extra
from nbsr_core.errors import InputError
from nbsr_core.model.network import NBSR, evaluating

with extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

# Red, green, blue as the paper's toy has them, but told apart by colour-blind readers too.
CLASS_COLOURS = np.array([[0.84, 0.15, 0.16], [0.0, 0.62, 0.45], [0.0, 0.32, 0.75]])
MARKERS = "os^"

# Okabe and Ito's palette, the part of it that stands out on white.
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
# More classes than this do not fit a matrix with numbers in it.
MOST_CLASSES_IN_A_MATRIX = 15
MOST_PAIRS, MOST_NODE_LABELS = 20, 60
Rows = Sequence[Mapping[str, Any]]


def belief_map(
    model: NBSR,
    x: Float[Tensor, "N 2"],
    y: Int[Tensor, " N"],
    *,
    feature_names: Sequence[str],
    class_names: Sequence[str],
    resolution: int = 200,
) -> Figure:
    """The plane of two features, one panel per depth: hue = expected class, saturation = precision (paper, Fig. toy).

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
    """What the colours mean: one column per class, paler where the precision is low."""
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


def frontier_chart(rows: Rows, *, title: str, chosen: float | None = None) -> Figure:
    """Accuracy against mean depth, one point a threshold; `chosen` is the threshold of the fast operating point."""
    figure, axes = _single(title, (6.4, 4.4))
    points = sorted((row["mean_depth"], row["accuracy"], row["eta"]) for row in rows if row["eta"] is not None)
    points += [(row["mean_depth"], row["accuracy"], None) for row in rows if row["eta"] is None]
    depth, accuracy = [point[0] for point in points], [point[1] for point in points]
    axes.plot(depth, accuracy, "-", color=BLUE, linewidth=1, alpha=0.6)
    axes.plot(depth, accuracy, ".", color=BLUE, markersize=5, label=f"{len(points)} thresholds")
    deepest = max(points, key=lambda point: point[0])
    axes.plot(*deepest[:2], "s", color=GREY, markersize=8, label=f"never exit: {deepest[1]:.1%} at {deepest[0]:.2f}")
    if chosen is not None:
        near = min(points, key=lambda point: float("inf") if point[2] is None else abs(point[2] - chosen))
        label = f"fast, η = {chosen:.4g}: {near[1]:.1%} at {near[0]:.2f}"
        axes.plot(*near[:2], "*", color=ORANGE, markersize=15, label=label)
    axes.set(xlabel="mean depth of the walks", ylabel="accuracy")
    axes.yaxis.set_major_formatter("{x:.0%}" if np.ptp(accuracy) > 0.05 else "{x:.1%}")
    axes.legend(loc="lower right", framealpha=0.9)
    return figure


def reliability_chart(rows: Rows, *, title: str) -> Figure:
    """Accuracy against confidence at every depth, and below it how many samples have which confidence in the end."""
    figure = Figure(figsize=(5.6, 6.2), layout="constrained")
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    figure.suptitle(title, fontsize=11)
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfect")
    depths = sorted({row["depth"] for row in rows if row["depth"] is not None})
    final = [row for row in rows if row["depth"] is None]
    line = _columns(final, "confidence", "accuracy")
    axes.plot(*line, "o-", color=ORANGE, alpha=0.5, markersize=9, linewidth=4, label="final answer")
    for index, depth in enumerate(depths):
        shade = 0.35 + 0.5 * index / max(len(depths) - 1, 1)
        line = _columns([row for row in rows if row["depth"] == depth], "confidence", "accuracy")
        marker = (MARKERS + "Dv<>")[index % 7]
        axes.plot(*line, f"{marker}-", color=_shade(shade), markersize=5, linewidth=1, label=f"depth {depth}")
    axes.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left", framealpha=0.9)
    low, high, count = _columns(final, "low", "high", "count")
    counts.bar(low, count, np.subtract(high, low), align="edge", color=ORANGE, edgecolor="white", alpha=0.8)
    counts.set(xlabel="confidence", ylabel="samples")
    return figure


def belief_chart(rows: Rows, *, title: str) -> Figure:
    """How the belief sharpens from the prior to the last expert: precision, entropy, vacuity, averaged by depth."""
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    figure.suptitle(title, fontsize=11)
    depths = [row["depth"] for row in rows]
    names = {"precision": r"precision $\alpha_0$", "entropy": "entropy (nats)", "vacuity": "vacuity"}
    for panel, (name, label), colour in zip(figure.subplots(1, 3), names.items(), (BLUE, GREEN, ORANGE), strict=True):
        values = [row[name] for row in rows]
        panel.plot(depths, values, "o-", color=colour)
        panel.set(title=label, xlabel="depth (0 is the prior)", xticks=depths)
        if name == "precision" and max(values) > 50 * min(values):
            panel.set_yscale("log")
        elif name != "entropy":
            panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    return figure


def confusion_chart(rows: Rows, *, title: str, class_names: Sequence[str]) -> Figure:
    """Who is taken for whom: a matrix for few classes, the most frequent mistakes for many."""
    if len(class_names) <= MOST_CLASSES_IN_A_MATRIX:
        return _confusion_matrix(rows, title, class_names)
    mistakes = sorted((row for row in rows if row["true"] != row["predicted"]), key=lambda row: -row["count"])
    shown = mistakes[:MOST_PAIRS]
    figure, axes = _single(title, (8.2, 1.3 + 0.29 * max(len(shown), 2)))
    if not shown:
        axes.text(0.5, 0.5, "no mistakes", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return figure
    bars = axes.barh(
        [f"{_shortened(row['true'])} → {_shortened(row['predicted'])}" for row in shown],
        [row["count"] for row in shown],
        color=BLUE,
    )
    axes.bar_label(bars, padding=3)
    axes.set_xlim(right=1.08 * shown[0]["count"])
    axes.invert_yaxis()
    rest = len(mistakes) - len(shown)
    axes.set(xlabel=f"test samples (true → predicted{f'; {rest} rarer pairs left out' if rest else ''})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _confusion_matrix(rows: Rows, title: str, class_names: Sequence[str]) -> Figure:
    place = {name: index for index, name in enumerate(class_names)}
    table = np.zeros((len(class_names), len(class_names)), dtype=int)
    for row in rows:
        table[place[row["true"]], place[row["predicted"]]] = row["count"]
    size = 2.4 + 0.55 * len(class_names)
    figure, axes = _single(title, (size + 1.2, size))
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (i, j), count in np.ndenumerate(table):
        if count:
            axes.text(j, i, str(count), ha="center", va="center", color="white" if shares[i, j] > 0.55 else "black")
    turn: dict[str, Any] = (
        {} if sum(map(len, class_names)) < 40 else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    )
    axes.set_xticks(range(len(class_names)), class_names, **turn)
    axes.set_yticks(range(len(class_names)), class_names)
    axes.set(xlabel="predicted", ylabel="true")
    axes.grid(False)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    return figure


def usage_chart(rows: Rows, *, title: str) -> Figure:
    """Share of the walks that visit each node, level by level; dashed where all of a level would be visited alike."""
    by_level: dict[int, list[tuple[str, float]]] = {}
    for row in rows:
        if row["level"] > 0:
            by_level.setdefault(row["level"], []).append((_shortened(row["node"]), row["share"]))
    longest = {level: max(len(name) for name, _ in nodes) for level, nodes in by_level.items()}
    wanted = max(
        len(nodes) * min(0.1 * longest[level], 2.0 if len(nodes) < 8 else 0.5) for level, nodes in by_level.items()
    )
    width = min(max(6.0, 1.5 + wanted), 14.0)
    turned = {level: longest[level] * 0.1 > (width - 1.5) / len(nodes) for level, nodes in by_level.items()}
    heights = [2.0 + (0.07 * longest[level] if turned[level] else 0) for level in by_level]
    figure = Figure(figsize=(width, 0.8 + sum(heights)), layout="constrained")
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(len(by_level), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (level, nodes) in zip(panels, by_level.items(), strict=True):
        unused = [index for index, (_, share) in enumerate(nodes) if share == 0]
        panel.bar(range(len(nodes)), [share for _, share in nodes], color=BLUE)
        panel.axhline(1 / len(nodes), linestyle="--", color=ORANGE, linewidth=1)
        if unused:
            panel.plot(unused, [0] * len(unused), "x", color=ORANGE, clip_on=False)
        labels = [name for name, _ in nodes] if len(nodes) <= MOST_NODE_LABELS else []
        turn = {"rotation": 45, "ha": "right", "rotation_mode": "anchor", "fontsize": 8} if turned[level] else {}
        panel.set_xticks(range(len(labels)), labels, **turn)
        note = f", {len(unused)} never visited (×)" if unused else ""
        panel.set(ylabel=f"level {level}", xlim=(-0.7, len(nodes) - 0.3))
        panel.set_title(f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}{note}", fontsize=9, loc="right")
        panel.yaxis.set_major_formatter("{x:.0%}")
        panel.set_ylim(bottom=0)
    return figure


def _single(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _shortened(name: str, longest: int = 28) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _columns(rows: Rows, *names: str) -> list[list[float | int]]:
    return [[row[name] for row in rows] for name in names]


def _shade(amount: float) -> tuple[float, float, float]:
    """A blue between pale (0) and dark (1): later depths are darker."""
    pale, dark = np.array([0.75, 0.87, 0.95]), np.array([0.0, 0.2, 0.45])
    red, green, blue = ((1 - amount) * pale + amount * dark).tolist()
    return red, green, blue

"""All policies' frontiers in one picture: accuracy against mean cost, with a band over seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from nbsr_core._extras import extra
from nbsr_core.metrics import LEAST_SEEDS
from nbsr_core.metrics.intervals import share_interval
from nbsr_core.plots.beliefs import BLUE, GREEN, GREY, ORANGE, PINK, Rows

with extra("plots"):
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY, "#56B4E9", "#E69F00")
POINTS = 120


def frontier_on(rows: Rows, costs: np.ndarray) -> np.ndarray:
    """Accuracy at the given mean costs, on straight lines between thresholds; NaN where no threshold is so cheap."""
    points = sorted((float(row["mean_cost"]), float(row["accuracy"])) for row in rows)
    cost, accuracy = np.array(points).T
    result: np.ndarray = np.interp(costs, cost, accuracy, left=np.nan)
    return result


def frontier_bands(tables: Mapping[str, Sequence[Rows]], *, title: str, upper_bounds: Collection[str] = ()) -> Figure:
    """One line a policy, the mean over its seeds, with the 95% interval of the mean as a band.

    Args:
        tables: the `frontier` tables of each policy, one a seed.
        title: of the picture.
        upper_bounds: policies that know what no policy in use can know; drawn dashed and said to be so.
    """
    figure = Figure(figsize=(7.6, 5.0), layout="constrained")
    axes = figure.subplots()
    highest = max(row["mean_cost"] for runs in tables.values() for rows in runs for row in rows)
    costs = np.linspace(0, highest, POINTS)
    for (name, runs), colour in zip(tables.items(), COLOURS * 3, strict=False):
        curves = np.array([frontier_on(rows, costs) for rows in runs])
        known = ~np.isnan(curves).any(0)
        bands = [share_interval(column.tolist()) for column in curves[:, known].T]
        bound = name in upper_bounds
        label = f"{name} (peeks: an upper bound)" if bound else name
        mean = [band.estimate for band in bands]
        axes.plot(costs[known], mean, "--" if bound else "-", color=colour, linewidth=1.8, label=label)
        if len(runs) >= LEAST_SEEDS:
            low, high = [band.low for band in bands], [band.high for band in bands]
            axes.fill_between(costs[known], low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="mean cost of the panels bought", ylabel="accuracy")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", framealpha=0.9)
    figure.suptitle(title, fontsize=11)
    return figure

"""The trace of a prompt as one picture."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nbsr_core.figures import BLUE, GREEN, GREY, ORANGE


def draw_prompt(data: dict[str, Any]) -> str:
    """What was read, who was asked, what they offer and what is believed, as SVG; a softmax shows its words only."""
    walks = "routers" in data
    figure = Figure(figsize=(11, 3.6) if walks else (5, 3.2), layout="constrained")
    figure.suptitle(_plain(" ".join(data["prompt"]) + " ..."), fontsize=11)
    panels = figure.subplots(1, 4 if walks else 1, squeeze=False)[0]
    if walks:
        _reading(panels[0], data["read"])
        routes = [
            (name, p, name == router["chosen"])
            for router in data["routers"]
            for name, p in router["probabilities"].items()
        ]
        _bars(
            panels[1], "router probability", [(n, p, GREEN if chosen else GREY) for n, p, chosen in routes], limit=1.0
        )
        _bars(panels[2], "evidence of the leaves", [(n, e, ORANGE) for n, e in data["leaf_evidence"].items()])
    end = f", vacuity {data['vacuity']:.2f}" + (": abstains" if data["abstains"] else "") if walks else ""
    _bars(panels[-1], f"belief{end}", [(t["token"], t["belief"], BLUE) for t in data["top"]])
    written = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "nbsr", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _reading(axes: Axes, read: list[dict[str, Any]]) -> None:
    places = range(len(read))
    axes.plot(places, [r["closeness"] for r in read], color=BLUE, marker="o", label="closeness")
    for place, r in zip(places, read, strict=True):
        axes.annotate(
            f"d{r['depth']}", (place, r["closeness"]), (0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_xticks(list(places), [_plain(r["token"]) for r in read], rotation=60, fontsize=8)
    axes.set_ylim(-0.05, 1.15)
    axes.set_title("closeness and depth by token", fontsize=9)


def _bars(axes: Axes, title: str, bars: list[tuple[str, float, str]], limit: float | None = None) -> None:
    names, values, colours = zip(*bars, strict=True)
    places = range(len(names))
    axes.barh(places, values, color=colours)
    axes.set_yticks(list(places), [_plain(name) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9)
    if limit is not None:
        axes.set_xlim(0, limit)


def _plain(text: str) -> str:
    """Text that is not read as a formula."""
    return text.replace("$", r"\$")

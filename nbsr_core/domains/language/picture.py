"""The trace of a prompt as one picture: what was read, who was asked, what they offer and what is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbsr_core.plots.svg import BLUE, GREEN, GREY, INK, LINE, MIST, ORANGE, PURPLE, Picture

MARGIN, PANEL, GAP = 24.0, 268.0, 24.0
TITLE, HEAD, ROW, BAR = 34.0, 66.0, 22.0, 11.0
NAME, NUMBER = 104.0, 62.0  # room for the texts before and behind a bar


@dataclass(frozen=True)
class Bar:
    """One line of a panel; what was chosen is bold and marked, so that colour alone says nothing."""

    name: str
    value: float
    said: str
    chosen: bool = False


@dataclass(frozen=True)
class Panel:
    """Bars with a title; `limit` is what a whole bar stands for, the largest value if None."""

    title: str
    colour: str
    bars: Sequence[Bar]
    limit: float | None = 1.0


def draw_prompt(data: dict[str, Any]) -> str:
    """The picture as the text of an SVG file; a softmax shows its words only."""
    panels = _of_walk(data) if "routers" in data else []
    beliefs = [Bar(word["token"], word["belief"], f"{word['belief']:.1%}") for word in data["top"]]
    panels.append(Panel("belief in the next word", BLUE, beliefs))
    picture = Picture(2 * MARGIN + len(panels) * (PANEL + GAP) - GAP)
    prompt = " ".join(data["prompt"]) + " ..."
    picture.text((MARGIN, TITLE), prompt, 16, bold=True, room=picture.width - 2 * MARGIN)
    if "vacuity" in data:
        verdict = f"vacuity {data['vacuity']:.2f}" + (": abstains" if data["abstains"] else "")
        picture.text((MARGIN, TITLE + 18), verdict, 12, GREY)
    for place, panel in enumerate(panels):
        _draw(picture, MARGIN + place * (PANEL + GAP), panel)
    height = HEAD + 24 + ROW * max(len(panel.bars) for panel in panels) + MARGIN
    return picture.document(height, f"What the model makes of: {prompt}")


def _of_walk(data: dict[str, Any]) -> list[Panel]:
    read = [Bar(one["token"], one["closeness"], f"{one['closeness']:.2f}, d{one['depth']}") for one in data["read"]]
    routes = [
        Bar(name, p, f"{p:.2f}", name == router["chosen"])
        for router in data["routers"]
        for name, p in router["probabilities"].items()
    ]
    evidence = [Bar(name, amount, f"{amount:.3g}") for name, amount in data["leaf_evidence"].items()]
    return [
        Panel("closeness to what is known, depth", PURPLE, read),
        Panel("router probability", GREEN, routes),
        Panel("evidence of the leaves", ORANGE, evidence, limit=None),
    ]


def _draw(picture: Picture, left: float, panel: Panel) -> None:
    picture.text((left, HEAD + 10), panel.title, 12, INK, bold=True, room=PANEL)
    picture.line((left, HEAD + 18), (left + PANEL, HEAD + 18), LINE)
    whole = panel.limit or max((bar.value for bar in panel.bars), default=0.0) or 1.0
    has_choice = any(bar.chosen for bar in panel.bars)
    for number, bar in enumerate(panel.bars):
        baseline = HEAD + 36 + number * ROW
        picture.text((left, baseline), f"◆ {bar.name}" if bar.chosen else bar.name, 12, bold=bar.chosen, room=NAME - 6)
        fill = panel.colour if bar.chosen or not has_choice else MIST
        length = (PANEL - NAME - NUMBER) * min(1.0, bar.value / whole)
        picture.box((left + NAME, baseline - BAR + 1), length, BAR, fill, corner=2)
        picture.text((left + PANEL, baseline), bar.said, 11, GREY, anchor="end")

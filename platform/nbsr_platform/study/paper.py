"""What a paper reports for the models of a study, shown beside what the study finds; it changes nothing in a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from nbsr_platform.study.options import FAILED, Check, convert
from nbsr_platform.study.problems import Problems, did_you_mean
from nbsr_platform.study.sections import ModelChoice

CONFIGS = {"nbsr": ("deep", "fast"), "baseline": ("",)}
Words = Annotated[str, Check("text that says where the figures stand", lambda text: bool(text.strip()))]
Figure = Annotated[float, Check("a finite number", isfinite)]


@dataclass(frozen=True)
class Paper:
    """Published figures.

    Attributes:
        source: where they stand, and what is to be known of how they were measured.
        figures: by line of the comparison (`mlp`; `nbsr deep` and `nbsr fast`), then by figure, named as the study's
            own (`accuracy`, `ece`, ...).
    """

    source: Words
    figures: Mapping[str, Mapping[str, Figure]]

    def of(self, model: str, config: str) -> Mapping[str, float]:
        """What is published for one line of the comparison."""
        return self.figures.get(f"{model} {config}".strip(), {})

    def tags(self) -> dict[str, str]:
        """For the study's own run in MLflow, where people filter and compare."""
        named = {
            f"nbsr.paper.{line.replace(' ', '.')}.{name}": f"{value:g}"
            for line, figures in self.figures.items()
            for name, value in figures.items()
        }
        return {"nbsr.paper.source": self.source, **named}


def read_paper(raw: Any, models: Mapping[str, ModelChoice], searches: bool, problems: Problems) -> Paper | None:
    """The part `paper:` of a study; its lines must be lines of the comparison, or nobody would ever see them."""
    if raw is None:
        return None
    paper = convert(Paper, raw, ("paper",), problems)
    if searches:
        problems.add(("paper",), "has no place beside a search, whose lines are proposals; drop one of them")
    if paper is FAILED:
        return None
    lines = [f"{label} {config}".strip() for label, choice in models.items() for config in CONFIGS[choice.family]]
    for line in paper.figures:
        if models and line not in lines:
            path = ("paper", "figures", line)
            problems.add(
                path, "no such line in the comparison", allowed=", ".join(lines), hint=did_you_mean(line, lines)
            )
    found: Paper = paper
    return found

"""Why a model said what it said: one sample, one episode, one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.explain.explanation import Explanation
    from nbsr_platform.explain.walk_svg import draw_walk

__all__ = ["Explanation", "draw_walk"]

__getattr__ = on_first_use(
    __name__,
    {
        "Explanation": "explanation",
        "draw_walk": "walk_svg",
    },
)

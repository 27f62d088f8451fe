"""Names of figures, built and read: `test/accuracy`, `valid/fast/ece`, `noise/depth2/nll`, `ceiling/test/accuracy`.

A figure is measured on a set of data (`test`, `valid`, or a further set of the domain, such as `ood/letters`) with a
model that is used in one way: to the end of its walk, with early exit (`fast`), or cut at a depth (`depth2`). The name
says so in that order: `<set>/<use>/<figure>`. With early exit or at a depth `test` is left out: `fast/accuracy`. What
the best possible model would reach has the same names after `ceiling/`.

A comparison has one line for each use, so its names are shorter: the set `test` and the use are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

TRAIN, VALID, TEST = "train", "valid", "test"
FAST = "fast"
CEILING = "ceiling"
MODEL = "model"
TO_THE_END = ""
"""The use of a model that walks to a leaf, or of one that does not walk."""

Line = Literal["test", "fast", "ceiling"]
"""Which figures a line of a comparison shows: a model to the end, with early exit, or the best possible one."""

_SHORTER_USE = re.compile(r"fast|depth(?:\d+|\*)")


@dataclass(frozen=True)
class FigureName:
    """What a name says.

    Attributes:
        figure: what is measured: `accuracy`.
        data: the set that it is measured on; empty for a name that is nothing but the figure (`seconds`).
        use: `TO_THE_END`, `FAST`, or `at_depth(n)`.
        of_ceiling: whether it is the best possible model's.
    """

    figure: str
    data: str = TEST
    use: str = TO_THE_END
    of_ceiling: bool = False

    def __str__(self) -> str:
        where = place(self.data, self.use, of_ceiling=self.of_ceiling)
        return f"{where}/{self.figure}" if where else self.figure


def parse(name: str) -> FigureName:
    """The inverse of `str`. A name that is none of ours is a figure on a set of its own."""
    of_ceiling = name.startswith(f"{CEILING}/")
    head, _, figure = name.removeprefix(f"{CEILING}/").rpartition("/")
    data, _, use = head.rpartition("/")
    if not _SHORTER_USE.fullmatch(use) or data == TEST:
        return FigureName(figure, head, TO_THE_END, of_ceiling)
    return FigureName(figure, data or TEST, use, of_ceiling)


def place(data: str = TEST, use: str = TO_THE_END, *, of_ceiling: bool = False) -> str:
    """What stands before the figure: `test`, `fast`, `valid/fast`, `ceiling/noise`."""
    parts = [use] if use and data == TEST else [data, use]
    return "/".join(filter(None, [CEILING if of_ceiling else "", *parts]))


def at_depth(depth: int | Literal["*"]) -> str:
    """The use of a model whose walks are cut at a depth; `*` is a pattern for any."""
    return f"depth{depth}"


def test(figure: str) -> str:
    """A figure of the test split, at the end of walks."""
    return str(FigureName(figure))


def fast(figure: str) -> str:
    """A figure of the test split with early exit."""
    return str(FigureName(figure, use=FAST))


def named(where: str, figures: Iterable[str]) -> set[str]:
    """The names of several figures at one `place`."""
    return {f"{where}/{figure}" for figure in figures}


ETA = fast("eta")
"""The entropy at which walks end early; chosen on the validation split, or an option."""
PARAMETERS = f"{MODEL}/parameters"


def last_part(name: str) -> str:
    """The figure without where it was measured: `noise/ece` -> `ece`."""
    return name.rpartition("/")[2]


def is_of_epochs(name: str) -> bool:
    """Whether every epoch reports this figure."""
    return name.startswith((f"{VALID}/", f"{TRAIN}/"))


def in_comparison(name: str, line: Line) -> str | None:
    """What a line of a comparison calls a stored figure; None for a figure that is not that line's.

    `test/accuracy` is `accuracy` in the line `test`, and so is `fast/accuracy` in the line `fast`;
    `noise/accuracy` keeps the name of its set. What was measured on the validation split is not compared.
    """
    found = parse(name)
    if found.of_ceiling != (line == CEILING) or (found.use == FAST) != (line == FAST):
        return None
    if found.data.startswith((VALID, MODEL)):
        return None
    use = TO_THE_END if line == FAST else found.use
    return found.figure if found.data == TEST and not use else str(FigureName(found.figure, found.data, use))


def stored_name(compared: str, line: Line) -> str:
    """The inverse of `in_comparison`: under which name a trial stores what a line calls `compared`."""
    found = parse(compared)
    use = FAST if line == FAST else found.use
    return str(FigureName(found.figure, found.data or TEST, use, of_ceiling=line == CEILING))

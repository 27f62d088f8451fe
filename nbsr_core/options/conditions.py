"""When an option counts: said beside the option itself, so that a study can be told which of its options do nothing.

Many options are read only if another one has a certain value (`graph.depth` is of no use to a taxonomy). Such an option
carries its condition in the metadata of its dataclass field:

    patience: int = field(default=10, metadata=counts_when("scheduler is plateau", lambda self: ...))

What depends on more than the options (on the graph that a domain builds) is said by `Learner.ignores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

METADATA = "counts_when"


@dataclass(frozen=True)
class Condition:
    """When an option counts.

    Attributes:
        words: completes the sentence "it counts only if ...".
        holds: asks the dataclass that has the option.
    """

    words: str
    holds: Callable[[Any], bool]


def counts_when(words: str, holds: Callable[[Any], bool]) -> dict[str, Condition]:
    """Metadata of a dataclass field that counts only under a condition."""
    return {METADATA: Condition(words, holds)}


def without_effect(options: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Options that do not count as the others stand: dotted key, and when it would count.

    Of an option with parts (a nested dataclass) that does not count, the parts are not named again.
    """
    for item in fields(options):
        key, value = f"{prefix}{item.name}", getattr(options, item.name)
        condition: Condition | None = item.metadata.get(METADATA)
        if condition is not None and not condition.holds(options):
            yield key, f"it counts only if {condition.words}"
        elif is_dataclass(value) and not isinstance(value, type):
            yield from without_effect(value, f"{key}.")
        elif isinstance(value, tuple):
            for number, part in enumerate(value):
                if is_dataclass(part) and not isinstance(part, type):
                    yield from without_effect(part, f"{key}.{number}.")

"""Ratios, not seconds: contenders take turns within one run, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Median seconds of one contender, and the median over rounds of its ratio to the first contender."""

    seconds: float
    ratio: float
    low: float
    high: float


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    *,
    budget: float = 3.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run all contenders in turn, round after round, for `budget` seconds; the first one is the reference.

    Each round begins with another one, since who comes after whom matters to caches and sleeping threads.

    On a machine that is busy with other things, `clock=time.thread_time` counts the CPU seconds of this thread alone.
    """
    runs = list(contenders.values())
    for run in runs:
        run()
        run()
    rounds: list[list[float]] = []
    until = time.perf_counter() + budget
    while len(rounds) < 7 or (time.perf_counter() < until and len(rounds) < 2000):
        spent = [0.0] * len(runs)
        for turn in range(len(runs)):
            index = (len(rounds) + turn) % len(runs)
            began = clock()
            runs[index]()
            spent[index] = clock() - began
        rounds.append(spent)
    result = {}
    for index, name in enumerate(contenders):
        ratios = sorted(spent[index] / spent[0] for spent in rounds)
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        result[name] = Timing(statistics.median(s[index] for s in rounds), statistics.median(ratios), low, high)
    return result

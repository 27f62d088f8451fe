"""Work that a domain wants done once before trials start (a frozen backbone's features), piece by piece.

The results are files that the domain keeps: a run that was killed goes on with what is missing, and a second study on
the same data finds all of it. Who does the pieces is the executor's business.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from nbsr_core.domains.domain import Work, find_domain
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.study.options import to_plain
from nbsr_platform.study.sections import Resources
from nbsr_platform.study.study import Study
from nbsr_platform.trials.keys import canonical

PLAIN_SECONDS = 5.0

# Domain, folder of the study file, options of the data, and seeds: the same list of works in every process.
Where = tuple[str, str | None, str, tuple[int, ...]]
# Does some of the works, by their numbers; yields the size of what is done, zero now and then.
Doing = Callable[[Where, Sequence[int], Resources], Iterator[int]]


@lru_cache(maxsize=1)
def works_of(domain: str, beside: str | None, data: str, seeds: tuple[int, ...]) -> Sequence[Work]:
    """All pieces, made of the study's options rather than sent between processes, since there may be many."""
    from nbsr_platform.execution.worker import options_here  # a job's files lie elsewhere on every node

    found = find_domain(domain, beside)
    return found.prepare(options_here(found.data, json.loads(data)), seeds)


def prepare(study: Study, console: Terminal, doing: Doing) -> int:
    """Do what is not yet done, and say how far it is. Returns how many pieces that were."""
    folder = None if study.folder is None else str(study.folder)
    where = (study.domain, folder, canonical(to_plain(study.data)), study.seeds)
    works = works_of(*where)
    todo = [index for index, work in enumerate(works) if not work.done]
    if not todo:
        return 0
    total, done, began = sum(works[index].size for index in todo), 0, time.monotonic()
    said_at, said = 0.0, -1  # seconds, and rows
    for size in doing(where, todo, study.resources):
        done += size
        elapsed = time.monotonic() - began
        if done != said and (elapsed - said_at > PLAIN_SECONDS or done == total):
            said_at, said = elapsed, done
            left = f", about {elapsed / done * (total - done):.0f} s left" if 0 < done < total else ""
            pace = f", {done / elapsed:.0f} a second" if done else ""
            console.say(f"{study.name}: prepared {done:,} of {total:,} rows{pace}{left}")
    return len(todo)

"""Work that a domain wants done once before trials start (a frozen backbone's features), in parallel on Ray.

The results are files that the domain keeps: a run that was killed goes on with what is missing, and a second study on
the same data finds all of it. On a cluster of several machines the domain's cache must lie on a disk that all see.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import lru_cache

import ray
import torch

from nbsr_core.domains.domain import Work, find_domain
from nbsr_core.errors import NbsrError
from nbsr_platform.options import from_plain, to_plain
from nbsr_platform.placement import for_preparation
from nbsr_platform.study import Study
from nbsr_platform.terminal import Terminal
from nbsr_platform.trial import canonical

PLAIN_SECONDS = 5.0


@lru_cache(maxsize=1)
def _works(domain: str, beside: str | None, data: str) -> Sequence[Work]:
    """The same list in every process; it is made of the study's options rather than sent, since it may be large."""
    found = find_domain(domain, beside)
    return found.prepare(from_plain(found.data, json.loads(data)))


@ray.remote(max_retries=3)  # type: ignore[untyped-decorator]
def _run(domain: str, beside: str | None, data: str, index: int, threads: int) -> int:
    from nbsr_platform.worker import beside_here  # a job's files lie elsewhere on every node

    torch.set_num_threads(threads)
    work = _works(domain, beside_here(beside), data)[index]
    if not work.done:
        work.run()
    return work.size


def prepare(study: Study, console: Terminal) -> int:
    """Do what is not yet done, one piece a worker at a time; needs a running Ray. Returns how many pieces that were."""
    folder = None if study.folder is None else str(study.folder)
    where = (study.domain, folder, canonical(to_plain(study.data)))
    works = _works(*where)
    todo = [index for index, work in enumerate(works) if not work.done]
    if not todo:
        return 0
    task = _run.options(**for_preparation(study.resources, ray.cluster_resources()))
    pending = [task.remote(*where, index, study.resources.cpus_per_worker) for index in todo]
    total, done, began = sum(works[index].size for index in todo), 0, time.monotonic()
    said, told = 0.0, -1
    try:
        while pending:
            ready, pending = ray.wait(pending, timeout=PLAIN_SECONDS)
            done += sum(ray.get(ready))
            elapsed = time.monotonic() - began
            if done != told and (elapsed - said > PLAIN_SECONDS or not pending):
                said, told = elapsed, done
                left = f", about {elapsed / done * (total - done):.0f} s left" if 0 < done < total else ""
                pace = f", {done / elapsed:.0f} a second" if done else ""
                console.say(f"{study.name}: prepared {done:,} of {total:,} rows{pace}{left}")
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NbsrError):  # a file that cannot be read, say: one message, without the task's trace
            raise error.cause from None
        raise
    finally:
        for waiting in pending:
            ray.cancel(waiting)
    return len(todo)

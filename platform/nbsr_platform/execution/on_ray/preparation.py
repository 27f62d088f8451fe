"""The pieces of a domain's preparation in parallel on Ray, one a worker at a time.

On a cluster of several machines the domain's cache must lie on a disk that all see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import ray
import torch

from nbsr_core.errors import NbsrError
from nbsr_platform.execution.on_ray.placement import for_preparation
from nbsr_platform.execution.preparation import PLAIN_SECONDS, Where, works_of
from nbsr_platform.study.sections import Resources


@ray.remote(max_retries=3)  # type: ignore[untyped-decorator]
def _run(domain: str, beside: str | None, data: str, seeds: tuple[int, ...], index: int, threads: int) -> int:
    from nbsr_platform.execution.worker import beside_here  # a job's files lie elsewhere on every node

    torch.set_num_threads(threads)
    work = works_of(domain, beside_here(beside), data, seeds)[index]
    if not work.done:
        work.run()
    return work.size


def on_ray(where: Where, todo: Sequence[int], resources: Resources) -> Iterator[int]:
    """Needs a running Ray."""
    task = _run.options(**for_preparation(resources, ray.cluster_resources()))
    pending = [task.remote(*where, index, resources.cpus_per_worker) for index in todo]
    try:
        while pending:
            ready, pending = ray.wait(pending, timeout=PLAIN_SECONDS)
            yield sum(ray.get(ready))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NbsrError):  # a file that cannot be read, say: one message, without the task's trace
            raise error.cause from None
        raise
    finally:
        for waiting in pending:
            ray.cancel(waiting)

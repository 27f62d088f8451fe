"""Many writers of metrics at once, each with a run of its own."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric
from nbsr_platform.tracking.store import TrackingStore

PROCESSES = 8
_together: Any = None


def write_metrics(uri: str, writers: int, calls: int, figures: int) -> tuple[int, float]:
    """Metrics that the server has at the end, and the seconds of writing."""
    client = MlflowClient(uri)
    experiment = client.create_experiment(f"writers-{time.time_ns()}")
    runs = [client.create_run(experiment).info.run_id for _ in range(writers)]
    context = multiprocessing.get_context("spawn")
    share = writers // PROCESSES
    with ProcessPoolExecutor(PROCESSES, context, _prepare, (context.Barrier(PROCESSES),)) as pool:
        parts = [runs[number * share : (number + 1) * share] for number in range(PROCESSES)]
        began = list(pool.map(_write, [uri] * PROCESSES, parts, [calls] * PROCESSES, [figures] * PROCESSES))
    seconds = time.time() - min(began)
    found = sum(
        len({(point.step, point.value) for point in client.get_metric_history(run, f"figure{figure}")})
        for run in runs
        for figure in range(figures)
    )
    return found, seconds


def _prepare(together: Barrier) -> None:
    global _together
    _together = together


def _write(uri: str, runs: list[str], calls: int, figures: int) -> float:
    """One process: a thread per run, all of them beginning when every process is ready."""
    store = TrackingStore(uri)
    _together.wait()
    began, start = time.time(), threading.Barrier(len(runs))

    def write(run: str) -> None:
        start.wait()
        for step in range(calls):
            values = [Metric(f"figure{figure}", step + figure / 16, 1000 + step, step) for figure in range(figures)]
            store.call("log_batch", run, metrics=values)

    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(write, runs))
    return began

"""What a tracking store has recorded, read back by name, and how a recording is cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.tracking.tracker import PARENT, Tracker


def children(tracker: Tracker, parent: str) -> list[Any]:
    experiment = tracker.client.get_run(parent).info.experiment_id
    return list(tracker.client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'"))


def histories(tracker: Tracker, run_id: str) -> dict[str, list[tuple[int, float]]]:
    names = tracker.client.get_run(run_id).data.metrics
    return {name: [(m.step, m.value) for m in tracker.client.get_metric_history(run_id, name)] for name in names}


def text_of(tracker: Tracker, run_id: str, name: str, folder: Path) -> str:
    return Path(tracker.client.download_artifacts(run_id, name, str(folder))).read_text()


class Killed(BaseException):
    """Ends a process as nothing but a signal does; here, so that it can be seen."""


WRITES = (
    "create_run",
    "log_batch",
    "log_text",
    "log_artifacts",
    "set_terminated",
    "delete_tag",
    "set_tag",
    "update_run",
)


def interrupt(tracker: Tracker, monkeypatch: pytest.MonkeyPatch, moment: int) -> list[str]:
    """Die at a moment: before the first write, after it, before the second, ... Returns the writes that were made."""
    made: list[str] = []
    left = [moment]

    def dying(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            answer = method(*args, **options)
            made.append(name)
            if left[0] == 1:
                raise Killed
            left[0] -= 2
            return answer

        return call

    for name in WRITES:
        monkeypatch.setattr(tracker.client, name, dying(name, getattr(tracker.client, name)))
    return made

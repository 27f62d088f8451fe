"""What a tracking store has recorded, read back by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbsr_platform.tracking import PARENT, Tracker


def children(tracker: Tracker, parent: str) -> list[Any]:
    experiment = tracker.client.get_run(parent).info.experiment_id
    return list(tracker.client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'"))


def histories(tracker: Tracker, run_id: str) -> dict[str, list[tuple[int, float]]]:
    names = tracker.client.get_run(run_id).data.metrics
    return {name: [(m.step, m.value) for m in tracker.client.get_metric_history(run_id, name)] for name in names}


def text_of(tracker: Tracker, run_id: str, name: str, folder: Path) -> str:
    return Path(tracker.client.download_artifacts(run_id, name, str(folder))).read_text()

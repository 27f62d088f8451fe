"""A study that ends with an error says so in MLflow too, and can be gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform import Study, run
from nbsr_platform.tracking.tracker import Tracker

from nbsr_core.errors import InputError


def status_of(home: Path) -> list[str]:
    store = Tracker(f"sqlite:///{home / 'mlflow.db'}").store
    experiments = [experiment.experiment_id for experiment in store.call("search_experiments")]
    runs = store.call("search_runs", experiments, "tags.`nbsr.role` = 'study'")
    return [found.info.status for found in runs]


@pytest.mark.slow
def test_a_study_that_ends_with_an_error_does_not_stay_running_in_mlflow(tmp_path: Path) -> None:
    values = {"name": "large", "domain": "iris", "models": {"mlp": {}}, "training": {"epochs": 1}}
    with pytest.raises(InputError, match="more than Ray has here"):
        run(Study.from_dict({**values, "resources": {"cpus_per_worker": 9999}}), home=tmp_path)
    assert status_of(tmp_path) == ["FAILED"]
    run(Study.from_dict(values), home=tmp_path)
    assert status_of(tmp_path) == ["FINISHED"], "the same run, which was opened again"

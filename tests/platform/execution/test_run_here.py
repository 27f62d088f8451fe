"""`nbsr run --local`: the same study in one process, without Ray."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from nbsr_platform import run
from nbsr_platform.execution.worker import RESULT, TrialWork
from nbsr_platform.serving.served_model import ModelConfig, load_learner
from nbsr_platform.study.study import Study
from nbsr_platform.trials.checkpoints import Checkpoints
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import data_fingerprint, grid
from processes import COMMAND, GRID, SEARCH, document, journal, nbsr, recorded

IRIS = """
name: flowers
domain: iris
seeds: 2
training: {epochs: 2}
models: {nbsr: {}, mlp: {}}
"""
PRUNED = SEARCH.replace(
    "pruner: none", "pruner: {name: halving, metric: valid/nll, direction: minimize, warmup_epochs: 1}"
).replace("trials: 8", "trials: 5")
STOPS = """
from nbsr_core.domains.iris import Iris

class Stopping(Iris):
    def load(self, data, seed):
        answer = 6 * 7
        breakpoint()
        return super().load(data, seed)
"""
WITHOUT_RAY = """
import sys
from nbsr_platform import Study, run
result = run(Study.load("flowers.yaml"), local=True)
assert len(result.rows) == 3 and not result.failed, result.rows
print(sorted(name for name in ("ray", "optuna") if name in sys.modules))
"""


def test_no_ray_is_imported(tmp_path: Path) -> None:
    (tmp_path / "flowers.yaml").write_text(IRIS)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_breakpoints_stop_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "stopping.py").write_text(STOPS)
    (tmp_path / "flowers.yaml").write_text(IRIS.replace("domain: iris", "domain: stopping:Stopping"))
    done = subprocess.run(
        [*COMMAND, "run", "flowers.yaml", "--local"],
        cwd=tmp_path,
        input="p answer\n" + "c\n" * 100,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(Pdb) 42" in done.stdout


def test_here_and_on_a_cluster_is_a_contradiction(tmp_path: Path) -> None:
    (tmp_path / "flowers.yaml").write_text(IRIS)
    done = nbsr("run", "flowers.yaml", "--local", "--address", "auto", cwd=tmp_path)
    assert done.returncode == 2
    assert "run locally, or on the Ray cluster at 'auto': not both" in done.stderr
    assert not (tmp_path / ".nbsr").exists()


def result_of(folder: Path, key: str) -> dict[str, Any]:
    """What is stored, without times and where it was made."""
    stored = json.loads((folder / ".nbsr" / "trials" / key / "result.json").read_text())
    own = ("seconds", "environment", "trial")
    epochs = [{name: value for name, value in epoch.items() if "second" not in name} for epoch in stored["epochs"]]
    figures = {name: value for name, value in stored["metrics"].items() if "second" not in name}
    return {**{name: value for name, value in stored.items() if name not in own}, "epochs": epochs, "metrics": figures}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "text"), [("tiny", GRID), ("hunt", PRUNED)])
def test_it_gives_what_ray_gives(tmp_path: Path, name: str, text: str) -> None:
    here, on_ray = tmp_path / "here", tmp_path / "on_ray"
    for folder in (here, on_ray):
        folder.mkdir()
        (folder / f"{name}.yaml").write_text(text)
    # One worker at a time: what a pruner compares with depends on what has ended.
    found = document(here, f"{name}.yaml", "--local")
    expected = document(on_ray, f"{name}.yaml", "--set", "resources.concurrency=1")
    assert found["trials"] == expected["trials"]
    assert found["table"] == expected["table"]
    keys = sorted(path.name for path in (on_ray / ".nbsr" / "trials").glob("[!.]*"))
    assert sorted(path.name for path in (here / ".nbsr" / "trials").glob("[!.]*")) == keys
    for key in keys:
        assert result_of(here, key) == result_of(on_ray, key)
    if name == "hunt":
        assert [trial.params for trial in journal(here).trials] == [trial.params for trial in journal(on_ray).trials]
        assert [trial.state for trial in journal(here).trials] == [trial.state for trial in journal(on_ray).trials]
    assert recorded(found).keys() == recorded(expected).keys()
    again = document(here, f"{name}.yaml")
    assert again["trials"]["reused"] == len(keys), "and each takes up what the other has done"


def test_models_that_are_built_beside_a_trial_take_nothing_of_its_randomness(tmp_path: Path) -> None:
    """As the recorder does, which makes the served model of one trial while the next one trains in this process."""
    study = Study.from_dict(
        {
            "name": "small",
            "domain": "medical",
            "data": {"train_patients": 400, "valid_patients": 80, "test_patients": 40, "draws": 0},
            "training": {"epochs": 6},
            "evaluation": {"audits": 0},
            "models": {"nbsr": {"hidden": [16]}},
        }
    )
    (trial,) = grid(study, data_fingerprint(study))

    def trained() -> TrialResult:
        work = TrialWork.alone(trial, "cpu", 1, Checkpoints.of(tmp_path / uuid4().hex, trial))
        while not (report := work.step())["done"]:
            pass
        result: TrialResult = report[RESULT]
        assert result.state is not None, result.error
        return result

    alone = trained()
    config, over = ModelConfig.of(trial, alone), threading.Event()

    def build() -> None:
        while not over.is_set():
            load_learner(config, alone.state or {})

    builder = threading.Thread(target=build)
    builder.start()
    try:
        beside = trained()
    finally:
        over.set()
        builder.join()
    assert beside.metrics == alone.metrics


def test_more_epochs_cost_only_the_difference(tmp_path: Path) -> None:
    def flowers(home: str, epochs: int) -> list[TrialResult]:
        study = Study.from_dict({**yaml.safe_load(IRIS), "seeds": 1, "training": {"epochs": epochs}})
        (part,) = run(study, home=tmp_path / home, local=True).parts
        ended = sorted(part.ended_trials.finished.values(), key=lambda pair: pair[0].name)
        return [result for _, result in ended]

    before, grown, at_once = flowers("one", 3), flowers("one", 7), flowers("other", 7)
    for short, long, whole in zip(before, grown, at_once, strict=True):
        assert long.epochs[:3] == short.epochs, "the very same epochs, down to the seconds that they took"
        timeless = [
            [{**epoch, "seconds": 0, "train/samples_per_second": 0} for epoch in one.epochs] for one in (long, whole)
        ]
        assert timeless[0] == timeless[1]
        assert {**long.metrics} == pytest.approx(whole.metrics, rel=0, abs=0, nan_ok=True)

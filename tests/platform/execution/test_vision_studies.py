"""Vision studies on a real Ray: features prepared by several workers, the paper's study made small, a lost worker."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.explain.explain import explain
from nbsr_platform.explain.explanation import Explanation
from nbsr_platform.explain.walk_svg import draw_walk
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from PIL import Image

from nbsr_core.domains.vision.data import Source

ROOT = Path(__file__).parents[3]
FROZEN = """
name: frozen
domain: vision
data: {oracle: {name: small, weights: none, size: 32}, subset: 1000}
seeds: 1
training: {epochs: 2, batch_size: 64}
models:
  flat: {}
  nbsr: {experts: {activation: exp}, objective: {every_depth: 1.0, concept: 0.3}}
"""
TEAM = """
name: team
domain: vision
data: {subset: 600}
seeds: 1
training: {epochs: 12, batch_size: 64}
models:
  flat: {backbone: {name: resnet18, size: 32}}
resources: {workers: 2, retries: 2}
"""


SEEN: dict[str, Any] = {
    "name": "seen",
    "domain": "vision",
    "data": {"oracle": {"name": "small", "weights": "none", "size": 32}, "subset": 200},
    "training": {"epochs": 1},
    "models": {"nbsr": {"objective": {"every_depth": 1.0}}},
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nbsr_platform.cli", *arguments]


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON document of `nbsr run`, and what was said meanwhile."""
    environment = {**os.environ, "NBSR_CACHE": str(folder / "cache")}
    done = subprocess.run(
        command("run", "--json", *arguments), cwd=folder, capture_output=True, text=True, timeout=580, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("known", [None, 6])
def test_an_explained_walk_shows_the_picture_itself(tmp_path: Path, known: int | None) -> None:
    """Also where the model never saw more of it than cached features, and where its seed chose among the classes."""
    data = {**SEEN["data"], "cache": str(tmp_path / "cache"), "known": known}
    study = Study.from_dict({**SEEN, "data": data, "seeds": [1]})
    (trial,) = grid(study, data_fingerprint(study))
    home = Home(tmp_path / "home")
    for event in run_trial(trial, "cpu"):
        if isinstance(event, TrialResult):
            ResultStore(home.trials).save(event)
    explained = explain(home, trial.key, 3)
    assert isinstance(explained, Explanation)
    assert "portrait" not in json.dumps(explained.to_json())
    drawn = ElementTree.fromstring(draw_walk(explained))
    (image,) = drawn.iter("{http://www.w3.org/2000/svg}image")
    kind, _, content = image.attrib["href"].partition(",")
    assert kind == "data:image/png;base64"
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    source = Source(study.data)
    row = int(source.selection(1).test[3])
    assert explained.true_class == source.test.class_names[source.test.labels[row]]
    assert np.array_equal(shown, source.test.decode([row], 32)[0].permute(1, 2, 0).numpy())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_features_are_prepared_once_for_all_trials_and_studies(tmp_path: Path) -> None:
    (tmp_path / "frozen.yaml").write_text(FROZEN)
    first, said = run(tmp_path, "frozen.yaml", "--home", "one")
    assert first["trials"]["finished"] == 2
    assert "rows" in said
    tables = sorted((tmp_path / "cache").rglob("table.npy"))
    assert len(tables) == 3  # training, test and out-of-distribution pictures
    stamps = [table.stat().st_mtime_ns for table in tables]
    again, said = run(tmp_path, "frozen.yaml", "--home", "two")
    assert again["trials"]["finished"] == 2
    assert "rows" not in said
    assert [table.stat().st_mtime_ns for table in tables] == stamps
    assert again["table"] == first["table"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not Path(os.environ.get("NBSR_DATA", "/nowhere"), "cifar10").exists(), reason="NBSR_DATA has no cifar10"
)
def test_the_papers_study_made_small(tmp_path: Path) -> None:
    models = ("flat", "moe", "nbsr", "nbsr-better")
    changes = {
        "data.subset": "250",
        "data.ood": "[patches]",
        "seeds": "1",
        "training.epochs": "1",
        "resources.workers": "1",
        "resources.cpus_per_worker": "1",
        **{f"models.{name}.backbone.size": "32" for name in models},
        **{f"models.{name}.backbone.weights": "none" for name in models},
    }
    sets = [argument for key, value in changes.items() for argument in ("--set", f"{key}={value}")]
    result, _ = run(tmp_path, str(ROOT / "studies" / "vision" / "paper.yaml"), "--home", "home", *sets)
    assert result["trials"] == {"total": 4, "finished": 4, "reused": 0, "failed": 0, "pruned": 0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_killed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(TEAM)
    environment = {**os.environ, "NBSR_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        command("run", "--json", "team.yaml", "--home", "home"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as driver:
        until = time.monotonic() + 400
        checkpoints: list[Path] = []
        while len(checkpoints) < 2 and time.monotonic() < until and driver.poll() is None:
            time.sleep(0.2)
            checkpoints = list((tmp_path / "home").rglob("trainer.pt"))
        workers = train_workers(driver.pid)
        assert workers, "no worker of Ray Train was found"
        os.kill(workers[0], signal.SIGKILL)
        out, err = driver.communicate(timeout=450)
    assert driver.returncode == 0, err
    assert json.loads(out)["trials"]["finished"] == 1
    store = ResultStore(tmp_path / "home" / "trials")
    (trial,) = store.root.iterdir()
    assert [row["epoch"] for row in store.load(trial.name).epochs] == list(range(12))


def train_workers(ancestor: int) -> list[int]:
    """Processes of Ray Train's workers that descend from a process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    family = {ancestor}
    for _ in rows:  # a generation a round, and there are never more of them than processes
        grown = family | {int(pid) for pid, parent, _ in rows if int(parent) in family}
        if grown == family:
            break
        family = grown
    return [int(pid) for pid, _, title in rows if int(pid) in family and "RayTrainWorker" in title]

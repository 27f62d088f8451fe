"""Equal keys, equal results: what determines a result is in its key, and a worker checks that it has just that."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nbsr_platform.execution.worker import _load_splits, run_trial
from nbsr_platform.study.study import Study
from nbsr_platform.trials import keys
from nbsr_platform.trials.environment import differences, environment
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import StaleError, Trial, data_fingerprint, grid
from processes import nbsr, place, running, wait_for

from nbsr_core.code import named as named_code
from nbsr_core.domains.iris import Iris

TABLE = """
import csv, time
from dataclasses import dataclass, replace
from pathlib import Path
import torch
from nbsr_core.learning.splits import Split
from nbsr_core.domains.iris import Iris

@dataclass(frozen=True)
class Table:
    file: str = ""
    seconds: float = 0.0

class Flowers(Iris):
    name, data = "flowers", Table

    def load(self, data, seed):
        rows = list(csv.reader(Path(data.file).read_text().splitlines()))
        splits = super().load(None, seed)
        labels = torch.tensor([int(row[0]) for row in rows[1:]])

        def nap(x, generator):
            time.sleep(data.seconds)
            return x

        order = splits.train.y.argsort()
        return replace(splits, train=Split(splits.train.x[order], labels), augment=nap)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A study with a domain of its own that reads a table."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(named_code, "_folders", [])
    forget_code()
    _load_splits.cache_clear()
    (tmp_path / "nbsr_stale_flowers.py").write_text(TABLE)
    write_labels(tmp_path, sorted(Iris().load(None, 0).train.y.tolist()))
    yield tmp_path
    sys.modules.pop("nbsr_stale_flowers", None)
    forget_code()


def forget_code() -> None:
    """As in a process that starts now."""
    keys.training_code.cache_clear()
    keys.judging_code.cache_clear()


def write_labels(folder: Path, labels: list[int]) -> None:
    (folder / "labels.csv").write_text("label\n" + "".join(f"{label}\n" for label in labels))


def study_in(folder: Path, **more: Any) -> Study:
    values: dict[str, Any] = {
        "name": "stale",
        "domain": "nbsr_stale_flowers:Flowers",
        "data": {"file": str(folder / "labels.csv")},
        "training": {"epochs": 1},
        "models": {"mlp": {}},
        **more,
    }
    (folder / "stale.yaml").write_text(json.dumps(values))
    return Study.load(folder / "stale.yaml")


def trial_in(folder: Path, **more: Any) -> Trial:
    study = study_in(folder, **more)
    return grid(study, data_fingerprint(study))[0]


def result_of(trial: Trial) -> TrialResult:
    result = list(run_trial(trial, "cpu"))[-1]
    assert isinstance(result, TrialResult)
    return result


def test_a_trial_whose_data_has_changed_gives_no_result(folder: Path) -> None:
    trial = trial_in(folder)
    assert result_of(trial).status == "finished"
    write_labels(folder, sorted(Iris().load(None, 0).train.y.tolist(), reverse=True))
    assert result_of(trial).status == "finished", "what a warm worker holds in memory is the old data"
    with pytest.raises(StaleError, match="mlp seed 1: the data has changed since the study began"):
        list(run_trial(replace(trial, seed=1), "cpu"))


def test_a_trial_whose_code_has_changed_gives_no_result(folder: Path) -> None:
    (folder / "nbsr_stale_tools.py").write_text("x = 1\n")
    text = "import nbsr_stale_tools\n" + TABLE
    (folder / "nbsr_stale_flowers.py").write_text(text)
    trial = trial_in(folder)
    (folder / "nbsr_stale_tools.py").write_text('"""What it is for."""\nx = 1  # one\n')
    forget_code()
    assert result_of(trial).status == "finished", "words about the code are no code"
    (folder / "nbsr_stale_tools.py").write_text("x = 2\n")
    forget_code()
    with pytest.raises(StaleError, match="mlp seed 0: the code has changed since the study began"):
        list(run_trial(trial, "cpu"))
    sys.modules.pop("nbsr_stale_tools", None)


def test_a_trial_that_would_be_judged_by_other_code_gives_no_result(folder: Path) -> None:
    trial = replace(trial_in(folder), judging_code="of another version")
    with pytest.raises(StaleError, match="the code has changed since the study began"):
        list(run_trial(trial, "cpu"))


def test_names_of_columns_and_classes_are_part_of_the_data() -> None:
    splits = Iris().load(None, 0)
    swapped = [*splits.feature_names]
    swapped[0], swapped[1] = swapped[1], swapped[0]
    prints = {
        splits.fingerprint(),
        replace(splits, feature_names=swapped).fingerprint(),
        replace(splits, class_names=list(reversed(splits.class_names))).fingerprint(),
    }
    assert len(prints) == 3


@dataclass
class Pictures:
    """A vision study whose model has a backbone."""

    folder: Path

    def trial(self, **backbone: Any) -> tuple[Trial, str]:
        values = {
            "name": "pictures",
            "domain": "vision",
            "data": {"source": "digits", "subset": 60, "size": 16, "ood": [], "cache": str(self.folder / "cache")},
            "training": {"epochs": 1},
            "models": {"flat": {"backbone": {"size": 16, **backbone}}},
        }
        study = Study.from_dict(values)
        return grid(study, "abc")[0], study_key(study, "abc")


def test_the_content_of_a_weights_file_is_part_of_the_key(tmp_path: Path) -> None:
    from nbsr_core.domains.vision.backbones import BackboneOptions

    pictures, weights = Pictures(tmp_path), tmp_path / "weights.pt"
    torch.save(BackboneOptions("small").build().state_dict(), weights)
    before, study = pictures.trial(name="small", weights=str(weights))
    assert list(before.files) == ["backbone.weights"]
    torch.save(BackboneOptions("small").build().state_dict(), weights)
    after, study_after = pictures.trial(name="small", weights=str(weights))
    assert after.key != before.key
    assert study_after != study
    with pytest.raises(StaleError, match=r"flat seed 0: the file of backbone\.weights has changed"):
        list(run_trial(before, "cpu"))


def test_the_code_of_ones_own_backbone_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "nbsr_stale_parts.py").write_text("width = 4\n")
    (tmp_path / "nbsr_stale_net.py").write_text("from nbsr_stale_parts import width\ndef make(): ...\n")
    pictures = Pictures(tmp_path)
    before, _ = pictures.trial(name="nbsr_stale_net:make")
    assert set(before.files) == {"backbone.nbsr_stale_net", "backbone.nbsr_stale_parts"}
    (tmp_path / "nbsr_stale_parts.py").write_text('"""Parts."""\nwidth = 4\n')
    assert pictures.trial(name="nbsr_stale_net:make")[0].key == before.key
    (tmp_path / "nbsr_stale_parts.py").write_text("width = 8\n")
    after, _ = pictures.trial(name="nbsr_stale_net:make")
    assert after.key != before.key


def test_what_only_rounds_is_told_apart_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wide = trial_in(folder), trial_in(folder, resources={"cpus_per_worker": 2})
    assert plain.key == wide.key
    apart = {"same_environment": True}
    one = trial_in(folder, resources=apart)
    two = trial_in(folder, resources={**apart, "cpus_per_worker": 2})
    assert len({plain.key, one.key, two.key}) == 3
    monkeypatch.setattr("nbsr_platform.trials.environment._kernels", lambda: "torch")
    assert trial_in(folder, resources=apart).key != one.key
    torch.set_num_threads(1)
    with pytest.raises(StaleError, match=r"same_environment is set, and this worker has kernels torch, not compiled"):
        list(run_trial(one, "cpu"))


def test_a_result_says_where_it_was_made_and_a_comparison_where_that_differs(folder: Path) -> None:
    torch.set_num_threads(1)
    made = result_of(trial_in(folder)).environment
    assert made["threads"] == made["workers"] == "1"
    assert made["kernels"] in ("compiled", "torch")
    assert {"torch", "numpy", "scipy", "scikit-learn", "xgboost", "python", "ray", "commit"} <= made.keys()
    assert differences([made, dict(made)]) is None
    other = {**environment(2, 1, "cpu"), "torch": "1.0"}
    words = differences([made, other])
    assert words is not None
    assert f"torch {made['torch']} and 1.0" in words
    assert "threads 1 and 2" in words


@pytest.mark.slow
def test_labels_that_change_during_a_run_reach_no_result(tmp_path: Path) -> None:
    study = "name: naps\ndomain: nbsr_stale_flowers:Flowers\ndata: {file: %s, seconds: 0.05}\n"
    study += "seeds: 6\nresources: {concurrency: 1}\ntraining: {epochs: 10, batch_size: 30}\nmodels: {mlp: {}}\n"
    good = sorted(Iris().load(None, 0).train.y.tolist())
    folder = place(tmp_path / "here", study % (tmp_path / "here" / "labels.csv"))
    (folder / "nbsr_stale_flowers.py").write_text(TABLE)
    write_labels(folder, good)
    with running(folder, "naps.yaml") as driver:
        wait_for(lambda: list((folder / ".nbsr" / "trials").glob("[!.]*")) or driver.poll() is not None)
        write_labels(folder, good[::-1])
        said = driver.communicate(timeout=300)[1]
        assert driver.returncode == 2, said
    assert "the data has changed since the study began" in said
    assert "Traceback" not in said
    kept = len(list((folder / ".nbsr" / "trials").glob("[!.]*")))
    assert 1 <= kept < 6
    write_labels(folder, good)
    done = nbsr("run", "naps.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"]["reused"] == kept
    assert result["trials"]["finished"] == 6
    (row,) = result["table"]
    assert row["metrics"]["accuracy"]["low"] > 0.6, "no trial learned from shuffled labels"

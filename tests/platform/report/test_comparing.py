"""`nbsr compare`: what can be compared is, in terminal, JSON and page; the rest is refused with the reason."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid
from scipy import stats
from typer.testing import CliRunner

from benchmarks.report import made_up_result

STUDY = "name: {name}\ndomain: toys:Toy\nseeds: {seeds}\nmodels: {{nbsr: {{}}, mlp: {{hidden: [{hidden}]}}}}\n{more}"


@dataclass
class Store:
    """A home with finished studies, and the command on it."""

    folder: Path

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    def study(self, name: str, *, seeds: str = "4", hidden: int = 8, more: str = "") -> tuple[Path, list[Trial]]:
        path = self.folder / f"{name}.yaml"
        path.write_text(STUDY.format(name=name, seeds=seeds, hidden=hidden, more=more))
        study = Study.load(path)
        trials = grid(study, data_fingerprint(study))
        for number, trial in enumerate(trials):
            ResultStore(self.home.trials).save(made_up_result(trial, random.Random(f"{name} {number}")))
        return path, trials

    def compare(self, first: object, second: object, *more: str, exit_code: int = 0) -> str:
        page = self.folder / "page.html"
        done = CliRunner().invoke(
            app, ["compare", str(first), str(second), "--home", str(self.home.root), "--out", str(page), *more]
        )
        assert done.exit_code == exit_code, done.output
        assert page.exists() == (exit_code == 0), "nothing is written where nothing is compared"
        return done.output

    def json(self, first: object, second: object) -> dict[tuple[str, str, str], dict[str, Any]]:
        (pair,) = json.loads(self.compare(first, second, "--json"))["comparisons"]
        return {(line["model"], line["against"], line["figure"]): line for line in pair["figures"]}

    def value(self, trial: Trial, figure: str) -> float:
        return ResultStore(self.home.trials).load(trial.key).metrics[figure]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_two_trials_of_one_study_stand_beside_each_other_without_a_test(store: Store) -> None:
    _, trials = store.study("one")
    nbsr, mlp = (next(t for t in trials if t.label == label and t.seed == 1) for label in ("nbsr", "mlp"))
    line = store.json(nbsr.key, mlp.key)["mlp", "nbsr deep", "accuracy"]
    assert line["value"] == pytest.approx(store.value(mlp, "test/accuracy"))
    assert line["other"] == pytest.approx(store.value(nbsr, "test/accuracy"))
    assert line["difference"] == pytest.approx(store.value(mlp, "test/accuracy") - store.value(nbsr, "test/accuracy"))
    assert (line["how"], line["p"], line["low"], line["seeds"]) == ("few", None, None, 1)
    text = store.compare(nbsr.key, mlp.key)
    assert "one: mlp seed 1 against one: nbsr seed 1" in text
    assert f"{100 * store.value(mlp, 'test/accuracy'):.1f}%" in text
    assert "no test" in text
    assert "no seed and no figure" not in text


def test_other_seeds_of_one_model_are_compared_by_their_means_alone(store: Store) -> None:
    _, trials = store.study("one")
    first, second = (t for t in trials if t.label == "mlp" and t.seed in (0, 1))
    (line,) = [line for (_, _, figure), line in store.json(first.key, second.key).items() if figure == "accuracy"]
    assert (line["how"], line["p"], line["seeds"], line["verdict"]) == ("unpaired", None, 0, "not tested")
    assert "not the same test rows" in store.compare(first.key, second.key)


def test_studies_on_the_same_data_are_paired_seed_by_seed(store: Store) -> None:
    first, before = store.study("before")
    second, after = store.study("after", hidden=16)
    line = store.json(first, second)["mlp", "mlp", "accuracy"]
    later, earlier = (
        [store.value(t, "test/accuracy") for t in sorted(trials, key=lambda t: t.seed) if t.label == "mlp"]
        for trials in (after, before)
    )
    reference = stats.ttest_rel(later, earlier)
    assert line["p"] == pytest.approx(reference.pvalue)
    low, high = reference.confidence_interval(0.95)
    assert (line["low"], line["high"]) == pytest.approx((low, high))
    assert (line["how"], line["seeds"], line["over_samples"], line["reason"]) == ("paired", 4, None, None)
    judged = [found for found in store.json(first, second).values() if found["corrected_p"] is not None]
    smallest = min(found["p"] for found in judged if found["p"] is not None)
    assert min(found["corrected_p"] for found in judged) == pytest.approx(min(1, len(judged) * smallest))
    assert any(found["verdict"] == "equal" for found in judged), "NBSR is the same trial in both, and counts too"
    text = store.compare(first, second)
    assert "after against before" in text
    assert "paired t-test" in text
    assert "after against before" in (store.folder / "page.html").read_text()


def test_two_seeds_in_common_give_no_test(store: Store) -> None:
    first, _ = store.study("before")
    second, _ = store.study("after", hidden=16, seeds="[2, 3, 4, 5]")
    line = store.json(first, second)["mlp", "mlp", "accuracy"]
    assert (line["how"], line["seeds"], line["p"], line["verdict"]) == ("few", 2, None, "not tested")
    assert line["reason"] == "fewer than 3 common seeds"


def test_other_data_is_refused_with_what_differs(store: Store) -> None:
    first, _ = store.study("before")
    second, _ = store.study("after", more="data: {samples: 80}\n")
    said = " ".join(store.compare(first, second, exit_code=2).split())
    assert "not on the same data (data.samples: 80 and 160)" in said
    assert "nbsr report" in said

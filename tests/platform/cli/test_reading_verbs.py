"""Verbs that tell what was run leave the store as it is, byte for byte, and the database of a search too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.search.feed import SearchFeed
from nbsr_platform.study.study import Study
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from toys import store_uri
from typer.testing import CliRunner

STUDY = """
name: hunt
domain: iris
training: {epochs: 1}
models: {nbsr: {}}
search:
  model: nbsr
  trials: 3
  objectives: {valid/accuracy: maximize}
  sampler: {name: random, seed: 7}
  space: {training.learning_rate: {float: [1.0e-4, 1.0e-2], log: true}}
"""


@dataclass(frozen=True)
class Stored:
    """A folder with a study file and a store that holds some of its trials."""

    folder: Path
    url: str | None
    trial: str

    def run(self, verb: str, *words: str, exit_code: int = 0) -> str:
        storage = ["--storage", self.url] if self.url and verb in ("report", "compare") else []
        home = [] if verb in ("validate", "studies") else ["--home", str(self.folder / "home")]
        done = CliRunner().invoke(app, [verb, *words, *home, *storage])
        assert done.exit_code == exit_code, done.output
        return done.output

    def content(self) -> dict[str, bytes | None]:
        """Every file, and every folder, that the store and its database are made of."""
        found = sorted(self.folder.rglob("*"))
        return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture(scope="module", params=["journal", "sqlite"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    (folder / "hunt.yaml").write_text(STUDY)
    (folder / "other.yaml").write_text(STUDY.replace("name: hunt", "name: never_run"))
    url = f"sqlite:///{folder / 'optuna.db'}" if request.param == "sqlite" else None
    study, home = Study.load(folder / "hunt.yaml"), Home(folder / "home")
    fingerprint = data_fingerprint(study)
    feed = SearchFeed.open(study, study_key(study, fingerprint), fingerprint, home, url)
    key = ""
    for _ in range(2):
        trial = feed.next()
        assert trial is not None
        *_, result = run_trial(trial, "cpu")
        assert isinstance(result, TrialResult)
        feed.store.save(result)
        feed.done(trial, result)
        key = trial.key
    return Stored(folder, url, key)


def test_reading_leaves_everything_as_it_is(stored: Stored, tmp_path: Path) -> None:
    study, page = str(stored.folder / "hunt.yaml"), str(tmp_path / "page.html")
    before = stored.content()
    for verb, words in {
        "validate": [study],
        "plan": [study],
        "ls": [],
        "report": [study, "--out", page],
        "compare": [study, stored.trial, "--out", page],
        "explain": [stored.trial],
    }.items():
        said = stored.run(verb, *words)
        assert stored.content() == before, f"{verb} wrote: {said}"
    assert "hunt" in Path(page).read_text()


def test_runs_in_mlflow_are_read_and_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "flowers.yaml").write_text("name: flowers\ndomain: iris\ntraining: {epochs: 1}\nmodels: {nbsr: {}}\n")
    study, home = Study.load(tmp_path / "flowers.yaml"), Home(tmp_path / "home")
    store_uri(home.root)
    fingerprint, tracker = data_fingerprint(study), Tracker.open(home)
    (trial,) = grid(study, fingerprint)
    *_, result = run_trial(trial, "cpu")
    assert isinstance(result, TrialResult)
    ResultStore(home.trials).save(result)
    of_study = tracker.study_run(study, study_key(study, fingerprint))
    of_trial = tracker.record(of_study, trial, result, None, with_artifacts=False)
    stored = Stored(tmp_path, None, trial.key)
    page = tmp_path / "page.html"
    page.touch()
    before = stored.content()
    for verb, *words in (
        ["report", of_study, "--out", str(page)],
        ["report", of_trial, "--out", str(page)],
        ["compare", of_study, of_trial, "--out", str(page)],
        ["explain", of_trial],
        ["ls"],
    ):
        said = stored.run(verb, *words)
        page.write_bytes(b"")
        assert stored.content() == before, f"{verb} wrote: {said}"


def test_a_search_that_was_never_run_is_not_begun_by_asking_for_it(stored: Stored, tmp_path: Path) -> None:
    before = stored.content()
    said = stored.run("report", str(stored.folder / "other.yaml"), "--out", str(tmp_path / "page.html"), exit_code=2)
    assert "no trial of 'never_run'" in said
    assert stored.content() == before

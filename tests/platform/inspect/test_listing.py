"""What was run is found again: by `nbsr ls`, and by the name of its study."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.inspect.listing import listing
from nbsr_platform.inspect.named_trial import named_trial
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid
from processes import nbsr

from nbsr_core.errors import InputError

STUDY = """
name: flowers
domain: iris
seeds: 2
training: {epochs: 1}
models: {nbsr: {}, mlp: {}}
"""
WITHOUT_TORCH = """
import sys
from nbsr_platform.cli.app import app
try:
    app(["ls", "--json"])
except SystemExit:
    pass
assert not {"torch", "ray", "mlflow", "optuna"} & set(sys.modules), "imported"
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Home, list[Trial]]:
    """A folder with a study of which all but one trial are stored; that one failed."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "flowers.yaml").write_text(STUDY)
    study = Study.load(folder / "flowers.yaml")
    home, trials = Home(folder / ".nbsr"), grid(study, data_fingerprint(study))
    from nbsr_platform.trials.store import ResultStore

    for trial in trials[:-1]:
        *_, result = run_trial(trial, "cpu")
        ResultStore(home.trials).save(result)  # type: ignore[arg-type]
    log = home.log("flowers", trials[-1].key)
    log.parent.mkdir(parents=True)
    log.write_text(f"{trials[-1].name}\nTraceback\nValueError: no\n")
    return folder, home, trials


def test_a_home_lists_its_studies_and_trials(stored: tuple[Path, Home, list[Trial]]) -> None:
    _, home, trials = stored
    (study,) = listing(home)
    assert (study.name, study.domain, study.report) == ("flowers", "iris", None)
    found = {trial.key: trial for trial in study.trials}
    assert found.keys() == {trial.key for trial in trials}
    assert [found[trial.key].state for trial in trials] == ["finished"] * 3 + ["failed"]
    assert [(found[trial.key].model, found[trial.key].seed) for trial in trials[:3]] == [
        ("nbsr", 0),
        ("mlp", 0),
        ("nbsr", 1),
    ]
    assert 0 <= found[trials[0].key].figures["accuracy"] <= 1
    assert found[trials[-1].key].says == "ValueError: no"


def test_the_command_prints_a_table_or_one_document_and_needs_no_torch(
    stored: tuple[Path, Home, list[Trial]], tmp_path: Path
) -> None:
    folder, _, trials = stored
    text = nbsr("ls", cwd=folder).stdout
    assert "flowers" in text
    assert "3 finished, 1 failed" in text
    assert all(trial.key in text for trial in trials)
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [study["name"] for study in json.loads(done.stdout)] == ["flowers"]
    assert "nothing yet" in nbsr("ls", cwd=tmp_path).stdout


def test_what_cannot_be_read_is_listed_as_damaged(stored: tuple[Path, Home, list[Trial]], tmp_path: Path) -> None:
    place = tmp_path / "trials" / "0123456789abcdef"
    place.mkdir(parents=True)
    (place / "result.json").write_text("{")
    for name in ("fedcba9876543210", "finished"):
        (tmp_path / "checkpoints" / "0000111122223333" / name).mkdir(parents=True)
    (unknown,) = listing(Home(tmp_path))
    assert [(trial.key, trial.state) for trial in unknown.trials] == [
        ("0123456789abcdef", "damaged"),
        ("fedcba9876543210", "begun"),
    ]


def test_a_study_and_a_model_name_the_first_seed(
    stored: tuple[Path, Home, list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home, trials = stored
    monkeypatch.chdir(folder)
    for what in ("flowers", "flowers.yaml"):
        assert named_trial(home, what, None) == trials[0].key, "the only NBSR"
        assert named_trial(home, what, "mlp") == trials[1].key
        with pytest.raises(InputError, match=r"no model 'nbr'.*did you mean 'nbsr'.*mlp, nbsr"):
            named_trial(home, what, "nbr")
    assert named_trial(home, trials[2].key[:6], None) == trials[2].key[:6], "a key is a key"
    with pytest.raises(InputError, match=r"no study 'flower'.*did you mean 'flowers'"):
        named_trial(home, "flower", "nbsr")


def test_explain_takes_a_study(stored: tuple[Path, Home, list[Trial]]) -> None:
    folder, _, trials = stored
    done = nbsr("explain", "flowers", "--model", "nbsr", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trial"] == trials[0].key


@pytest.mark.parametrize(
    ("command", "looks"),
    [
        (
            ("plan", "flowers.yaml"),
            lambda found: found["trials"] == {"total": 4, "done": 3, "to_run": 1, "to_judge": 0},
        ),
        (("doctor",), lambda found: {"topic", "state", "says", "advice"} == found[0].keys()),
    ],
    ids=["plan", "doctor"],
)
def test_a_document_instead_of_a_text(
    stored: tuple[Path, Home, list[Trial]], command: tuple[str, ...], looks: Any
) -> None:
    folder, _, _ = stored
    done = nbsr(*command, "--json", cwd=folder)
    assert looks(json.loads(done.stdout)), done.stdout + done.stderr

"""What a search leaves behind: its promising members with further seeds, and each trial as a study of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from nbsr_platform.report.find import find
from nbsr_platform.report.html_page import page
from nbsr_platform.search.proposals import Proposal, promising
from nbsr_platform.study.study import Study
from nbsr_platform.tracking.rerun import write_study
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.as_study import study_text, study_values
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import data_fingerprint, grid
from processes import document, journal, nbsr, recorded
from toys import ToyStudy, store_uri

from nbsr_core.errors import InputError

SEARCH = """
name: hunt
domain: iris
seeds: 3
training: {epochs: 12, batch_size: 30}
models: {nbsr: {}}
search:
  trials: 8
  promising: 2
  objectives: {valid/accuracy: maximize, valid/nll: minimize}
  sampler: {name: random, seed: 7}
  pruner: none
  space:
    oracle_dim: {int: [4, 32]}
    training.learning_rate: {float: [1.0e-4, 3.0e-2], log: true}
    eta: frontier
"""


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("hunt")
    (folder / "hunt.yaml").write_text(SEARCH)
    store_uri(folder / ".nbsr")  # a new store takes long to make, and others look at that
    return folder, document(folder, "hunt.yaml")


def runs_of(result: dict[str, Any], condition: str) -> list[Any]:
    client = MlflowClient(result["tracking_uri"])
    experiment = client.get_run(result["run_id"]).info.experiment_id
    below = f"tags.`mlflow.parentRunId` = '{result['run_id']}'"
    return list(client.search_runs([experiment], f"{below} and {condition}"))


def test_only_the_promising_are_trained_with_further_seeds(hunt: tuple[Path, dict[str, Any]]) -> None:
    folder, result = hunt
    counts = result["trials"]
    assert counts["total"] == len(journal(folder).trials) == 8, "repetitions are no proposals"
    best = {tuple(trial.values): trial.number for trial in reversed(journal(folder).best_trials)}
    members = set(best.values())  # of those that tie, the first
    chosen = min(2, len(members))
    assert counts["repeated"] == 2 * chosen
    seeds: dict[str, set[str]] = {}
    for run in runs_of(result, "tags.`nbsr.status` = 'finished'"):
        seeds.setdefault(run.data.tags["nbsr.proposal"], set()).add(run.data.tags["nbsr.seed"])
    repeated = {number for number, known in seeds.items() if known == {"0", "1", "2"}}
    assert len(repeated) == chosen
    assert repeated <= {str(number) for number in members}
    assert all(known == {"0"} for number, known in seeds.items() if number not in repeated)
    rows = [row for row in result["table"] if row["config"] == f"#{next(iter(repeated))} deep"]
    assert rows[0]["n"] == 3
    assert rows[0]["metrics"]["accuracy"]["low"] is not None


def test_going_on_repeats_nothing(hunt: tuple[Path, dict[str, Any]]) -> None:
    folder, result = hunt
    before = recorded(result)
    again = document(folder, "hunt.yaml")
    assert again["trials"]["reused"] == result["trials"]["finished"]
    assert again["table"] == result["table"]
    assert recorded(again) == before


def test_a_member_becomes_a_study_that_finds_its_own_result(hunt: tuple[Path, dict[str, Any]]) -> None:
    folder, result = hunt
    members = runs_of(result, "tags.`nbsr.pareto` = 'true'")
    assert len(members) == len({tuple(trial.values) for trial in journal(folder).best_trials})
    drawn = runs_of(result, "tags.`nbsr.artifacts` = 'true'")
    assert len(drawn) == min(2, len(members)), "the promising stand for the others"
    assert {run.info.run_id for run in drawn} <= {run.info.run_id for run in members}
    run = members[0]
    done = document_of(folder, run.info.run_id)
    number = run.data.tags["nbsr.proposal"]
    assert done["study"] == f"hunt-{number}"
    assert done["trials"] == {"total": 1, "finished": 1, "reused": 1, "failed": 0, "pruned": 0}
    written = folder / ".nbsr" / "studies" / f"hunt-{number}.yaml"
    study = Study.load(written)
    (trial,) = grid(study, data_fingerprint(study))
    assert trial.key == run.data.tags["nbsr.trial_key"]
    artifact = MlflowClient(result["tracking_uri"]).download_artifacts(run.info.run_id, "study.yaml")
    assert Path(artifact).read_text() == written.read_text()
    more = document_of(folder, trial.key, "--set", "seeds=4")
    assert more["trials"]["total"] == 4
    assert more["trials"]["reused"] >= 1
    written.write_text(written.read_text().replace("epochs: 12", "epochs: 13"))
    refused = nbsr("run", "--from-trial", trial.key, cwd=folder)
    assert refused.returncode == 2
    assert "says something else" in refused.stderr
    assert "epochs: 13" in written.read_text(), "nobody's changes are lost"


def document_of(folder: Path, run: str, *more: str) -> dict[str, Any]:
    return document(folder, f"--from-trial={run}", *more)


def test_a_pruned_trial_can_be_run_to_its_end(tmp_path: Path) -> None:
    (trial,) = grid(Study.from_dict({"name": "cut", "domain": "toys:Toy", "models": {"mlp": {}}}), "0123456789abcdef")
    tracker = Tracker(store_uri(tmp_path), tmp_path / "artifacts")
    pruned = TrialResult(trial.key, "pruned", 1.0)
    run_id = tracker.record(tracker.study_run(ToyStudy(), "abc"), trial, pruned, None, with_artifacts=False)
    study = Study.load(write_study(Home(tmp_path), run_id))
    (again,) = grid(study, "0123456789abcdef")
    assert again.key == trial.key


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either a study file or --from-trial RUN"),
        (("hunt.yaml", "--from-trial", "abc"), "give either a study file or --from-trial RUN"),
        (("--from-trial", "0" * 32), f"no run {'0' * 32} in"),
        (("--from-trial", "nonsense"), "no trial 'nonsense' in"),
        (("--from-trial", "STUDY"), "is a whole study; name one of the members of its Pareto set: "),
    ],
)
def test_a_wrong_run_is_one_clear_error(
    hunt: tuple[Path, dict[str, Any]], arguments: tuple[str, ...], says: str
) -> None:
    folder, result = hunt
    named = [result["run_id"] if argument == "STUDY" else argument for argument in arguments]
    done = nbsr("run", *named, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_searchs_run_has_the_same_report_as_its_file(hunt: tuple[Path, dict[str, Any]]) -> None:
    folder, result = hunt
    home = Home.of(folder / ".nbsr")
    (by_run,) = find(home, result["run_id"])
    (by_file,) = find(home, str(folder / "hunt.yaml"))
    assert by_run.study == by_file.study
    assert by_run.proposals == by_file.proposals
    assert by_run.pareto == by_file.pareto
    assert len(by_run.finished) == len(by_file.finished)
    text = page([by_run], "t")
    assert "data-kind=parallel" in text
    assert "over seeds" in text
    assert "were trained with 3 seeds; best mean over seeds: valid/accuracy" in text


def test_the_promising_stand_for_the_whole_set() -> None:
    values = [[0.1, 9.0], [0.5, 4.9], [0.52, 5.0], [0.55, 5.1], [0.9, 10.0], [0.0, 0.0]]
    members = [Proposal(number, "COMPLETE", {}, value, "") for number, value in enumerate(values)]
    chosen = [proposal.number for proposal in promising(members, ["maximize", "minimize"], 3)]
    assert {4, 5} <= set(chosen), "the best in each objective"
    assert chosen == sorted(chosen)
    assert len(chosen) == 3
    assert promising(members, ["maximize", "minimize"], 9) == members
    assert [p.number for p in promising(members, ["maximize", "minimize"], 1)] == [4]


def test_the_file_of_a_trial_says_all_that_determines_it() -> None:
    values = {"name": "x" * 100, "domain": "toys:Toy", "seeds": [3], "models": {"nbsr": {"hidden": [16]}}}
    (trial,) = grid(Study.from_dict(values), "0123456789abcdef")
    trial = replace(trial, proposal=12)
    study = Study.from_dict(study_values([trial], "again", None))
    assert grid(study, trial.data_fingerprint)[0].key == trial.key
    assert f"name: {'x' * 97}-12\n" in study_text(trial)


def test_a_study_of_nobody_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no tracking store"):
        write_study(Home(tmp_path), "0" * 32)
    with pytest.raises(InputError, match="no trial 'abc'"):
        write_study(Home(tmp_path), "abc")

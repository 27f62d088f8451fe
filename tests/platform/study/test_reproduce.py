"""'How to reproduce' of a report tells the whole truth: command with all that was set, file and environment."""

from __future__ import annotations

import random
import shlex
from html import unescape
from pathlib import Path

import pytest
import yaml
from nbsr_platform.execution.study_run import StudyRun
from nbsr_platform.report import StudyResults, page
from nbsr_platform.report.find import find
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid

from benchmarks.report import made_up_result

STUDY = "name: one\ndomain: toys:Toy\nseeds: 2\nmodels: {nbsr: {}, mlp: {}}\n"
SETTINGS = ["training.epochs=7", "data.samples=80", "seeds=[3, 4]"]


def finished(home: Home, study: Study) -> StudyRun:
    """The study's part of a run that has ended."""
    ended_trials = EndedTrials()
    for trial in grid(study, data_fingerprint(study)):
        result = made_up_result(trial, random.Random(trial.seed))
        ResultStore(home.trials).save(result)
        ended_trials.add(trial, result)
    return StudyRun(study, "1", ended_trials=ended_trials)


def runs_again(study_results: StudyResults) -> Study:
    """The study that the command on the page runs."""
    text = unescape(page([study_results], "t"))
    shown = text.partition("How to reproduce</h3><pre>")[2].partition("</pre>")[0]
    words = shlex.split(shown, comments=True)
    assert words[:2] == ["nbsr", "run"]
    assert words[3::2] == ["--set"] * len(words[4::2])
    found = load(words[2], words[4::2])
    members = found.studies
    return next(member for member in members if member.name == study_results.study.name)


@pytest.mark.parametrize("which", ["study", "variants", "collection"])
def test_the_command_has_all_that_was_set(tmp_path: Path, which: str) -> None:
    home, path = Home(tmp_path / "home"), tmp_path / "one.yaml"
    path.write_text(
        STUDY + ("variants:\n  small: {}\n  large: {data.synthetic: false}\n" if which == "variants" else "")
    )
    if which == "collection":
        path = tmp_path / "all.yaml"
        path.write_text("name: all\ninclude: [one.yaml, two.yaml]\n")
        (tmp_path / "two.yaml").write_text(STUDY.replace("one", "two"))
    loaded = load(path, SETTINGS)
    studies = loaded.studies
    assert len(studies) == (1 if which == "study" else 2)
    at_the_end = [finished(home, study).study_results for study in studies]
    later = find(home, str(path), overrides=SETTINGS)
    for study, *all_results in zip(studies, at_the_end, later, strict=True):
        for study_results in all_results:
            assert runs_again(study_results) == study


def test_a_trial_by_its_key_has_the_file_with_every_override_in_it(tmp_path: Path) -> None:
    home, path = Home(tmp_path / "home"), tmp_path / "one.yaml"
    path.write_text(STUDY)
    study = Study.load(path, SETTINGS)
    ((trial, _), *_) = finished(home, study).study_results.finished
    (study_results,) = find(home, trial.key)
    text = unescape(page([study_results], "t"))
    assert "# with the study file below" in text
    below = yaml.safe_load(text.partition("every default spelled out</summary><pre>")[2].partition("</pre>")[0])
    assert below["data"]["samples"] == 80
    assert below["seeds"] == [trial.seed]
    assert below["models"]["nbsr"]["training"]["epochs"] == 7


def test_the_environment_of_the_results_is_told(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(STUDY)
    part = finished(Home(tmp_path / "home"), Study.load(path))
    for number, (_, result) in enumerate(part.ended_trials.finished.values()):
        result.environment |= {"torch": f"2.{number % 2}", "threads": "3", "kernels": "compiled", "commit": "abc"}
    text = page([part.study_results], "t")
    for name, value in {"torch": "2.0, 2.1", "threads": "3", "kernels": "compiled", "commit": "abc"}.items():
        assert f"<dt>{name}<dd>{value}" in text

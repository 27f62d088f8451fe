"""What a page can draw: all that shipped domains tell, and nothing that would end it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.report import page
from nbsr_platform.report.drawable import TABLES, drawable
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.study import Collection, load
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.stored_trial import trial_of
from nbsr_platform.trials.trial import data_fingerprint, grid
from toys import make_trial

from benchmarks.reliability.hostile.case import trained
from nbsr_core.errors import InputError

QUICKSTART = Path(__file__).parents[3] / "studies" / "quickstart.yaml"
DOMAINS = ("iris", "medical", "triage", "vision", "language", "navigation")


def small(domain: str) -> StudyResults:
    """The quickstart's first NBSR trial of a domain, trained for one epoch."""
    what = load(QUICKSTART, ["seeds=1", "training.epochs=1"])
    assert isinstance(what, Collection)
    study = next(study for study in what.studies if study.domain == domain)
    trial = next(trial for trial in grid(study, data_fingerprint(study)) if trial.family == "nbsr")
    result = list(run_trial(trial, "cpu"))[-1]
    assert isinstance(result, TrialResult)
    return StudyResults(study, [(trial, TrialResult.from_json(result.to_json()))], wanted=1)


@pytest.mark.parametrize("domain", DOMAINS)
def test_all_that_a_shipped_domain_tells_is_drawn(domain: str) -> None:
    study_results = small(domain)
    ((_, result),) = study_results.finished
    assert drawable(result) == (result, [])
    assert any(result.tables.get(name) for name in TABLES)
    assert "not drawn" not in page([study_results], "page")


def test_what_cannot_be_drawn_is_left_out_and_named() -> None:
    study_results = small("iris")
    ((trial, result),) = study_results.finished
    tables: dict[str, list[dict[str, Any]]] = {**result.tables, "usage": [{"node": "a", "level": "top", "share": 1.0}]}
    audits = [*result.audits, {"sample": 3, "steps": "none"}]
    wrong = replace(result, tables=tables, audits=audits)
    kept, left_out = drawable(wrong)
    assert left_out == ["usage", "audits"]
    assert kept.audits == result.audits
    text = page([replace(study_results, finished=[(trial, wrong)])], "page")
    assert f"({trial.key}) is stored with unreadable usage, audits: not drawn" in text


def test_a_table_without_a_column_or_with_a_number_that_is_none() -> None:
    result = trained()
    row = result.tables["risk_coverage"][0]
    for broken in ({"score": "x", "coverage": 1.0}, {**row, "risk": float("nan")}, {**row, "risk": 10**400}):
        assert drawable(replace(result, tables={**result.tables, "risk_coverage": [broken]}))[1] == ["risk_coverage"]


def test_answers_that_cannot_be_unpacked_are_left_out() -> None:
    result = trained()
    (row, *_) = result.tables["samples"]
    for broken in ({**row, "nll": "?"}, {**row, "count": 10**9}, {**row, "right": 3}):
        assert drawable(replace(result, tables={**result.tables, "samples": [broken]}))[1] == ["samples"]


def test_a_trial_whose_proposal_is_no_number_is_refused() -> None:
    trial = make_trial()
    stored = TrialResult(trial.key, "finished", 1.0, trial={**asdict(trial), "proposal": [1]})
    with pytest.raises(InputError, match="stored with proposal of a wrong kind"):
        trial_of(stored)

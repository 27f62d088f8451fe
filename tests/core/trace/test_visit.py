"""One visit of a walk: the same numbers in an audit trail, in an explanation and in what is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nbsr_core.trace.audit import AuditStep, AuditTrail
from nbsr_core.trace.visit import Amount, Feature

NAMES = ["ash", "birch", "cedar", "elm"]


@pytest.fixture
def step() -> AuditStep:
    before, evidence = torch.ones(4), torch.tensor([0.0, 6.0, 2.0, 0.0])
    return AuditStep(
        depth=1,
        node="leaves",
        route_probability=0.75,
        alternatives={"bark": 0.25, "leaves": 0.75},
        before=before,
        evidence=evidence,
        alpha=before + evidence,
        temperature=None,
        belief_shift=1.5,
        entropy=-2.0,
        vacuity=1 / 3,
    )


def test_a_visit_has_what_was_measured_by_the_names_of_the_classes(step: AuditStep) -> None:
    visit = step.visit(NAMES, top=2)
    assert visit.evidence == (Amount("birch", 6.0), Amount("cedar", 2.0))
    assert [amount.name for amount in visit.belief] == ["birch", "cedar"]
    assert visit.prediction == "birch"
    assert visit.confidence == pytest.approx(7 / 12)
    assert [entry.name for entry in visit.ledger] == ["birch", "cedar", "2 others"]
    assert sum(entry.alpha for entry in visit.ledger) == visit.precision == 12


def test_a_prediction_among_equals_is_the_same_everywhere(step: AuditStep) -> None:
    undecided = replace(step, evidence=torch.zeros(4), alpha=torch.ones(4))
    visit = undecided.visit(NAMES, top=2)
    assert NAMES[undecided.prediction] == visit.prediction == visit.ledger[0].name == "ash"


def test_the_row_of_a_stored_visit_keeps_its_keys(step: AuditStep) -> None:
    """Stored results and the report's page hold these."""
    row = step.visit(NAMES, top=2).to_row()
    assert list(row) == [
        *("node", "route_probability", "alternatives", "evidence", "belief", "ledger", "precision", "temperature"),
        *("belief_shift", "entropy", "vacuity", "measures", "prediction", "confidence"),
    ]
    assert row["alternatives"] == {"leaves": 0.75, "bark": 0.25}
    assert row["evidence"] == {"birch": 6.0, "cedar": 2.0}
    assert list(row["ledger"][0]) == ["name", "before", "evidence", "alpha", "expected", "calibrated"]


def test_text_of_a_visit(step: AuditStep) -> None:
    visit = step.visit(NAMES, top=2)
    ledger = visit.ledger_lines()
    assert ledger[0].split() == ["before", "+", "evidence", "=", "alpha", "/", "12.00"]
    assert ledger[1].split() == ["birch", "1.00", "+6.00", "7.00", "58.3%"]
    brief, explained = list(visit.lines()), list(replace(visit, consulted=False, features=FEATURES).explained_lines())
    assert brief[0] == "1. leaves  (route p=0.75)"
    assert brief[-1].split() == ["prediction", "birch", "(58.3%)"]
    assert explained[0] == "1. leaves   [not asked after the exit]"
    assert explained[1].split() == ["route", "p", "=", "0.750;", "others:", "bark", "0.250"]
    assert explained[-1].split() == ["features", "colour", "(=", "0.5)", "+2"]
    assert set(ledger) <= set(brief)
    assert set(ledger) <= set(explained)
    assert "\n".join(brief) in AuditTrail(torch.ones(4), (step,)).render(NAMES, top=2)


FEATURES = (Feature("colour", 0.5, None, 2.0),)

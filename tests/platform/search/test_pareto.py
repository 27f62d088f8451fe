"""A search ends with its answer: each member of the Pareto set with its parameters and the command that runs it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from nbsr_platform.execution.run_result import RunResult
from nbsr_platform.execution.study_run import StudyRun
from nbsr_platform.report import StudyResults, page, pareto
from nbsr_platform.report.verdicts import answer
from nbsr_platform.trials.ended_trials import EndedTrials

from benchmarks.report import made_up_result, made_up_search


@pytest.fixture
def searched() -> StudyResults:
    """A search of 20 proposals, two of them in the Pareto set, one of these trained with three seeds."""
    found = made_up_search(20, random.Random(0))
    trial, _ = found.finished[10]
    again = [replace(trial, seed=seed) for seed in (101, 102)]
    repeats = [(each, made_up_result(each, random.Random(each.seed))) for each in again]
    return replace(found, finished=[*found.finished, *repeats])


def test_every_member_has_its_parameters_and_its_command(searched: StudyResults) -> None:
    proposals = {proposal.number: proposal for proposal in searched.proposals}
    first, second = pareto.members(searched)
    assert [first.number, second.number] == list(searched.pareto) == [0, 10]
    for member in (first, second):
        proposal = proposals[member.number]
        assert member.key == proposal.key
        assert member.parameters == proposal.parameters
        assert list(member.objectives.values()) == list(proposal.values)
        text = "\n".join(pareto.lines(searched))
        assert f"nbsr run --from-trial {proposal.key}" in text
        assert (
            f"lambda = {proposal.parameters['lambda']:.4g}, graph.width = {proposal.parameters['graph.width']}" in text
        )
    assert (first.seeds, second.seeds) == (1, 3)
    assert not first.means


def test_json_has_the_pareto_set(searched: StudyResults, tmp_path: Path) -> None:
    ended_trials = EndedTrials()
    for trial, result in searched.finished:
        ended_trials.add(trial, result)
    part = StudyRun(
        searched.study, "1", ended_trials=ended_trials, pareto=list(searched.pareto), proposals=list(searched.proposals)
    )
    plain = RunResult("made-up", "sqlite://", tmp_path / "r.html", [part]).to_json()
    told = plain["pareto"][searched.study.name]
    assert [member["proposal"] for member in told] == [0, 10]
    assert told[1]["parameters"].keys() == {"lambda", "graph.width"}
    assert told[1]["command"] == f"nbsr run --from-trial {told[1]['key']}"
    assert told[1]["seeds"] == 3


def test_the_page_shows_all_parameters_and_its_answer_names_them(searched: StudyResults) -> None:
    best = max(searched.proposals, key=lambda proposal: proposal.values[0])
    told = answer(searched)[1]
    assert f"(#{best.number} with lambda = {best.parameters['lambda']:.4g}, graph.width = " in told
    text = page([searched], "t")
    for member in pareto.members(searched):
        cell = "".join(f"<span>{setting}</span> " for setting in member.settings)
        assert f"<td class=settings>{cell}" in text, "in one cell that is wrapped, beside the number"


def test_a_study_that_is_no_search_has_no_pareto_set(searched: StudyResults) -> None:
    assert pareto.members(replace(searched, study=replace(searched.study, search=None))) == []

"""Depth earns its place, or the report says that it does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from kept_answers import flags, judged, results
from nbsr_platform.report.depths import deeper, depth_rows
from nbsr_platform.report.html_page import page
from nbsr_platform.report.study_results import StudyResults
from scipy import stats

from benchmarks.report import made_up_result


def walks(first: Sequence[int], last: Sequence[int], exits: int = 120) -> StudyResults:
    """NBSR that is wrong so often at depth 1 and at its end, seed by seed; the last samples, right ones, exit early."""
    study = results({"nbsr": [flags(wrong) for wrong in last]})
    for (_, result), wrong in zip(study.finished, first, strict=True):
        judged(result, flags(wrong), "depth1")
        early = torch.arange(200) >= 200 - exits
        judged(result, flags(wrong), "fast", early=early)
        result.metrics |= {"depth2/nll": result.metrics["test/nll"], "depth2/accuracy": result.metrics["test/accuracy"]}
    return study


def test_what_the_last_depth_adds_is_decided_seed_by_seed() -> None:
    study = walks([60, 64, 61, 66], [21, 25, 20, 23])
    (found,) = deeper(study)
    first, last = ([result.metrics[f"depth{n}/nll"] for _, result in study.finished] for n in (1, 2))
    reference = stats.ttest_rel(last, first)
    assert (found.gap.interval.low, found.gap.interval.high) == pytest.approx(reference.confidence_interval(0.95))
    assert found.gap.rests_on == "4 seeds, 200 samples"
    assert found.text.startswith(f"nbsr: depth 2 over depth 1: NLL {found.gap.text}, decided (corrected p = ")
    assert "samples that go deeper are harder: accuracy at depth 1 100.0% of those that exit there" in found.text
    assert f"{100 * (1 - (60 + 64 + 61 + 66) / 4 / 80):.1f}% of those that go on" in found.text
    text = page([study], "t")
    assert found.text in text
    assert "<h3>Depth</h3>" in text


def test_where_the_end_is_no_better_depth_adds_nothing() -> None:
    for last in ([60, 64, 61, 66], [61, 63, 60, 67], [90, 95, 91, 99]):
        (found,) = deeper(walks([60, 64, 61, 66], last))
        assert found.gap.interval.high >= 0
        assert found.text.startswith("nbsr: depth adds nothing; depth 2 over depth 1: NLL ")


def test_so_few_seeds_decide_nothing() -> None:
    (found,) = deeper(walks([60], [21]))
    assert "1 seed: too few for a test" in found.text
    assert "decided" not in found.text


def test_with_more_than_two_depths_every_step_is_said() -> None:
    study = walks([60, 64, 61, 66], [21, 25, 20, 23])
    for (_, result), wrong in zip(study.finished, [40, 43, 41, 45], strict=True):
        result.metrics["depth3/nll"] = result.metrics["depth2/nll"]
        judged(result, flags(wrong), "depth2")
    (found,) = deeper(study)
    by_depth = [[result.metrics[f"depth{n}/nll"] for _, result in study.finished] for n in (1, 2, 3)]
    for step, (before, after) in zip(found.steps, pairwise(by_depth), strict=True):
        bounds = stats.ttest_rel(after, before).confidence_interval(0.95)
        assert (step.interval.low, step.interval.high) == pytest.approx(bounds)
    assert f"from depth 1 to 2 {found.steps[0].text}, 2 to 3 {found.steps[1].text}" in found.text


def test_of_a_handful_of_samples_that_go_on_nothing_is_said() -> None:
    (found,) = deeper(walks([60, 64, 61], [21, 25, 20], exits=195))
    assert "2.50% of the samples go deeper, too uneven a part to tell whether they are harder" in found.text


def test_where_all_walks_end_alike_nothing_is_said_of_who_goes_on() -> None:
    for exits in (0, 200):
        (found,) = deeper(walks([60, 64, 61], [21, 25, 20], exits))
        assert found.harder is None
        assert "harder" not in found.text


def test_every_depth_is_a_line_of_the_table() -> None:
    rows = depth_rows(walks([60, 64, 61, 66], [21, 25, 20, 23]))
    assert [row[:2] for row in rows] == [["nbsr deep", "1"], ["nbsr deep", "2"]]
    assert rows[0][2].startswith(f"{100 * (1 - (60 + 64 + 61 + 66) / 4 / 200):.1f}%")
    assert rows[0][4] == "-", "a figure that is not there"


def test_results_without_depths_or_without_answers_have_a_page() -> None:
    study = walks([60, 64, 61], [21, 25, 20])
    for _, result in study.finished:
        del result.tables["samples"]
    (found,) = deeper(replace(study))
    assert found.gap.rests_on == "3 seeds"
    assert found.harder is None
    plain = replace(study, finished=[(t, made_up_result(t, random.Random(t.seed))) for t, _ in study.finished])
    assert deeper(plain) == []
    assert "<h3>Depth</h3>" not in page([plain], "t")

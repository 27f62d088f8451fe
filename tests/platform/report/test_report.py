"""Reports say what the results say: who wins, who falls short, and what cannot be told."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.report import StudyResults, charts, page
from nbsr_platform.report.differences import difference
from nbsr_platform.report.find import find
from nbsr_platform.report.markdown_page import markdown
from nbsr_platform.report.searches import importances
from nbsr_platform.report.verdicts import answer
from nbsr_platform.search.proposals import Proposal
from nbsr_platform.study.paper import Paper
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from scipy import stats
from typer.testing import CliRunner

from benchmarks.report import made_up_result, made_up_search, made_up_study
from nbsr_core.errors import InputError

MARKUP = "</script><script>window.pwned = 1</script><img src=x onerror=window.pwned=1>"
STUDY = """
name: toy-study
question: Who sorts clouds best?
domain: toys:Toy
seeds: 4
models: {nbsr: {}, mlp: {}}
"""


def made_up_results(accuracy: dict[str, list[float]], **more: Any) -> StudyResults:
    """A study of NBSR and an MLP whose accuracies are given, seed by seed."""
    study = Study.from_dict(
        {
            "name": "toy-study",
            "domain": "toys:Toy",
            "seeds": max(map(len, accuracy.values())),
            "models": {label: {} for label in accuracy},
        }
    )
    finished = []
    for trial in grid(study, "none"):
        if trial.seed < len(accuracy[trial.label]):
            result = made_up_result(trial, random.Random(trial.seed))
            value = accuracy[trial.label][trial.seed]
            result.metrics["test/accuracy"] = value
            if trial.family == "nbsr":
                result.metrics["fast/accuracy"] = value - 0.01
            finished.append((trial, result))
    return replace(StudyResults(study, finished, wanted=len(finished), command="nbsr run toy.yaml"), **more)


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = [0.90, 0.95, 0.85, 0.91], [0.91, 0.97, 0.855, 0.935]
    found = {line.name: line for line in made_up_results({"nbsr": ours, "mlp": theirs}).lines}
    assert list(found) == ["nbsr deep", "nbsr fast", "mlp"]
    gap = difference(found["nbsr deep"], found["mlp"], "accuracy")
    assert gap is not None
    reference = stats.ttest_1samp([a - b for a, b in zip(ours, theirs, strict=True)], 0)
    low, high = reference.confidence_interval(0.95)
    assert gap.p == pytest.approx(reference.pvalue)
    assert (gap.interval.low, gap.interval.high) == pytest.approx((low, high))
    assert gap.verdict == "worse"
    fast = difference(found["nbsr fast"], found["mlp"], "accuracy")
    assert fast is not None
    assert fast.interval.estimate == pytest.approx(gap.interval.estimate - 0.01)


def test_a_baseline_that_can_stop_early_has_a_line_for_it() -> None:
    study = made_up_results({"nbsr": [0.9], "mlp": [0.9]})
    for trial, result in study.finished:
        if trial.label == "mlp":
            result.metrics["fast/accuracy"] = 0.8
    assert [row.name for row in study.rows] == ["nbsr deep", "nbsr fast", "mlp deep", "mlp fast"]


def test_a_study_with_a_reference_compares_all_others_with_it() -> None:
    study = made_up_results({"nbsr": [0.90, 0.95, 0.85, 0.91], "mlp": [0.99, 0.99, 0.98, 0.99], "xgboost": [0.5] * 4})
    study = replace(study, study=replace(study.study, reference="mlp"))
    pairs = {(gap.line, gap.other) for gap in study.comparisons}
    assert pairs == {("nbsr deep", "mlp"), ("xgboost", "mlp")}
    _, winner, verdicts, *_ = answer(study)
    assert winner.startswith("Best accuracy: mlp")
    assert "Reference" not in winner
    assert "Worse than mlp: " in verdicts
    assert "xgboost in accuracy (against mlp)" in verdicts
    assert "Each model minus mlp over common seeds" in markdown([study], "toy", made_by="a test")


def test_less_error_is_better_and_more_seeds_of_one_do_not_count() -> None:
    study = made_up_results({"nbsr": [0.9] * 4, "mlp": [0.9] * 3})
    for trial, result in study.finished:
        result.metrics["test/ece"] = 0.01 + trial.seed / 1e4 + (0.05 if trial.label == "mlp" else 0)
    deep, _, mlp = study.lines
    gap = difference(deep, mlp, "ece")
    assert gap is not None
    assert gap.seeds == 3
    assert gap.verdict == "better"
    equal = difference(deep, mlp, "accuracy")
    assert equal is not None
    assert (equal.verdict, equal.p) == ("equal", None)


@pytest.mark.parametrize(
    ("accuracy", "says"),
    [
        ({"nbsr": [0.80, 0.81, 0.79], "mlp": [0.90, 0.912, 0.89]}, "NBSR falls short: nbsr deep in accuracy"),
        ({"nbsr": [0.95, 0.96, 0.94], "mlp": [0.90, 0.912, 0.89]}, "NBSR is ahead: nbsr deep in accuracy"),
        ({"nbsr": [0.95, 0.85, 0.91], "mlp": [0.90, 0.91, 0.90]}, "are not decided by these seeds"),
        ({"nbsr": [0.95], "mlp": [0.90]}, "over 1 common seed, too few for a test"),
        ({"nbsr": [0.95, 0.96], "mlp": [0.90, 0.91]}, "over 2 common seeds, too few for a test"),
        ({"mlp": [0.90, 0.91]}, "No NBSR model in this study"),
    ],
)
def test_the_answer_is_computed(accuracy: dict[str, list[float]], says: str) -> None:
    told = answer(made_up_results(accuracy))
    assert len(told) == 3
    assert says in " ".join(told)
    assert ("falls short: " in told[2]) == ("falls short: " in says), told[2]


def test_so_few_seeds_give_no_interval_and_the_page_says_so() -> None:
    two = page([made_up_results({"nbsr": [0.7, 0.9], "mlp": [0.5, 0.99]})], "t")
    assert "2 seeds: too few for an interval (3 give one): means only." in two
    assert "2 seeds: too few for a test" in two
    assert "80.0%" in two
    assert "±" not in two.partition("<script")[0]
    three = page([made_up_results({"nbsr": [0.7, 0.9, 0.99], "mlp": [0.5, 0.99, 1.0]})], "t")
    assert "too few for an interval" not in three
    deep = next(row for row in made_up_results({"nbsr": [0.7, 0.9, 0.99], "mlp": [0.9]}).rows if row.config == "deep")
    bounds = deep.metrics["accuracy"]
    assert f"86.3%<small>({100 * bounds.low:.1f}–{100 * bounds.high:.1f})</small>" in three
    assert 0 < bounds.low < bounds.high < 1


def test_missing_and_failed_trials_are_told() -> None:
    text = page(
        [made_up_results({"nbsr": [0.9], "mlp": [0.9]}, wanted=6, failed=[("mlp seed 1", "out of <memory>")])], "t"
    )
    assert "3 of 6 trials are not done" in text
    assert "mlp seed 1 failed: out of &lt;memory&gt;" in text
    assert "No trial is finished" in page([made_up_results({"nbsr": [0.9], "mlp": [0.9]}, finished=[], wanted=2)], "t")


def test_the_papers_figures_stand_beside_ours() -> None:
    known = made_up_results({"nbsr": [0.9, 0.91], "mlp": [0.9, 0.92]})
    assert "<small>paper" not in page([known], "t")
    paper = Paper("a table <somewhere>", {"nbsr deep": {"accuracy": 0.9762}})
    text = page([replace(known, study=replace(known.study, paper=paper))], "t")
    assert text.count("<small>paper 97.6%</small>") == 1
    assert "paper: a table &lt;somewhere&gt;" in text


def test_names_cannot_become_markup() -> None:
    known = made_up_results({"nbsr": [0.9, 0.91], "mlp": [0.9, 0.92]})
    for _, result in known.finished:
        result.data["source"] = MARKUP
        result.warnings = [MARKUP]
        for audit in result.audits:
            audit["true"] = audit["steps"][0]["node"] = MARKUP
        for row in result.tables.get("usage", []):
            row["node"] = MARKUP
    text = page([replace(known, study=replace(known.study, question=MARKUP), failed=[(MARKUP, MARKUP)])], MARKUP)
    assert "pwned" in text
    assert "<script>window.pwned" not in text
    assert "<img" not in text


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r"<script type=application/json id=data>(.*?)</script>", text, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_page_needs_nothing_else() -> None:
    text = page([made_up_results({"nbsr": [0.9, 0.91], "mlp": [0.9, 0.92]}), made_up_search(12, random.Random(0))], "t")
    without_data = re.sub(r"<script type=application/json id=data>.*?</script>", "", text, flags=re.DOTALL)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", without_data))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a namespace, which nobody fetches"
    assert not re.search(r"@import|url\(|<link rel=stylesheet|src=", without_data)
    kinds = set(re.findall(r"<figure data-kind=(\w+)", text))
    assert kinds == {
        *("frontier", "reliability", "risk", "belief", "entropy", "usage", "walks", "training"),
        *("parallel", "history", "importance"),
    }
    assert set(re.findall(r"data-of=(\w+)", text)) == embedded(text).keys()


@pytest.mark.parametrize("kind", ["grid", "search"])
def test_the_page_of_a_large_study_stays_small(kind: str) -> None:
    chance = random.Random(0)
    if kind == "search":
        large = made_up_search(500, chance)
    else:
        study = made_up_study(500, search=False)
        large = StudyResults(
            study, [(trial, made_up_result(trial, chance)) for trial in grid(study, "none")], wanted=500
        )
    text = page([large], "large")
    assert len(text.encode()) < 8e6
    frontier = embedded(text)["d0"]
    assert sum(len(trial["points"]) for model in frontier["models"] for trial in model["trials"]) <= 6500
    if kind == "grid":
        assert {len(model["trials"]) for model in frontier["models"]} == {250}


def test_importance_finds_what_matters() -> None:
    chance = random.Random(1)
    proposals = []
    for number in range(120):
        parameters: dict[str, Any] = {"matters": chance.random(), "noise": chance.random(), "kind": chance.choice("ab")}
        if parameters["kind"] == "a":
            parameters["only with a"] = chance.random()
        value = 3 * parameters["matters"] + (parameters["kind"] == "a") + chance.gauss(0, 0.2)
        proposals.append(Proposal(number, "COMPLETE", parameters, [value], str(number)))
    found = {item["name"]: item for item in importances(proposals, ["noise", "matters", "kind", "only with a"], 0)}
    assert next(iter(found)) == "matters"
    assert found["matters"]["low"] > 0.5
    assert found["kind"]["low"] > found["noise"]["share"]
    assert found["noise"]["share"] < 0.1
    assert found["only with a"]["count"] < 120
    for item in found.values():
        assert 0 <= item["low"] <= item["high"] <= 1
    assert importances(proposals[:5], ["noise"], 0) == []


def test_the_band_of_a_parameter_that_does_nothing_reaches_zero() -> None:
    chance = random.Random(2)
    apart = 0
    for _ in range(60):
        proposals = [
            Proposal(number, "COMPLETE", {"idle": chance.random()}, [chance.gauss(0, 1)], "") for number in range(50)
        ]
        (found,) = importances(proposals, ["idle"], 0)
        apart += found["low"] > 0
    assert apart <= 8, "a 95% band leaves it out in about 2 of 60 cases"


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Home, Study]:
    """A study file, and a store with all its trials but one."""
    path = tmp_path / "toy.yaml"
    path.write_text(STUDY)
    study, home = Study.load(path), Home(tmp_path / "home")
    for trial in grid(study, data_fingerprint(study))[:-1]:
        ResultStore(home.trials).save(made_up_result(trial, random.Random(trial.seed)))
    return path, home, study


def test_a_study_is_found_by_its_file_and_a_trial_by_its_key(stored: tuple[Path, Home, Study]) -> None:
    path, home, study = stored
    (found,) = find(home, str(path))
    assert found.study == study
    assert len(found.finished) == 7
    assert "1 of 8 trials are not done: figures will change" in found.notes
    trial = found.finished[0][0]
    (alone,) = find(home, trial.key)
    assert [member.key for member, _ in alone.finished] == [trial.key]
    assert "No baseline in this study" in answer(alone)[2]


def test_what_is_not_stored_is_one_clear_error(stored: tuple[Path, Home, Study]) -> None:
    path, home, _ = stored
    with pytest.raises(InputError, match=r"no trial of 'toy-study'.*nbsr run .*toy.yaml"):
        find(home, str(path), overrides=["training.epochs=77"])
    with pytest.raises(InputError, match="no trial 'nonsense'"):
        find(home, "nonsense")
    with pytest.raises(InputError, match="no tracking store"):
        find(home, "0" * 32)


def test_the_commands_write_one_file(stored: tuple[Path, Home, Study], tmp_path: Path) -> None:
    path, home, _ = stored
    run = CliRunner()
    done = run.invoke(app, ["report", str(path), "--home", str(home.root)])
    assert done.exit_code == 0, done.output
    written = home.report("toy-study")
    assert str(written) in done.output.replace("\n", "")
    assert "Who sorts clouds best?" in written.read_text()
    other = tmp_path / "other.yaml"
    other.write_text(STUDY.replace("toy-study", "again"))
    done = run.invoke(
        app, ["compare", str(path), str(other), "--home", str(home.root), "--out", str(tmp_path / "c.html")]
    )
    assert done.exit_code == 0, done.output
    text = (tmp_path / "c.html").read_text()
    assert "again against toy-study" in text
    assert "= equal" in text, "the same trials under two names"
    done = run.invoke(app, ["report", str(tmp_path / "missing.yaml"), "--home", str(home.root)])
    assert done.exit_code == 2
    assert "missing.yaml" in done.output


def test_a_result_of_an_older_version_still_has_a_page() -> None:
    known = made_up_results({"nbsr": [0.9, 0.91], "mlp": [0.9, 0.92]})
    old = []
    for trial, result in known.finished:
        tables = {name: rows for name, rows in result.tables.items() if name in ("frontier", "reliability", "usage")}
        audits = [{name: audit[name] for name in ("sample", "true", "predicted", "steps")} for audit in result.audits]
        old.append((trial, TrialResult.from_json(replace(result, tables=tables, audits=audits).to_json())))
    assert "data-kind=walks" in page([replace(known, finished=old)], "t")


def test_the_answer_says_what_is_not_known() -> None:
    known = made_up_results({"nbsr": [0.9, 0.91, 0.92], "mlp": [0.9, 0.92, 0.91]})
    assert not any("I don't know" in line for line in answer(known))
    for trial, result in known.finished:
        if trial.label == "nbsr":
            result.metrics |= {"test/coverage": 0.95, "test/error_answered": 0.04, "ood/letters/auroc": 0.97}
    told = answer(replace(known))[-1]
    assert "nbsr deep answers 95.0% of the test samples and is wrong in 4.0% of these (in 9.0% if it had" in told
    assert "AUROC ood/letters 0.970" in told


def test_a_collection_begins_with_its_question_and_what_each_study_found() -> None:
    one, other = made_up_results({"nbsr": [0.9], "mlp": [0.8]}), made_up_search(12, random.Random(0))
    text = page([one, other], "all", question="Does it keep <up>?")
    summary = text.partition("<section id=summary>")[2].partition("</section>")[0]
    assert "<p class=question>Does it keep &lt;up&gt;?</p>" in summary
    assert "<a href=#study0>toy-study</a>: Best accuracy: nbsr deep" in summary
    assert "<a href=#study1>made-up</a>: 2 of them are beaten by no other" in summary
    assert text.count("<details class=more>") == 2, "plots of each study are folded away"
    alone = page([one], "alone")
    assert "id=summary" not in alone
    assert "<details class=more>" not in alone


def test_training_has_every_seed_of_every_model() -> None:
    known = made_up_results({"nbsr": [0.9, 0.91], "mlp": [0.9, 0.92]})
    for trial, result in known.finished:
        result.epochs = [{"train/nll": 1.0, "valid/nll": 1 / (epoch + trial.seed + 1)} for epoch in range(4)]
    drawn = [charts.training(group) for group in known.groups]
    for curves in drawn:
        assert curves is not None
        for name, seeds in curves["seeds"].items():
            assert name.startswith("valid/")
            assert len(seeds) == 2
            means = [(one + other) / 2 for one, other in zip(*seeds, strict=True)]
            assert means == pytest.approx(curves["curves"][name])
    assert all(curves and curves["seeds"] for curves in drawn)

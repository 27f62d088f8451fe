"""What stands in the comparison beside the trained models: published figures, the ceiling; and variants of a study."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from nbsr_platform.cli.run import comparison
from nbsr_platform.execution.run_result import RunResult
from nbsr_platform.execution.study_run import StudyRun
from nbsr_platform.report.summary import figures_csv, study_metrics, summarise
from nbsr_platform.study.paper import Paper
from nbsr_platform.study.study import Collection, Study, StudyError, load
from nbsr_platform.trials.ended_trials import EndedTrials
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial
from rich.console import Console
from toys import make_trial

BASE = """\
name: med
domain: medical
models:
  nbsr: {}
  mlp: {hidden: [8]}
"""
PAPER = """\
paper:
  source: Table 4, one seed
  figures:
    mlp: {accuracy: 0.9762, ece: 0.016}
    nbsr deep: {accuracy: 0.9762}
    nbsr fast: {accuracy: 0.9762, mean_depth: 1}
"""


def written(folder: Path, text: str, name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def complaints(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(StudyError) as error:
        load(written(folder, text), overrides)
    return str(error.value).replace(f"{folder}/", "").splitlines()


def ended(kind: str, seed: int, **metrics: float) -> tuple[Trial, TrialResult]:
    trial = make_trial(kind, seed, study="med")
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return trial, TrialResult(trial.key, "finished", 1.0, metrics=named, data={"synthetic": True})


OUTCOMES = [
    ended("nbsr", 0, test__accuracy=0.9, fast__accuracy=0.8, ceiling__test__accuracy=0.98, ceiling__far__ece=0.1),
    ended("mlp", 0, test__accuracy=0.7, far__accuracy=0.6, ceiling__test__accuracy=0.98, ceiling__far__ece=0.1),
    ended("mlp", 1, test__accuracy=0.9, far__accuracy=0.6, ceiling__test__accuracy=0.96, ceiling__far__ece=0.3),
]


class TestPublishedFigures:
    def test_they_are_read_and_written_back(self, tmp_path: Path) -> None:
        study = Study.load(written(tmp_path, BASE + PAPER))
        assert study.paper is not None
        assert study.paper.source == "Table 4, one seed"
        assert study.paper.of("nbsr", "fast") == {"accuracy": 0.9762, "mean_depth": 1.0}
        assert study.paper.of("mlp", "") == {"accuracy": 0.9762, "ece": 0.016}
        assert study.paper.of("xgboost", "") == {}
        assert Study.from_dict(study.to_dict()) == study
        assert "paper" not in Study.load(written(tmp_path, BASE)).to_dict()

    @pytest.mark.parametrize(
        ("part", "message"),
        [
            ("paper: {source: S, figures: {nbsr: {ece: 1}}}", "paper.figures.nbsr: no such line in the comparison"),
            ("paper: {source: S, figures: {mpl: {ece: 1}}}", "did you mean 'mlp'? allowed: nbsr deep, nbsr fast, mlp"),
            ("paper: {source: S, figures: {mlp: {ece: low}}}", "paper.figures.mlp.ece: expected a finite number"),
            ("paper: {source: ' ', figures: {}}", "paper.source: expected text that says where the figures stand"),
            ("paper: {figures: {}}", "paper.source: is missing"),
            (
                "paper: {source: S, figures: {}}\nsearch: {trials: 2, model: nbsr, objectives: {valid/ece: minimize}, "
                "space: {lambda: {float: [0, 1]}}}",
                "paper: has no place beside a search",
            ),
        ],
    )
    def test_what_is_wrong_with_them_is_said(self, tmp_path: Path, part: str, message: str) -> None:
        lines = complaints(tmp_path, f"{BASE}{part}\n")
        assert len(lines) == 1
        assert message in lines[0]

    def test_they_stand_beside_ours_and_change_no_trial(self, tmp_path: Path) -> None:
        paper = Paper("Table 4", {"nbsr fast": {"accuracy": 0.9762, "regret": 2.0}})
        plain, beside = summarise(OUTCOMES), summarise(OUTCOMES, paper)
        assert [row.metrics for row in plain] == [row.metrics for row in beside]
        deep, fast, *_ = beside
        assert (deep.config, fast.config) == ("deep", "fast")
        assert fast.to_json()["paper"] == {"accuracy": 0.9762, "regret": 2.0}
        assert "paper" not in deep.to_json()
        assert fast.cell("accuracy") == "80.0%\n(paper 97.6%)"
        assert fast.cell("regret") == "-\n(paper 2.000)", "a figure that we do not have is still shown"
        assert deep.cell("accuracy") == "90.0%"


class TestCeiling:
    def test_it_is_one_line_and_no_model_has_its_figures(self) -> None:
        rows = summarise(OUTCOMES)
        assert [(row.model, row.config, row.n) for row in rows] == [
            ("nbsr", "deep", 1),
            ("nbsr", "fast", 1),
            ("mlp", "", 2),
            ("ceiling", "", 2),
        ]
        *models, ceiling = rows
        assert ceiling.metrics.keys() == {"accuracy", "far/ece"}
        assert ceiling.metrics["accuracy"].estimate == pytest.approx(0.97)
        assert ceiling.metrics["far/ece"].estimate == pytest.approx(0.2)
        assert models[2].metrics.keys() == {"accuracy", "far/accuracy"}
        assert "ceiling" not in str(study_metrics(rows, ["accuracy"])), "a study's run shows its models"
        assert ",ceiling,,2,yes,accuracy,0.97" in figures_csv(rows)

    def test_no_ceiling_no_line(self) -> None:
        assert [row.model for row in summarise([ended("mlp", 0, test__accuracy=0.5)])] == ["mlp"]


@pytest.mark.parametrize(
    ("domain", "sets"),
    [
        *((domain, "") for domain in ("iris", "medical", "triage", "navigation")),
        ("language", "unk scrambled"),
        ("vision", "mnist patches"),
    ],
)
def test_what_a_domain_shows_is_not_cut_in_a_terminal_of_120_columns(domain: str, sets: str, tmp_path: Path) -> None:
    kind = "ar_nbsr" if domain == "triage" else "nbsr"
    study = Study.load(written(tmp_path, f"name: med\ndomain: {domain}\nmodels: {{nbsr: {{kind: {kind}}}}}\n"))
    shown = [name.replace("*", each) for name in study.domain_object.shown for each in sets.split() or [""]]
    names = [name if "/" in name else f"test/{name}" for name in dict.fromkeys(shown)]
    ended_trials = EndedTrials()
    for seed in range(3):
        ended_trials.add(*ended("nbsr", seed, **{name.replace("/", "__"): 0.9 + 0.01 * seed for name in names}))
    result = RunResult("med", "sqlite://", tmp_path / "report.html", [StudyRun(study, "1", ended_trials=ended_trials)])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(comparison(result))
    told = console.export_text()
    assert "…" not in told
    table = "".join(line for line in told.splitlines() if line.startswith("│"))
    assert table.count("0.910") + table.count("91.0%") == len(names)


def test_table_and_json_tell_the_same(tmp_path: Path) -> None:
    study = Study.load(written(tmp_path, BASE + PAPER))
    ended_trials = EndedTrials()
    for trial, found in OUTCOMES:
        ended_trials.add(trial, found)
    for _, found in OUTCOMES:
        found.warnings.append("eta = -100 is no test")
    result = RunResult("med", "sqlite://", tmp_path / "report.html", [StudyRun(study, "1", ended_trials=ended_trials)])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(comparison(result))
    told, plain = console.export_text(), result.to_json()
    assert "(paper 97.6%)" in told
    assert "paper: Table 4, one seed" in told
    assert "ceiling: the Bayes-optimal diagnosis" in told
    assert "97.0%" in told
    assert "1 or 2 seeds: too few for an interval (3 give one): means only" in told
    assert plain["notes"] == ["eta = -100 is no test"], "what many trials say is said once"
    assert plain["legend"][1] == "paper: Table 4, one seed"
    lines = {(row["model"], row["config"]): row for row in plain["table"]}
    assert lines["mlp", ""]["paper"] == {"accuracy": 0.9762, "ece": 0.016}
    assert lines["ceiling", ""]["metrics"]["accuracy"]["mean"] == pytest.approx(0.97)
    assert lines["ceiling", ""]["metrics"]["accuracy"]["low"] is None
    assert lines["ceiling", ""]["intervals"] == "2 seeds: too few for an interval (3 give one)"
    frame = result.table.set_index(["model", "config"])
    assert frame.loc[("mlp", ""), "ece_paper"] == 0.016
    assert math.isnan(frame.loc[("ceiling", ""), "ece_paper"])


def test_tables_of_three_seeds_have_bounds_within_0_and_100_percent() -> None:
    outcomes = [ended("mlp", seed, test__accuracy=value) for seed, value in enumerate((0.9, 0.99, 1.0))]
    (row,) = summarise(outcomes)
    bounds = row.metrics["accuracy"]
    assert 0 < bounds.low < bounds.estimate < bounds.high < 1
    assert row.cell("accuracy") == f"96.3%\n{100 * bounds.low:.1f}–{100 * bounds.high:.1f}"
    assert study_metrics([row], ["accuracy"]).keys() == {"mlp/accuracy/mean"}
    *_, high, _ = figures_csv([row]).splitlines()[1].split(",")
    assert float(high) < 1
    *_, low, high, _ = figures_csv(summarise(outcomes[:2])).splitlines()[1].split(",")
    assert (low, high) == ("", "")


VARIANTS = """\
seeds: 2
variants:
  rows: {}
  distinct:
    data.split: distinct
    models.mlp.hidden: [4]
"""


class TestVariants:
    def test_each_is_a_study_with_its_own_keys(self, tmp_path: Path) -> None:
        found = load(written(tmp_path, BASE + VARIANTS))
        assert isinstance(found, Collection)
        assert found.name == "med"
        rows, distinct = found.studies
        assert (rows.name, distinct.name) == ("med-rows", "med-distinct")
        assert (rows.data.split, distinct.data.split) == ("paper", "distinct")
        assert (rows.models["mlp"].options.hidden, distinct.models["mlp"].options.hidden) == ((8,), (4,))
        assert rows.seeds == distinct.seeds == (0, 1)
        assert rows.models["nbsr"] == distinct.models["nbsr"]

    def test_the_command_line_has_the_last_word_on_all_of_them(self, tmp_path: Path) -> None:
        path = written(tmp_path, BASE + VARIANTS)
        overrides = ["data.noise=0.1", "models.mlp.hidden=[2]", "name=other", "variants.rows.seeds=3"]
        found = load(path, overrides)
        assert isinstance(found, Collection)
        assert [study.name for study in found.studies] == ["other-rows", "other-distinct"]
        assert [study.data.noise for study in found.studies] == [0.1, 0.1]
        assert [study.data.split for study in found.studies] == ["paper", "distinct"]
        assert [study.models["mlp"].options.hidden for study in found.studies] == [(2,), (2,)]
        assert [len(study.seeds) for study in found.studies] == [3, 2]

    def test_in_a_collection(self, tmp_path: Path) -> None:
        written(tmp_path, BASE + VARIANTS)
        written(tmp_path, BASE.replace("name: med", "name: single"), "single.yaml")
        whole = written(tmp_path, "name: all\ninclude: [study.yaml, single.yaml]\n", "all.yaml")
        found = load(whole, ["seeds=5"])
        assert isinstance(found, Collection)
        assert [study.name for study in found.studies] == ["med-rows", "med-distinct", "single"]
        assert [len(study.seeds) for study in found.studies] == [5, 5, 5]

    def test_what_is_wrong_is_said_once_and_where_it_stands(self, tmp_path: Path) -> None:
        broken = BASE + VARIANTS.replace("distinct\n    models", "distnct\n    models") + "tranig: {}\n"
        lines = complaints(tmp_path, broken)
        assert len(lines) == 2, "what is wrong with all variants is said once"
        assert lines[0].startswith("study.yaml:10: data.split: ")
        assert "'distnct'" in lines[0]
        assert lines[1].startswith("study.yaml:12: tranig: unknown key; did you mean 'training'?")

    @pytest.mark.parametrize(
        ("part", "message"),
        [
            ("variants: []", "variants: expected a mapping from names to the keys that differ"),
            ("variants: {}", "variants: expected a mapping from names to the keys that differ"),
            ("variants: {a b: {}}", "variants.a b: a variant needs a name of letters, digits, - and _"),
            ("variants: {a: 3}", "variants.a: expected a mapping, got 3"),
            ("variants: {a: {name: x}}", "variants.a.name: a variant is named by its key"),
            ("variants: {a: {domain.x: 3}}", "variants.a.domain.x: domain is 'medical', no mapping"),
        ],
    )
    def test_broken_variants(self, tmp_path: Path, part: str, message: str) -> None:
        lines = complaints(tmp_path, f"{BASE}{part}\n")
        assert len(lines) == 1
        assert f"study.yaml:6: {message}" in lines[0]

    def test_they_are_never_ignored(self, tmp_path: Path) -> None:
        path = written(tmp_path, BASE + VARIANTS)
        with pytest.raises(StudyError, match="holds several studies"):
            Study.load(path)
        with pytest.raises(StudyError, match="variants: several studies cannot be read as one"):
            Study.from_dict({"name": "x", "domain": "medical", "models": {"nbsr": {}}, "variants": {"a": {}}})

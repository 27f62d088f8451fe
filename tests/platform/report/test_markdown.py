"""Results as Markdown: every figure from stored results, what a person wrote kept as it is, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import markdown as python_markdown
import pytest
from kept_answers import flags, judged, results
from nbsr_platform.cli.app import app
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.report.markdown_page import markdown
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.paper import Paper
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from typer.testing import CliRunner

from benchmarks import results as pages
from benchmarks.report import made_up_search

GOLDEN = Path(__file__).parent / "golden"
MADE_BY = "nbsr report toy.yaml --markdown"
IRIS = """
name: flowers
question: Does the belief sharpen?
domain: iris
seeds: 3
training: {epochs: 2}
models: {nbsr: {}, mlp: {}}
"""
MEDICAL = """
name: patients
domain: medical
data: {source: embedded, draws: 2, train_patients: 200, valid_patients: 100, test_patients: 100}
seeds: 2
training: {epochs: 1}
models: {nbsr: {}, mlp: {}}
paper: {source: Table 4, figures: {mlp: {accuracy: 0.9762}}}
"""


def tiny(seeds: int = 4) -> StudyResults:
    """NBSR and a flat network on 200 samples, with a paper's figure, a ceiling and a warning."""
    study = results({"nbsr": [flags(20 + s) for s in range(seeds)], "mlp": [flags(60 + 2 * s) for s in range(seeds)]})
    for trial, result in study.finished:
        result.data = {"source": "four <clouds>", "synthetic": True, "fingerprint": "0123abcd"}
        result.environment = {"python": "3.11", "torch": "2.0", "commit": "abc", "date": f"2026-01-0{trial.seed + 1}"}
        result.metrics |= {"test/ece": 0.05, "ceiling/test/accuracy": 0.95}
        if trial.label == "nbsr":
            judged(result, flags(40 + trial.seed), "depth1")
            result.metrics["depth2/nll"] = result.metrics["test/nll"]
            result.warnings = ["every early exit costs more than 0.5% accuracy"]
    paper = Paper("Table 4", {"nbsr deep": {"accuracy": 0.9762}})
    asked = replace(study.study, question="Who sorts *clouds* best?", paper=paper, path=Path("toy.yaml"))
    return replace(study, study=asked)


@pytest.mark.parametrize("seeds", [1, 4])
def test_the_page_of_a_tiny_study(seeds: int) -> None:
    """With one seed it has means and no verdict. To take over a change: write `text` to the file."""
    text = markdown([tiny(seeds)], "toy-study", made_by=MADE_BY)
    assert text == (GOLDEN / f"tiny-{seeds}.md").read_text(encoding="utf-8")


def test_a_study_without_a_file_brings_its_own() -> None:
    study = tiny()
    assert "```yaml" not in markdown([study], "t", made_by=MADE_BY)
    text = markdown([replace(study, study=replace(study.study, path=None))], "t", made_by=MADE_BY)
    assert "```yaml\nname: toy-study\n" in text


def test_all_that_share_the_best_mean_are_bold_and_nobody_where_all_are_equal() -> None:
    study = tiny()
    for _, result in study.finished:
        result.metrics |= {"fast/accuracy": 0.5, "fast/ece": 0.05, "fast/nll": 0.5, "test/nll": 0.25}
    text = markdown([study], "t", made_by=MADE_BY)
    assert text.count("**0.250 ±0.000**") == 2
    assert "0.050 (0.050–0.050)" in text
    assert "**0.050" not in text


def test_it_is_markdown_that_renders_as_meant() -> None:
    html = python_markdown.markdown(markdown([tiny()], "toy-study", made_by=MADE_BY), extensions=["tables"])
    assert html.count("<table>") == 3
    assert "Who sorts *clouds* best?" in html
    assert "four &lt;clouds&gt; (synthetic)" in html
    assert "<br>paper 97.6%" in html or "<br />paper 97.6%" in html


def test_names_cannot_break_a_table_or_become_markup() -> None:
    study = tiny()
    for _, result in study.finished:
        result.data["source"] = "a | b <script>alert(1)</script> [c](javascript:d) `e` \\"
    html = python_markdown.markdown(markdown([study], "a | b", made_by=MADE_BY), extensions=["tables"])
    assert "<script>" not in html
    assert "href" not in html
    assert "a | b &lt;script&gt;alert(1)&lt;/script&gt; [c](javascript:d) `e` \\" in html.replace("&#124;", "|")


def test_several_studies_have_a_section_each_and_a_search_its_pareto_set() -> None:
    text = markdown([tiny(), made_up_search(12, random.Random(0))], "both", made_by=MADE_BY)
    assert [line for line in text.splitlines() if line.startswith("#")] == ["# both", "## toy-study", "## made-up"]
    assert "| proposal | parameters | valid/accuracy | valid/ece | seeds |" in text
    assert text.count("\n| #") == 2


def test_further_figures_have_a_table_of_their_own() -> None:
    study = tiny()
    for _, result in study.finished:
        result.metrics |= {"far/depth1/ece": 0.25}
    assert "far" not in markdown([study], "t", made_by=MADE_BY)
    text = markdown([study], "t", made_by=MADE_BY, further=["far/*", "accuracy", "nothing/*"])
    assert "| figure | nbsr deep |" in text
    assert "| far, depth1, ECE ↓ | 0.250" in text


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small studies that were run, and one that was not."""
    folder = tmp_path_factory.mktemp("studies")
    for name, text in {"iris": IRIS, "medical": MEDICAL, "later": IRIS.replace("flowers", "later")}.items():
        (folder / f"{name}.yaml").write_text(text.replace("epochs: 2", "epochs: 3") if name == "later" else text)
    store = ResultStore(Home(folder / "home").trials)
    for name in ("iris", "medical"):
        study = Study.load(folder / f"{name}.yaml")
        for trial in grid(study, data_fingerprint(study)):
            *_, result = run_trial(trial, "cpu")
            assert isinstance(result, TrialResult)
            store.save(result)
    return folder


def test_the_command_writes_below_what_a_person_wrote(stored: Path, tmp_path: Path) -> None:
    page = tmp_path / "flowers.md"
    words = ["report", str(stored / "iris.yaml"), "--home", str(stored / "home"), "--markdown", "--out", str(page)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert page.read_text().startswith("# flowers\n\nMade by `nbsr report ")
    (tmp_path / "_intro").mkdir()
    written = "# Flowers\n\nTwo *features* of three kinds | with marks.\n"
    (tmp_path / "_intro" / "flowers.md").write_text(written)
    assert CliRunner().invoke(app, words).exit_code == 0
    text = page.read_text()
    assert text.startswith(
        f"{written}\nMade by `nbsr report {stored / 'iris.yaml'} --markdown` from results of commit "
    )
    assert "## flowers" in text
    assert "**Question.** Does the belief sharpen?" in text
    assert "- seeds: 0, 1, 2" in text
    assert "nbsr: depth 2 over depth 1: NLL " in text or "nbsr: depth adds nothing" in text


def test_without_a_place_it_stands_in_the_home(stored: Path) -> None:
    home = stored / "home"
    done = CliRunner().invoke(app, ["report", str(stored / "iris.yaml"), "--home", str(home), "--markdown"])
    assert done.exit_code == 0, done.output
    assert (home / "reports" / "flowers" / "index.md").exists()


class TestAllPages:
    def test_every_page_whose_results_are_there_is_written_and_the_others_say_what_is_missing(
        self, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        more = pages.Part(str(stored / "medical.yaml"), ("seeds=3",))
        table = {
            "both": pages.Page(
                (pages.Part(str(stored / "iris.yaml")), pages.Part(str(stored / "medical.yaml"))),
                overview=lambda results: f"## All {len(results)}",
            ),
            "half": pages.Page((pages.Part(str(stored / "iris.yaml")), pages.Part(str(stored / "later.yaml")), more)),
            "none": pages.Page((pages.Part(str(stored / "nowhere.yaml")),), written_by="make nowhere"),
        }
        (tmp_path / "half.md").write_text("as it was")
        arguments = ["--home", str(stored / "home"), "--out", str(tmp_path)]
        assert pages.main(arguments, table) == 1
        told = capsys.readouterr().out
        text = (tmp_path / "both.md").read_text()
        assert "Made by `python -m benchmarks.results both` from results of commit " in text
        assert text.index("Made by") < text.index("## All 2") < text.index("## flowers") < text.index("## patients")
        assert "<br>paper 97.6%" in text
        assert "2 seeds: too few for an interval (3 give one): means only." in text
        assert (tmp_path / "half.md").read_text() == "as it was"
        assert "half: not written" in told
        assert "no trial of 'later'" in told
        assert "patients: 2 of 6 trials are not done; `nbsr run " in told
        assert "nowhere.yaml" in told
        assert "its studies are written by `make nowhere`" in told
        assert not (tmp_path / "none.md").exists()
        assert pages.main([*arguments, "both"], table) == 0

    def test_a_page_that_nobody_knows_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            pages.main(["medicine"])
        assert ended.value.code == 2
        assert "no page medicine; there are medical, triage" in capsys.readouterr().err

    def test_every_study_of_a_page_is_valid_and_every_page_of_results_is_made(self) -> None:
        for page in pages.PAGES.values():
            for part in page.parts if page.written_by is None else ():
                assert load(part.study, part.settings).studies
        assert {path.stem for path in pages.RESULTS.glob("*.md")} == pages.PAGES.keys()

"""What is shipped beside the code holds: every study file is right, every link in the documents leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.study.study import load
from typer.models import CommandInfo

ROOT = Path(__file__).parents[3]
STUDIES = sorted((ROOT / "studies").rglob("*.yaml"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_study_file(path: Path) -> None:
    what = load(path)
    studies = what.studies
    assert studies
    assert all(study.question for study in studies), "a study says what it asks"


def test_ablations_start_from_the_best_recipe_and_change_it() -> None:
    recipes = {"medical": "medical/best", "vision": "vision/quickstart"}
    for study in load(ROOT / "studies" / "ablations" / "all.yaml").studies:
        best, *_ = load(ROOT / "studies" / f"{recipes[study.domain]}.yaml").studies
        models = (best.models["nbsr"], *study.models.values())
        trained = [repr((model.kind, model.options, model.training)) for model in models]
        assert trained[0] == trained[1], "the first model is the recipe itself"
        assert len(set(trained[1:])) == len(study.models), "no change is made twice"
        assert len(study.seeds) == 10


@pytest.mark.parametrize(
    "name", ["vision/frozen", "vision/openset", "vision/quickstart", "language/best", "language/real_text"]
)
def test_the_distance_inside_nbsrs_belief_is_measured_as_that_beside_other_models(name: str) -> None:
    """Otherwise NBSR would be ahead of them by a better distance, and not by having it in its belief."""
    for study in load(ROOT / "studies" / f"{name}.yaml").studies:
        beside = study.evaluation.mahalanobis
        (inside,) = (model.options.density for model in study.models.values() if model.kind == "nbsr")
        assert inside.enabled
        assert (inside.directions, inside.normalise, inside.power) == (
            beside.directions,
            beside.normalise,
            beside.power,
        )


def commands(path: Path) -> list[str]:
    """What a document tells people to type, in code spans and blocks, without comments."""
    text = path.read_text()
    spans = [*re.findall(r"`([^`\n]+)`", text), *"\n".join(re.findall(r"```bash\n(.*?)```", text, re.S)).splitlines()]
    return [span.partition("  #")[0].strip() for span in spans]


@pytest.mark.parametrize("path", [*DOCUMENTS, *(ROOT / "docs" / "results").glob("*.md")], ids=lambda path: path.name)
def test_commands_in_documents_are_there(path: Path) -> None:
    known = {name_of(command) for command in known_commands()}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for line in commands(path):
        words = line.split()
        if not words:
            continue
        if words[0] == "nbsr" and len(words) > 1 and not words[1].startswith("--"):
            assert re.sub(r"[^\w-].*", "", words[1]) in known, f"{path.name}: {line}"
        if words[0] == "make" and len(words) > 1:
            assert words[1] in targets, f"{path.name}: {line}"
        if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), f"{path.name}: {line}"
        for word in words:
            if re.fullmatch(r"(studies|examples|benchmarks|docs|cluster)/[\w./-]+\.(yaml|py|sh|md)", word):
                assert (ROOT / word).exists(), f"{path.name}: {line}"


def known_commands() -> list[CommandInfo]:
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    return [command for group in groups if group is not None for command in group.registered_commands]


def name_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__


def test_every_figure_of_the_paper_has_a_command() -> None:
    rows = [line.split("|") for line in (ROOT / "docs" / "paper.md").read_text().splitlines() if line.startswith("| ")]
    figures = [row for row in rows if len(row) == 5 and row[1].strip() != "---" and "figure of" not in row[1]]
    assert len(figures) == 14
    for row in figures:
        assert "`nbsr " in row[3] or "`python " in row[3] or "nothing to measure" in row[3], row[1]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"

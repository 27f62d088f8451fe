"""The files of a trial hold its tables, and its pictures say what they show."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from nbsr_platform.tracking.artifacts import write_artifacts
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial
from PIL import Image
from toys import flat_trial, make_trial, train

from nbsr_core.plots.beliefs import confusion_chart, frontier_chart, reliability_chart, usage_chart

Recorded = tuple[Trial, TrialResult]


@pytest.fixture(scope="module")
def nbsr() -> Recorded:
    trial = make_trial("nbsr")
    return trial, train(trial)[2]


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the pictures that are saved."""
    seen: list[str] = []
    save = Figure.savefig

    def savefig(figure: Figure, *args: Any, **options: Any) -> None:
        seen.append(figure.get_suptitle())
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return seen


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_nbsr_leaves_all_files(nbsr: Recorded, tmp_path: Path, titles: list[str]) -> None:
    trial, result = nbsr
    written = write_artifacts(tmp_path / "new", trial, result)
    assert {path.name for path in written} == {
        *("frontier.csv", "frontier.png", "reliability.csv", "reliability.png", "belief.csv", "sharpening.png"),
        *("confusion.csv", "confusion.png", "usage.csv", "usage.png", "audits.json", "audits.txt", "metrics.json"),
    }
    assert sorted(written) == sorted((tmp_path / "new").iterdir())
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert min(picture.size) > 200
                assert np.asarray(picture.convert("L")).std() > 5, "not empty"
    assert len(titles) == 5
    assert all("nbsr seed 0, Toy (SYNTHETIC data)" in title for title in titles)


def test_real_data_is_not_called_synthetic(nbsr: Recorded, tmp_path: Path, titles: list[str]) -> None:
    trial, result = nbsr
    write_artifacts(tmp_path, trial, replace(result, data={**result.data, "synthetic": False}))
    assert titles
    assert not any("SYNTHETIC" in title for title in titles)
    assert "SYNTHETIC" not in (tmp_path / "audits.txt").read_text()


def test_tables_hold_what_the_result_holds(nbsr: Recorded, tmp_path: Path) -> None:
    trial, result = nbsr
    write_artifacts(tmp_path, trial, result)
    for name in ("frontier", "reliability", "belief", "confusion", "usage"):
        found = rows_of(tmp_path / f"{name}.csv")
        expected = result.tables[name]
        assert found == [{key: "" if value is None else str(value) for key, value in row.items()} for row in expected]
    assert json.loads((tmp_path / "audits.json").read_text()) == result.audits
    text = (tmp_path / "audits.txt").read_text()
    assert all(audit["text"] in text for audit in result.audits)
    assert text.count("sample ") == len(result.audits)


def test_figures_that_are_no_numbers_are_null(tmp_path: Path) -> None:
    trial, result = flat_trial()
    write_artifacts(tmp_path, trial, replace(result, warnings=["mind the gap"]))
    found = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert found["metrics"] == {"test/accuracy": 0.9, "test/ece": 0.05, "fast/eta": None, "test/x": None}
    assert found["warnings"] == ["mind the gap"]
    assert found["data"]["synthetic"] is True


@pytest.mark.parametrize("eta", [float("inf"), float("-inf"), -3.5, None])
def test_a_trial_from_the_store_has_the_key_it_had(eta: float | None) -> None:
    trial = make_trial("mlp", evaluation={"eta": eta, "etas": [1.0, float("inf")], "audits": 3})
    stored = TrialResult.from_json(TrialResult(trial.key, "finished", 1.0, trial=asdict(trial)).to_json())
    assert Trial(**stored.trial).key == trial.key
    assert stored.trial["evaluation"] == trial.evaluation


def test_a_result_from_the_store_draws_like_a_fresh_one(nbsr: Recorded, tmp_path: Path) -> None:
    """JSON has no infinity: the threshold that never exits comes back as null."""
    trial, result = nbsr
    stored = TrialResult.from_json(result.to_json())
    assert stored.tables["frontier"][0]["eta"] is None
    fresh = write_artifacts(tmp_path / "a", trial, result)
    again = write_artifacts(tmp_path / "b", trial, stored)
    assert [path.name for path in fresh] == [path.name for path in again]
    with Image.open(tmp_path / "a/frontier.png") as one, Image.open(tmp_path / "b/frontier.png") as other:
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kind", ["mlp", "xgboost"])
def test_baselines_leave_what_they_have(kind: str, tmp_path: Path) -> None:
    trial = make_trial(kind)
    names = {path.name for path in write_artifacts(tmp_path, trial, train(trial)[2])}
    assert names == {"reliability.csv", "reliability.png", "confusion.csv", "confusion.png", "metrics.json"}


def test_a_result_without_anything_leaves_nothing(tmp_path: Path) -> None:
    trial, result = flat_trial()
    assert write_artifacts(tmp_path, trial, TrialResult(result.key, "pruned", 1.0)) == []


def test_pyplot_is_never_asked(tmp_path: Path) -> None:
    """Its figures are global and need a display on some machines."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(toys.__file__).parent)!r}); from pathlib import Path; "
        "from toys import *; trial = make_trial('mlp'); "
        f"assert write_artifacts(Path({str(tmp_path)!r}), trial, train(trial)[2]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    ).replace("from toys", "from nbsr_platform.tracking.artifacts import write_artifacts; from toys")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def rectangles(axes: Axes) -> list[Rectangle]:
    found = []
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        found.append(patch)
    return found


def test_few_classes_make_a_matrix_and_many_a_list_of_mistakes() -> None:
    few = [{"true": "a", "predicted": "a", "count": 8}, {"true": "b", "predicted": "a", "count": 2}]
    matrix = confusion_chart(few, title="t", class_names=["a", "b"]).axes[0]
    assert {text.get_text(): text.get_position() for text in matrix.texts} == {"8": (0, 0), "2": (0, 1)}
    names = [f"class {i}" for i in range(30)]
    many: list[dict[str, Any]] = [
        {"true": names[i], "predicted": names[(i * 7) % 30], "count": i + 1} for i in range(30)
    ]
    bars = confusion_chart(many, title="t", class_names=names).axes[0]
    labels = [label.get_text() for label in bars.get_yticklabels()]
    wrong = sorted((row for row in many if row["true"] != row["predicted"]), key=lambda row: -row["count"])
    assert labels == [f"{row['true']} → {row['predicted']}" for row in wrong[:20]]
    assert [bar.get_width() for bar in rectangles(bars)] == [row["count"] for row in wrong[:20]]
    assert f"{len(wrong) - 20} rarer pairs" in bars.get_xlabel()


def test_no_mistakes_among_many_classes_is_said(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(30)]
    figure = confusion_chart(
        [{"true": name, "predicted": name, "count": 1} for name in names], title="t", class_names=names
    )
    assert [text.get_text() for text in figure.axes[0].texts] == ["no mistakes"]
    figure.savefig(tmp_path / "x.png")


def test_the_frontier_marks_the_chosen_threshold_and_the_full_walk() -> None:
    rows: list[dict[str, Any]] = [
        {"eta": -3.0, "accuracy": 0.9, "mean_depth": 1.8},
        {"eta": -1.0, "accuracy": 0.8, "mean_depth": 1.2},
        {"eta": None, "accuracy": 0.95, "mean_depth": 2.0},
    ]
    lines = frontier_chart(rows, title="t", chosen=-1.1).axes[0].lines
    assert [list(np.asarray(line.get_xdata())) for line in lines[1:]] == [[1.2, 1.8, 2.0], [2.0], [1.2]]
    assert [list(np.asarray(line.get_ydata())) for line in lines[2:]] == [[0.95], [0.8]]
    assert len(frontier_chart(rows, title="t").axes[0].lines) == 3


def test_reliability_draws_every_depth() -> None:
    rows = [
        {"depth": depth, "low": 0.8, "high": 0.9, "confidence": 0.85, "accuracy": 0.8, "count": 5}
        for depth in (None, 1, 2, 3)
    ]
    upper, lower = reliability_chart(rows, title="t").axes
    assert [line.get_label() for line in upper.lines] == ["perfect", "final answer", "depth 1", "depth 2", "depth 3"]
    assert [(bar.get_x(), bar.get_height()) for bar in rectangles(lower)] == [(0.8, 5)]


@pytest.mark.parametrize("width", [1, 4, 24, 90])
def test_usage_has_a_panel_a_level_and_fits(width: int, tmp_path: Path) -> None:
    """Warnings are errors here, and matplotlib warns where labels leave no room for the picture."""
    rows = [{"node": "root", "level": 0, "share": 1.0}]
    for level in (1, 2):
        rows += [
            {"node": f"a node with a rather long name {i}", "level": level, "share": float(i > 0)} for i in range(width)
        ]
    figure = usage_chart(rows, title="t")
    figure.savefig(tmp_path / "x.png")
    assert [panel.get_ylabel() for panel in figure.axes] == ["level 1", "level 2"]
    assert all(len(panel.patches) == width for panel in figure.axes)
    assert all("1 never visited" in panel.get_title("right") for panel in figure.axes)

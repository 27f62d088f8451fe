"""The Iris toy from end to end: its data, what training does to the belief, its pictures and its example."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.domains import iris
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.plots import beliefs as figures

EXAMPLE = Path(__file__).parents[3] / "examples" / "iris.py"
SEEDS = 4


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("iris_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained() -> list[tuple[nbsr.NBSR, Splits]]:
    example = load_example()
    return [example.train(seed) for seed in range(SEEDS)]


def held_out(splits: Splits) -> tuple[Tensor, Tensor]:
    """All flowers that the model was not trained on."""
    return torch.cat([splits.valid.x, splits.test.x]), torch.cat([splits.valid.y, splits.test.y])


# ------------------------------------------------------------------------------------------------------------- data


def test_the_splits_share_out_all_flowers() -> None:
    splits = iris.load(seed=3)
    parts = [splits.train, splits.valid, splits.test]
    assert [len(part) for part in parts] == [90, 30, 30]
    for part in parts:
        assert part.y.bincount().tolist() == [len(part) // 3] * 3
    whole = load_iris()
    rows = Counter((*map(float, x), int(y)) for part in parts for x, y in zip(part.x, part.y, strict=True))
    expected = np.c_[whole.data[:, :2].astype(np.float32), whole.target]
    assert rows == Counter((float(a), float(b), int(k)) for a, b, k in expected)
    assert splits.class_names == ["setosa", "versicolor", "virginica"]
    assert splits.feature_names == ["sepal length (cm)", "sepal width (cm)"]
    assert splits.num_classes == 3
    assert not splits.synthetic


def test_fingerprints_tell_data_apart() -> None:
    splits = iris.load(0)
    assert splits.fingerprint() == iris.load(0).fingerprint()
    x = splits.test.x.clone()
    x[7, 1] += 1e-6
    others = [
        iris.load(1),
        replace(splits, test=Split(x, splits.test.y)),
        replace(splits, train=Split(splits.train.x.double(), splits.train.y)),
        replace(splits, extra={"noise": splits.test}),
        replace(splits, valid=splits.test, test=splits.valid),
    ]
    assert len({splits.fingerprint(), *(other.fingerprint() for other in others)}) == 1 + len(others)


def test_splits_that_do_not_fit_are_refused() -> None:
    splits = iris.load(0)
    with pytest.raises(nbsr.InputError, match="as many labels as inputs, got 2 and 3"):
        Split(torch.zeros(3, 1), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(nbsr.InputError, match="cannot be called test"):
        replace(splits, extra={"test": splits.test})


# ---------------------------------------------------------------------------------------------------------- training


def test_it_learns_the_flowers_at_both_depths(trained: list[tuple[nbsr.NBSR, Splits]]) -> None:
    right: dict[int, list[float]] = {1: [], 2: []}
    for model, splits in trained:
        x, y = held_out(splits)
        with torch.no_grad():
            trace = model(x)
        for depth in (1, 2):
            right[depth].append(float((trace.probabilities(depth).argmax(-1) == y).float().mean()))
    assert np.mean(right[1]) > 0.7
    assert np.mean(right[2]) > 0.73


def test_belief_sharpens_with_depth_within_the_mid_experts_budget(trained: list[tuple[nbsr.NBSR, Splits]]) -> None:
    """Theorem 1 and its variance bound, on every flower."""
    for model, splits in trained:
        with torch.no_grad():
            trace = model(held_out(splits)[0])
        assert bool((trace.precision.diff(dim=0) > 0).all())
        assert bool((trace.evidence[0] > 0).all())
        assert bool((trace.evidence[0] <= iris.MID_BUDGET).all())
        assert float(trace.evidence[1].max()) > iris.MID_BUDGET  # the leaf has no budget, and uses it
        assert float(trace.precision[2].mean()) > 1.5 * float(trace.precision[1].mean())
        alpha = trace.alpha.double()
        total = alpha.sum(-1, keepdim=True)
        variance = alpha * (total - alpha) / (total.square() * (total + 1))
        assert bool((variance <= 1 / (4 * (total + 1))).all())
        means = variance.amax(-1).mean(1)
        assert bool((means.diff() < 0).all())


def test_the_model_takes_raw_centimetres_and_keeps_its_scaling(trained: list[tuple[nbsr.NBSR, Splits]]) -> None:
    model, splits = trained[0]
    fresh = iris.build(iris.load(seed=4))
    fresh.load_state_dict(model.state_dict())
    x, _ = held_out(splits)
    with torch.no_grad():
        assert torch.equal(fresh.eval()(x).alpha, model(x).alpha)
        scaled = model.get_submodule("backbone.0")(splits.train.x)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0), torch.ones(2))


# ---------------------------------------------------------------------------------------------------------- pictures


def drawn(model: nbsr.NBSR, splits: Splits) -> Figure:
    return figures.belief_map(
        model,
        splits.train.x,
        splits.train.y,
        feature_names=splits.feature_names,
        class_names=splits.class_names,
        resolution=60,
    )


def test_the_belief_map_has_a_panel_a_depth_and_a_key(trained: list[tuple[nbsr.NBSR, Splits]]) -> None:
    model, splits = trained[0]
    first, second, key = drawn(model, splits).axes
    for depth, (panel, node) in enumerate([(first, "Mid-Expert"), (second, "Leaf-Expert")], start=1):
        assert panel.get_title().startswith(f"depth {depth}: {node}")
        assert panel.get_xlabel() == "sepal length (cm)"
        assert [len(np.asarray(points.get_offsets())) for points in panel.collections] == [30, 30, 30]
    assert first.get_ylabel() == "sepal width (cm)"
    legend = second.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(splits.class_names)
    assert [label.get_text() for label in key.get_xticklabels()] == list(splits.class_names)


def test_hue_is_the_class_and_saturation_the_precision(trained: list[tuple[nbsr.NBSR, Splits]]) -> None:
    model, splits = trained[0]
    first, second, _ = drawn(model, splits).axes
    pale, deep = (np.asarray(panel.images[0].get_array()) for panel in (first, second))
    assert pale.shape == (60, 60, 3)
    assert bool((pale >= 0).all() and (deep <= 1).all())

    def saturation(image: np.ndarray) -> float:
        return float((image.max(-1) - image.min(-1)).mean())

    assert saturation(pale) < 0.6 * saturation(deep)
    low_x, high_x, low_y, high_y = second.images[0].get_extent()
    columns = ((splits.train.x[:, 0].numpy() - low_x) / (high_x - low_x) * 60).astype(int)
    rows = ((splits.train.x[:, 1].numpy() - low_y) / (high_y - low_y) * 60).astype(int)
    setosa = splits.train.y.numpy() == 0
    reddest = deep[rows, columns].argmax(-1) == 0
    assert reddest[setosa].mean() > 0.9
    assert reddest[~setosa].mean() < 0.1


def test_drawing_leaves_the_model_as_it_was(trained: list[tuple[nbsr.NBSR, Splits]]) -> None:
    model, splits = trained[0]
    model.train()
    drawn(model, splits)
    assert model.training
    model.eval()
    with pytest.raises(nbsr.InputError, match=r"needs inputs .* and 3 classes"):
        figures.belief_map(
            nbsr.NBSR(torch.nn.Linear(2, 4), nbsr.DecisionGraph.chain(1), 4, 4),
            splits.train.x,
            splits.train.y,
            feature_names=splits.feature_names,
            class_names=splits.class_names,
        )


def test_the_sharpening_picture_shows_means_and_the_bound() -> None:
    precision = np.array([[3.0, 3.0], [5.0, 9.0], [20.0, 30.0]])
    variance = np.array([[0.05, 0.05], [0.03, 0.02], [0.01, 0.005]])
    left, right = figures.sharpening(precision, variance).axes
    np.testing.assert_allclose(np.asarray(left.lines[0].get_ydata()), [3.0, 7.0, 25.0])
    shown = {line.get_label(): np.asarray(line.get_ydata()) for line in right.lines}
    np.testing.assert_allclose(shown["mean"], variance.mean(1))
    (bound,) = [values for label, values in shown.items() if "bound" in str(label)]
    np.testing.assert_allclose(bound, (1 / (4 * (precision + 1))).mean(1))


@pytest.mark.parametrize("seeds", [1, SEEDS])
def test_the_example_prints_a_table_and_a_walk_and_writes_pictures(
    seeds: int,
    trained: list[tuple[nbsr.NBSR, Splits]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = load_example()
    monkeypatch.setattr(example, "train", lambda seed: trained[seed])
    example.main(["--out", str(tmp_path / "pictures"), "--seeds", str(seeds)])
    text = capsys.readouterr().out
    assert "nan" not in text
    for expected in (f"{seeds} seed", "accuracy", "precision alpha_0", "1. Mid-Expert", "2. Leaf-Expert", "prediction"):
        assert expected in text
    for name in ("belief_map.png", "sharpening.png"):
        assert str(tmp_path / "pictures" / name) in text
        assert matplotlib.image.imread(tmp_path / "pictures" / name).shape[1] > 800


def test_the_example_refuses_no_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_example().main(["--seeds", "0"])
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err

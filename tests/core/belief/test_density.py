"""The density factor: nothing happens near the training data, and evidence fades away from them."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import FEATURES, GRAPHS, ORACLE, make_model
from scipy.spatial.distance import cdist, mahalanobis
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import nbsr_core as nbsr
from nbsr_core.learning import TensorBatches, Trainer, TrainingConfig


class Clusters:
    """Gaussians with one covariance around some means: data whose Mahalanobis distance is known."""

    def __init__(self, dim: int, classes: int = 3, *, decay: float = 1.0, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        rotation, _ = torch.linalg.qr(torch.randn(dim, dim, generator=self.generator))
        self.root = rotation * torch.arange(1, dim + 1) ** (-decay / 2)
        self.means = 3 * torch.randn(classes, dim, generator=self.generator) @ self.root.T

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(len(self.means), (count,), generator=self.generator)
        noise = torch.randn(count, self.root.shape[0], generator=self.generator)
        return self.means[y] + noise @ self.root.T, y


def fitted(dim: int, count: int, *, decay: float = 1.0, **options: object) -> tuple[nbsr.DensityFactor, Clusters]:
    clusters = Clusters(dim, decay=decay)
    factor = nbsr.DensityFactor(dim, **options)  # type: ignore[arg-type]
    return factor.fit(*clusters.draw(count)), clusters


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_distance_is_mahalanobis_over_the_root_of_the_dimension(dim: int) -> None:
    factor, clusters = fitted(dim, 4000)
    h, _ = clusters.draw(50)
    h = torch.cat([h, 10 * h])
    inverse = torch.linalg.inv((clusters.root @ clusters.root.T).double()).numpy()
    known = [min(mahalanobis(row, mean, inverse) for mean in clusters.means.numpy()) for row in h.numpy()]
    np.testing.assert_allclose(factor.distance(h).numpy(), np.array(known) / math.sqrt(dim), rtol=0.05, atol=0.05)


def test_distance_of_the_fitted_shape_is_exact() -> None:
    """With plenty of data nothing is shrunk: empirical means and covariance, straight from NumPy and SciPy."""
    factor, clusters = fitted(4, 200_000)
    clusters = Clusters(4)
    h, y = clusters.draw(200_000)
    means = np.stack([h[y == k].double().mean(0).numpy() for k in range(3)])
    within = h.double().numpy() - means[y.numpy()]
    inverse = np.linalg.inv(within.T @ within / (len(h) - 3))
    fresh, _ = clusters.draw(100)
    wanted = cdist(fresh.double().numpy(), means, "mahalanobis", VI=inverse).min(1) / 2
    np.testing.assert_allclose(factor.distance(fresh).numpy(), wanted, rtol=1e-3)


@pytest.mark.parametrize(
    ("dim", "count"),
    [(2, 100), (2, 10_000), (16, 200), (16, 3000), (64, 100), (64, 1000), (256, 100), (256, 1000)],
)
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_new_data_of_the_same_kind_keep_their_evidence(dim: int, count: int, decay: float) -> None:
    """Also where there are fewer features than dimensions, and nearly none in most directions."""
    factor, clusters = fitted(dim, count, decay=decay)
    same = factor(clusters.draw(4000)[0])
    assert float((same == 1).float().mean()) > 0.97
    assert float((same > 0.1).float().mean()) > 0.99
    far = factor(clusters.means[0] + 8 * (clusters.draw(500)[0] - clusters.means[0]))
    assert float(far.max()) == pytest.approx(factor.floor, rel=1e-3) or float(far.median()) < 0.01


@pytest.mark.parametrize(("dim", "count", "tolerance"), [(2, 4000, 0.03), (32, 2000, 0.03), (256, 1000, 0.12)])
def test_the_share_that_keeps_its_evidence_is_the_quantile(dim: int, count: int, tolerance: float) -> None:
    """And rather more than less, where the last fit knows so much more than those on four fifths."""
    for quantile in (0.8, 0.95):
        factor, clusters = fitted(dim, count, quantile=quantile)
        kept = float((factor(clusters.draw(4000)[0]) == 1).float().mean())
        assert quantile - 0.03 < kept < quantile + tolerance


@given(st.integers(0, 1000))
def test_the_factor_falls_with_the_distance_down_to_the_floor(seed: int) -> None:
    factor, clusters = fitted(6, 400)
    direction = torch.randn(6, generator=torch.Generator().manual_seed(seed)) @ clusters.root.T
    ray = clusters.means.mean(0) + torch.linspace(0, 60, 200)[:, None] * direction
    distance, value = factor.distance(ray), factor(ray)
    order = distance.argsort()
    assert bool((value[order].diff() <= 0).all())
    assert bool((value[distance <= factor.threshold] == 1).all())
    assert bool((value[distance > factor.threshold + 0.1 * factor.spread] < 1).all())
    assert float(value[-1]) == pytest.approx(factor.floor)
    t, width = factor.threshold.item(), factor.spread.item()
    spelled = [max(factor.floor, math.exp(-(max(0.0, (d - t) / width) ** 2) / 2)) for d in distance.tolist()]
    np.testing.assert_allclose(value.numpy(), spelled, rtol=1e-3)


def test_threshold_and_spread_are_read_off_the_distances_of_new_data() -> None:
    clusters = Clusters(3)
    fresh = clusters.draw(1000)[0]
    factor = nbsr.DensityFactor(3, quantile=0.9).fit(*clusters.draw(500), fresh=fresh)
    distances = np.sort(factor.distance(fresh).numpy())
    assert factor.threshold.item() == pytest.approx(distances[900])
    assert factor.spread.item() == pytest.approx((distances[900] - np.median(distances)) / 6, rel=1e-2)


def test_unused_directions_tell_the_unknown_and_shared_ones_are_averaged() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([1.0, 1.0, 1e-2, 3e-2, 0.0])
    h = torch.randn(2000, 5, generator=generator) * scales
    own, shared = nbsr.DensityFactor(5).fit(h), nbsr.DensityFactor(5, directions=2).fit(h)
    off = 0.3 * torch.eye(5)  # well within the data in two directions, far outside in the others
    for factor in (own, shared):
        assert bool((factor(off)[:2] == 1).all())
        assert bool((factor(off)[2:] < 1e-6).all())
    # The variances of the last three are replaced by their mean, so that only the length of the rest counts.
    rest = torch.tensor([[0.0, 0.0, 0.1, 0.0, 0.0], [0.0, 0.0, 0.0, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0, 0.1]])
    lengths = shared.distance(rest)
    torch.testing.assert_close(lengths, lengths.mean().expand(3), rtol=0.05, atol=0)
    lengths = own.distance(rest)
    assert float(lengths.max() / lengths.min()) > 1.3


def test_normalising_forgets_the_length() -> None:
    clusters = Clusters(8)
    h, y = clusters.draw(1000)
    plain, normal = nbsr.DensityFactor(8).fit(h, y), nbsr.DensityFactor(8, normalise=True).fit(h, y)
    longer = 50 * h[:100]
    torch.testing.assert_close(normal.distance(longer), normal.distance(h[:100]), rtol=1e-3, atol=1e-4)
    assert float(plain(longer).median()) == pytest.approx(plain.floor)
    assert bool(normal(torch.zeros(1, 8)).isfinite().all())


def test_a_power_sees_which_features_are_there() -> None:
    """Features behind a ReLU: known inputs use the first ten, with heavy tails; unknown ones use others, faintly."""
    generator = torch.Generator().manual_seed(0)
    known = torch.zeros(2000, 20)
    known[:, :10] = torch.randn(2000, 10, generator=generator).exp()
    seldom = torch.rand(2000, 10, generator=generator) < 0.02
    known[:, 10:] = seldom * torch.randn(2000, 10, generator=generator).mul(2).exp()
    unknown = torch.zeros(500, 20)
    unknown[:, 10:] = 0.3 * torch.rand(500, 10, generator=generator)
    unknown[:, :10] = torch.randn(500, 10, generator=generator).exp()
    plain, rooted = (nbsr.DensityFactor(20, power=power).fit(known[:1500]) for power in (1.0, 0.25))
    aurocs = [nbsr.metrics.auroc(-f.distance(known[1500:]), -f.distance(unknown)) for f in (plain, rooted)]
    assert aurocs[1] > 0.95 > aurocs[0]


def test_a_power_has_a_slope_where_features_are_zero() -> None:
    h = torch.randn(200, 6).relu()
    factor = nbsr.DensityFactor(6, power=0.25, normalise=True).fit(h)
    at = torch.zeros(3, 6).index_fill_(1, torch.tensor([1]), 40.0).requires_grad_()
    factor.distance(at).sum().backward()
    assert at.grad is not None
    assert bool(at.grad.isfinite().all())


def test_labels_are_optional_and_sharpen() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(1000) % 2
    h = torch.randn(1000, 3, generator=generator) + 20 * y[:, None]
    between = torch.full((1, 3), 10.0)  # in the middle of two clusters, where no datum is
    assert float(nbsr.DensityFactor(3).fit(h, y)(between)) < 1e-6
    assert float(nbsr.DensityFactor(3).fit(h)(between)) == 1.0


def test_rare_labels_of_any_value_are_welcome() -> None:
    h = torch.randn(200, 4)
    y = torch.where(torch.arange(200) < 2, torch.tensor([907]), torch.tensor([-3]))
    assert nbsr.DensityFactor(4).fit(h, y).means.shape == (2, 4)


def test_the_order_of_the_classes_does_not_matter() -> None:
    """Every class is spread over all folds, else one of them would be measured against the others' means only."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(500) % 5
    h = torch.randn(500, 4, generator=generator) + 50 * y[:, None]
    for order in (torch.arange(500), y.argsort()):
        assert 1 < nbsr.DensityFactor(4).fit(h[order], y[order]).threshold.item() < 3


def test_fresh_features_set_the_threshold() -> None:
    """A backbone packs what it was trained on: the threshold from such features alone doubts too much."""
    clusters = Clusters(8)
    packed = [(clusters.means[y] + 0.5 * (h - clusters.means[y]), y) for h, y in [clusters.draw(1000)]]
    honest = clusters.draw(4000)[0]
    alone = nbsr.DensityFactor(8).fit(*packed[0])
    helped = nbsr.DensityFactor(8).fit(*packed[0], fresh=clusters.draw(1000)[0])
    assert float((alone(honest) == 1).float().mean()) < 0.5
    assert float((helped(honest) == 1).float().mean()) == pytest.approx(0.99, abs=0.01)
    torch.testing.assert_close(alone.distance(honest), helped.distance(honest))


def test_features_without_variation_are_known_up_to_rounding() -> None:
    points = torch.randn(3, 16)
    y = torch.arange(60) % 3
    for labels in (None, y):
        factor = nbsr.DensityFactor(16).fit(points[y], labels)
        assert bool((factor(points * (1 + 1e-6)) == 1).all())
        assert bool((factor(points + 1.0) < 1e-6).all())
    nothing = nbsr.DensityFactor(16).fit(torch.zeros(30, 16))
    assert bool((nothing(torch.zeros(2, 16)) == 1).all())
    assert bool((nothing(torch.ones(2, 16)) < 1e-6).all())


def test_large_offsets_and_wide_gaps_do_not_drown_the_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    means = 1e3 * torch.randn(10, 32, generator=generator) + 1e4
    y = torch.arange(4000) % 10
    h = means[y] + torch.randn(4000, 32, generator=generator)
    factor = nbsr.DensityFactor(32).fit(h[:2000], y[:2000])
    wanted = (h[2000:].double() - means[y[2000:]].double()).square().mean(-1).sqrt()
    np.testing.assert_allclose(factor.distance(h[2000:]).numpy(), wanted.numpy(), rtol=0.1)


def test_gradients_flow_and_stay_finite() -> None:
    factor, clusters = fitted(5, 500)
    h = torch.cat([clusters.means[:1], clusters.draw(20)[0], torch.full((1, 5), 1e6)]).requires_grad_(True)
    factor(h).sum().backward()
    assert h.grad is not None
    assert bool(h.grad.isfinite().all())
    factor, edge = factor.double(), clusters.means[0].double() + 3 * clusters.root[:, 0].double()
    assert torch.autograd.gradcheck(factor, (edge[None].requires_grad_(True),))


def model_with_density(**options: Any) -> tuple[nbsr.NBSR, Tensor]:
    model = make_model(GRAPHS["tree"], density=nbsr.DensityFactor(ORACLE), **options).eval()
    return model, torch.randn(400, FEATURES)


def fit(model: nbsr.NBSR, x: Tensor) -> None:
    with torch.no_grad():
        model.fit_density(model.oracle(x))


def test_unfitted_in_a_model_it_does_nothing() -> None:
    model, x = model_with_density()
    twin = make_model(GRAPHS["tree"]).eval()
    assert model.evidence_scale(torch.zeros(2, ORACLE), torch.zeros(2, FEATURES)) is None
    with torch.no_grad():
        trace, plain = model(x), twin(x)
    assert trace.density is None
    assert torch.equal(trace.alpha, plain.alpha)
    with pytest.raises(nbsr.NotFittedError, match="fit_density"):
        nbsr.DensityFactor(ORACLE)(torch.zeros(2, ORACLE))


@pytest.mark.parametrize("activation", ["softplus", "sigmoid", "exp"])
def test_far_from_the_data_the_belief_is_the_prior_and_near_it_nothing_changes(activation: str) -> None:
    spec = nbsr.ExpertSpec(activation=activation, bound=4.0 if activation == "sigmoid" else None)  # type: ignore[arg-type]
    model, x = model_with_density(experts=spec, prior_weight=2.0)
    with torch.no_grad():
        before = model(x)
        fit(model, x)
        near, far = model(x), model(1e4 * torch.randn(50, FEATURES))
    inside = near.density == 1
    assert float(inside.float().mean()) > 0.97
    assert torch.equal(near.alpha[:, inside], before.alpha[:, inside])
    torch.testing.assert_close(far.precision[-1], torch.full((50,), 2.0, dtype=torch.float64), atol=0.05, rtol=0)
    prediction = model.predict(1e4 * torch.randn(50, FEATURES), max_vacuity=0.9)
    assert float(prediction.vacuity.min()) > 0.97
    assert bool(prediction.abstained.all())


@pytest.mark.parametrize("activation", ["softplus", "sigmoid", "exp"])
def test_theorem_1_stays_true(activation: str) -> None:
    """Strictly positive evidence, so that the precision grows with every step, however doubtful the input."""
    spec = nbsr.ExpertSpec(activation=activation, bound=4.0 if activation == "sigmoid" else None)  # type: ignore[arg-type]
    model, x = model_with_density(experts=spec)
    fit(model, x)
    scales = torch.logspace(0, 6, 200)[:, None]
    with torch.no_grad():
        trace = model(scales * torch.randn(200, FEATURES))
    assert model.density is not None
    assert float(trace.density.min()) == pytest.approx(model.density.floor)
    assert bool((trace.evidence > 0).all())
    assert bool((trace.precision.diff(dim=0) >= 0).all())
    variance = nbsr.dirichlet.variance(trace.alpha).amax(-1)
    assert bool((variance <= 1 / (4 * (trace.precision + 1)) + 1e-7).all())


def test_training_does_not_learn_to_please_it() -> None:
    model, x = model_with_density()
    fit(model, x)
    h = model.oracle(2 * x).detach().requires_grad_(True)
    in_training = model.train().evidence_scale(h, x)
    afterwards = model.eval().evidence_scale(h, x)
    assert in_training is not None
    assert afterwards is not None
    assert not in_training.requires_grad
    assert afterwards.requires_grad


def test_it_is_saved_with_the_model_and_loads_into_a_fresh_one() -> None:
    model, x = model_with_density()
    with torch.no_grad():
        model.fit_density(model.oracle(x), torch.arange(400) % 7)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh, _ = model_with_density()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh.density is not None
    assert fresh.density.fitted
    assert fresh.density.means.shape == (7, ORACLE)
    unknown = 5 * torch.randn(50, FEATURES)
    with torch.no_grad():
        assert torch.equal(fresh(unknown).alpha, model(unknown).alpha)
    for dim in (3, 8, 32, 100):
        h, y = Clusters(dim).draw(200)
        factor, loaded = nbsr.DensityFactor(dim).fit(h, y), nbsr.DensityFactor(dim)
        loaded.load_state_dict(factor.state_dict())
        assert torch.equal(factor.distance(h), loaded.distance(h))
    unfitted, _ = model_with_density()
    fresh.load_state_dict(unfitted.state_dict())
    assert not fresh.density.fitted


def test_refitting_forgets_the_first_fit() -> None:
    clusters, others = Clusters(4, seed=0), Clusters(4, classes=5, seed=1)
    twice = nbsr.DensityFactor(4).fit(*clusters.draw(300))
    h, y = others.draw(300)
    once = nbsr.DensityFactor(4).fit(h, y)
    assert torch.equal(twice.fit(h, y)(h), once(h))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": 0}, "directions must lie in 1..4"),
        ({"directions": 5}, "directions must lie in 1..4"),
        ({"power": 0.0}, "power must lie in"),
        ({"power": 1.5}, "power must lie in"),
        ({"quantile": 0.5}, "quantile must lie in"),
        ({"quantile": 1.0}, "quantile must lie in"),
        ({"floor": 0.0}, "floor must lie in"),
        ({"floor": 1.0}, "floor must lie in"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(nbsr.InputError, match=message):
        nbsr.DensityFactor(4, **options)  # type: ignore[arg-type]


def test_bad_features_are_refused() -> None:
    h = torch.randn(100, 4)
    factor = nbsr.DensityFactor(4)
    for features, message in (
        (torch.randn(100, 5), r"\[N, 4\], got \[100, 5\]"),
        (torch.randn(19, 4), "at least 20 training features, got 19"),
        (h.index_fill(0, torch.tensor([3]), math.nan), "must be finite"),
    ):
        with pytest.raises(nbsr.InputError, match=message):
            factor.fit(features)
    with pytest.raises(nbsr.InputError, match="at least 20 fresh features, got 3"):
        factor.fit(h, fresh=h[:3])
    assert not factor.fitted
    with pytest.raises(nbsr.InputError, match=r"\[N, 4\], got \[7, 3\]"):
        factor.fit(h)(torch.randn(7, 3))
    with pytest.raises(nbsr.InputError, match="sequences of 3, got 7 rows"):
        factor(torch.randn(7, 4), length=3)
    with pytest.raises(nbsr.InputError, match="no density factor"):
        make_model(GRAPHS["tree"]).fit_density(torch.randn(100, ORACLE))


def test_noise_images_stand_out_from_digits_in_the_precision() -> None:
    """A trained model is as sure of noise as of digits by its evidence alone; with the factor it is not."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[shuffled], y[shuffled]
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128))
    graph = nbsr.DecisionGraph.layered([2])
    model = nbsr.NBSR(backbone, graph, 10, 128, density=nbsr.DensityFactor(128))
    objective = nbsr.Objective()
    config = TrainingConfig(epochs=15, learning_rate=3e-3)
    batches = TensorBatches(x[:1200], y[:1200], batch_size=64)
    for _ in Trainer(model, lambda m, a, b, epoch: objective(m(a), b, epoch=epoch), batches, config).run():
        pass
    noise = torch.rand(600, 64, generator=torch.Generator().manual_seed(1))
    known, truth = x[1200:], np.r_[np.ones(len(x) - 1200), np.zeros(600)]

    def auroc() -> float:
        with torch.no_grad():
            precision = [model(part).precision[-1].numpy() for part in (known, noise)]
        return float(roc_auc_score(truth, np.concatenate(precision)))

    without = auroc()
    with torch.no_grad():
        accuracy = float((model(known).probabilities().argmax(-1) == y[1200:]).float().mean())
        model.fit_density(model.oracle(x[:1200]), y[:1200])
        afterwards = float((model(known).probabilities().argmax(-1) == y[1200:]).float().mean())
    assert accuracy > 0.9
    assert afterwards == pytest.approx(accuracy, abs=0.005)
    assert auroc() > max(0.98, without + 0.1)

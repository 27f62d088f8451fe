"""Standard models to compare with: each keeps the promises of a learner, and computes what its paper says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Dirichlet, kl_divergence

from nbsr_core import metrics
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.medical import Medical, MedicalData
from nbsr_core.domains.references import (
    TABULAR_REFERENCES,
    CartOptions,
    DropoutOptions,
    EarlyExitOptions,
    EnsembleOptions,
    EvidentialOptions,
    HistBoostingOptions,
    SoftTreeOptions,
    TabmOptions,
)
from nbsr_core.errors import InputError
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Classifier, Execution, Learner
from nbsr_core.learning.references import at_once
from nbsr_core.learning.references.at_once import draws_of, joined
from nbsr_core.learning.references.boosted_trees import BoostedTrees
from nbsr_core.learning.references.dropout import McDropout, ThinnedDropout, thinned_layers
from nbsr_core.learning.references.early_exit import EarlyExit
from nbsr_core.learning.references.ensemble import Ensemble
from nbsr_core.learning.references.evidential import EvidentialClassifier, expected_squares, misleading_evidence
from nbsr_core.learning.references.flat import flat_network
from nbsr_core.learning.references.soft_tree import SoftTree, SoftTreeClassifier, balance_penalty, log_paths
from nbsr_core.learning.references.tabm import TabM
from nbsr_core.learning.references.trees import Cart, HistBoosting
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.options.specs import EvaluationOptions

PATIENTS = MedicalData(train_patients=300, valid_patients=80, test_patients=40, draws=1, noise_scheme="fresh")
OPTIONS: dict[str, Any] = {
    "evidential": EvidentialOptions(hidden=(16,)),
    "ensemble": EnsembleOptions(hidden=(16,), members=3),
    "mc_dropout": DropoutOptions(hidden=(16, 16), passes=4),
    "soft_tree": SoftTreeOptions(hidden=(16,), depth=2),
    "early_exit": EarlyExitOptions(hidden=(24, 16)),
    "tabm": TabmOptions(hidden=(16, 16), members=4),
    "cart": CartOptions(max_depth=6),
    "hist_boosting": HistBoostingOptions(max_iter=2),
}
NETWORKS = ["evidential", "ensemble", "mc_dropout", "soft_tree", "early_exit", "tabm"]
every_kind = pytest.mark.parametrize("kind", TABULAR_REFERENCES)


@pytest.fixture(scope="module")
def splits() -> Splits:
    return Medical().load(PATIENTS, 0)


def built(kind: str, splits: Splits) -> Learner:
    seed_everything(0)
    return Medical.models[kind].build(OPTIONS[kind], Signature.of(splits))


def trained(kind: str, splits: Splits) -> Learner:
    learner = built(kind, splits)
    list(learner.train(splits, TrainingConfig(epochs=2, learning_rate=0.01), 0, Execution()))
    return learner


@every_kind
def test_a_reference_gives_probabilities_that_follow_from_the_seed_and_survive_being_stored(
    kind: str, splits: Splits
) -> None:
    learner, twin, fresh = trained(kind, splits), trained(kind, splits), built(kind, splits)
    said = learner.raw_probabilities(splits.test.x)
    assert said.shape == (len(splits.test), splits.num_classes)
    assert bool((said >= 0).all())
    assert torch.allclose(said.sum(1), torch.ones(len(said), dtype=said.dtype), atol=1e-5)
    assert torch.equal(twin.raw_probabilities(splits.test.x), said)
    state = learner.state()
    assert all(isinstance(value, Tensor) for value in state.values()), "a stored model is data"
    fresh.load_state(state)
    assert torch.equal(fresh.raw_probabilities(splits.test.x), said)
    assert fresh.size == learner.size > 0
    torch.rand(5)
    assert torch.equal(learner.raw_probabilities(splits.test.x), said), "whatever was drawn in between"


@every_kind
def test_an_answer_does_not_depend_on_what_is_asked_beside_it(kind: str, splits: Splits) -> None:
    learner = trained(kind, splits)
    together, alone = learner.raw_probabilities(splits.test.x), learner.raw_probabilities(splits.test.x[7:8])
    assert torch.allclose(together[7:8], alone, atol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_softmax_of_what_is_inside_is_the_answer(kind: str, splits: Splits) -> None:
    learner = trained(kind, splits)
    inside = learner.inside(splits.test.x)
    assert inside.features.shape == (len(splits.test), 48 if kind == "ensemble" else 16)
    assert torch.allclose(inside.logits.softmax(-1), learner.raw_probabilities(splits.test.x), atol=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_training_that_was_stopped_goes_on_as_if_it_was_not(kind: str, splits: Splits, tmp_path: Path) -> None:
    config, execution = TrainingConfig(epochs=2), Execution(checkpoint=tmp_path / "checkpoint")
    whole, stopped, resumed = (built(kind, splits) for _ in range(3))
    list(whole.train(splits, config, 0, Execution()))
    assert next(iter(stopped.train(splits, config, 0, execution))).epoch == 0
    assert [record.epoch for record in resumed.train(splits, config, 0, execution)] == [1]
    state = whole.state()
    assert all(torch.equal(value, state[name]) for name, value in resumed.state().items())


@pytest.mark.parametrize(
    ("options", "wrong", "said"),
    [
        (EvidentialOptions, {"penalty": -1.0}, "penalty must be a finite number >= 0, got -1.0"),
        (EvidentialOptions, {"anneal_epochs": -1}, "anneal_epochs must be a whole number >= 0, got -1"),
        (EvidentialOptions, {"hidden": ()}, "hidden must be at least one layer size"),
        (EnsembleOptions, {"members": 0}, "members must be a whole number >= 1, got 0"),
        (DropoutOptions, {"rate": 1.0}, r"rate must lie in \(0, 1\), got 1.0"),
        (DropoutOptions, {"passes": 0}, "passes must be a whole number >= 1, got 0"),
        (SoftTreeOptions, {"depth": 11}, "depth must lie in 1..10, got 11"),
        (TabmOptions, {"members": 0}, "members must be a whole number >= 1, got 0"),
        (TabmOptions, {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        (CartOptions, {"max_depth": 0}, "max_depth must be a whole number >= 1, got 0"),
        (HistBoostingOptions, {"learning_rate": 0.0}, r"learning_rate must lie in \(0, 1\], got 0.0"),
    ],
)
def test_a_bad_option_is_named_with_what_would_be_right(
    options: Callable[..., Any], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        options(**wrong)


class TestEvidential:
    @given(alpha=st.lists(st.floats(1.0, 30.0), min_size=2, max_size=5), label=st.integers(0, 1))
    @settings(max_examples=15, deadline=None)
    def test_its_loss_is_the_expected_squared_error(self, alpha: list[float], label: int) -> None:
        belief, y = torch.tensor([alpha], dtype=torch.float64), torch.tensor([label])
        torch.manual_seed(0)
        draws = Dirichlet(belief[0]).sample((40_000,))
        error = (draws - nn.functional.one_hot(y, len(alpha))).square().sum(-1)
        spread = float(error.std()) / len(draws) ** 0.5
        assert float(expected_squares(belief, y)) == pytest.approx(float(error.mean()), abs=6 * spread + 1e-9)

    @given(alpha=st.lists(st.floats(1.0, 30.0), min_size=2, max_size=6), label=st.integers(0, 1))
    @settings(max_examples=30, deadline=None)
    def test_its_penalty_is_the_divergence_from_no_evidence_but_for_the_true_class(
        self, alpha: list[float], label: int
    ) -> None:
        belief, y = torch.tensor([alpha], dtype=torch.float64), torch.tensor([label])
        others = belief[0].clone()
        others[label] = 1.0
        expected = kl_divergence(Dirichlet(others), Dirichlet(torch.ones_like(others)))
        assert float(misleading_evidence(belief, y)) == pytest.approx(float(expected), abs=1e-9)

    def test_evidence_for_the_true_class_is_free_and_the_penalty_comes_slowly(self) -> None:
        learner = EvidentialClassifier(nn.Identity(), penalty=2.0, anneal_epochs=4)
        outputs, y = torch.tensor([[3.0, 1.0, -20.0]]), torch.tensor([0])
        alpha, bound = learner.belief(outputs), np.exp(-10)  # one over the largest evidence
        assert alpha.tolist() == [pytest.approx([1 + 1 / (np.exp(-3) + bound), 1 + 1 / (np.exp(-1) + bound), 1])]
        terms = [learner.loss(learner.module, outputs, y, epoch) for epoch in range(7)]
        full = 2.0 / 3 * float(misleading_evidence(alpha, y))  # a third for each of three classes
        shares = [float(each["misleading"]) / full for each in terms]
        assert shares == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1])
        assert float(terms[2]["loss"]) == pytest.approx(float(expected_squares(alpha, y)) + full / 2)

    @pytest.mark.parametrize("classes", [3, 40])
    def test_it_learns_with_few_classes_and_with_many(self, classes: int) -> None:
        """The whole divergence would leave no evidence where there are dozens of classes."""
        generator = torch.Generator().manual_seed(0)
        y = torch.arange(classes).repeat(20)
        x = nn.functional.one_hot(y).float() + 0.1 * torch.randn(len(y), classes, generator=generator)
        part, names = Split(x, y), [str(number) for number in range(classes)]
        data = Splits(part, part, part, names, names, "corners", synthetic=True)
        seed_everything(0)
        learner = TABULAR_REFERENCES["evidential"].build(EvidentialOptions(hidden=(64,)), Signature.of(data))
        config = TrainingConfig(epochs=25, batch_size=64, learning_rate=0.01)
        *_, last = learner.train(data, config, 0, Execution())
        assert last.validation["accuracy"] > 0.95


class TestEnsemble:
    def test_it_is_no_worse_than_its_members_on_average(self, splits: Splits) -> None:
        learner = trained("ensemble", splits)
        assert isinstance(learner, Ensemble)
        members = learner.members_probabilities(splits.test.x).unbind(1)
        assert len(members) == 3
        assert not torch.equal(members[0], members[1]), "they started from different weights"
        average = sum(metrics.nll(member, splits.test.y) for member in members) / len(members)
        assert metrics.nll(learner.raw_probabilities(splits.test.x), splits.test.y) <= average

    def test_a_member_learns_what_it_would_learn_alone(self, splits: Splits) -> None:
        """But for the clipping of gradients, members do not touch: the second is the network that it is alone."""
        learner = trained("ensemble", splits)
        assert isinstance(learner, Ensemble)
        network = built("ensemble", splits)
        assert isinstance(network, Ensemble)
        backbones, heads = (network.module.get_submodule(f"{part}.members") for part in ("backbone", "head"))
        alone = Classifier(flat_network(backbones.get_submodule("1"), heads.get_submodule("1")))
        list(alone.train(splits, TrainingConfig(epochs=2, learning_rate=0.01), 0, Execution()))
        said = learner.members_probabilities(splits.test.x)[:, 1]
        assert torch.allclose(said, alone.raw_probabilities(splits.test.x), atol=1e-5)


class TestTabM:
    def test_its_members_share_all_but_the_scalings_and_their_heads(self) -> None:
        """Its paper's equation, written out: `s * (W (r * x)) + b` for each member, then a head of its own."""
        torch.manual_seed(0)
        learner, x = TabM(3, 2, (5, 4), members=6), torch.randn(7, 3)
        state = learner.state()
        parts = ("weight", "r", "s", "bias")
        layers = [{part: state[f"backbone.{place}.{part}"] for part in parts} for place in (1, 4)]
        assert [tuple(layer["weight"].shape) for layer in layers] == [(5, 3), (4, 5)]
        assert set(layers[0]["r"].unique().tolist()) == {-1.0, 1.0}, "members begin with inputs of different signs"
        assert bool((layers[1]["r"] == 1).all())
        each = []
        for member in range(6):
            h = x
            for layer in layers:
                h = (((h * layer["r"][member]) @ layer["weight"].T) * layer["s"][member] + layer["bias"][member]).relu()
            each.append((h @ state["head.weight"][member] + state["head.bias"][member]).softmax(-1))
        assert torch.allclose(learner.members_probabilities(x), torch.stack(each, 1), atol=1e-6)
        assert torch.allclose(learner.raw_probabilities(x), torch.stack(each).mean(0), atol=1e-6)

    def test_it_learns_with_the_mean_of_its_members_losses_and_answers_no_worse_than_they_do(
        self, splits: Splits
    ) -> None:
        learner = trained("tabm", splits)
        assert isinstance(learner, TabM)
        x, y = splits.test.x, splits.test.y
        members = learner.members_probabilities(x).unbind(1)
        average = sum(metrics.nll(member, y) for member in members) / len(members)
        loss = learner.loss(learner.module.eval(), x, y, 0)["loss"]
        assert loss.item() == pytest.approx(average, rel=1e-4)
        assert metrics.nll(learner.raw_probabilities(x), y) <= average


class TestDropout:
    def test_it_drops_in_training_and_thins_alike_for_all_samples_in_use(self) -> None:
        dropout, x = ThinnedDropout(50, 0.4, passes=30, place=0), torch.ones(6, 50)
        assert dropout.train()(x).shape == (6, 50)
        used = dropout.eval()(x)
        assert used.shape == (30, 6, 50)
        assert torch.equal(used[:, 0], used[:, 5])
        assert used.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
        assert float((used == 0).float().mean()) == pytest.approx(0.4, abs=0.05)
        assert not torch.equal(dropout.masks, ThinnedDropout(50, 0.4, passes=30, place=1).masks)

    def test_the_answer_is_the_mean_over_thinned_networks(self) -> None:
        torch.manual_seed(0)
        layers, head, x = thinned_layers(3, (5, 4), 0.3, passes=6), nn.Linear(4, 2), torch.randn(7, 3)
        learner = McDropout(flat_network(layers, head))
        first, second = (layer for layer in layers if isinstance(layer, ThinnedDropout))
        each = []
        for number in range(6):
            h = layers[0](x).relu() * first.masks[number]
            each.append(head(layers[3](h).relu() * second.masks[number]).softmax(-1))
        assert torch.allclose(learner.raw_probabilities(x), torch.stack(each).mean(0), atol=1e-6)

    def test_the_head_learns_while_the_backbone_stands_still(self, splits: Splits) -> None:
        learner = built("mc_dropout", splits)
        config = TrainingConfig(epochs=2, frozen_share=0.5)
        assert len(list(learner.train(splits, config, 0, Execution()))) == 2


class TestSoftTree:
    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_every_sample_comes_to_the_leaves_with_probability_one(self, depth: int) -> None:
        torch.manual_seed(depth)
        for level in log_paths(3 * torch.randn(5, 2**depth - 1), depth):
            assert torch.allclose(level.exp().sum(1), torch.ones(5), atol=1e-6)

    @pytest.mark.parametrize("linear", [True, False])
    def test_its_answer_is_the_mixture_of_its_leaves(self, linear: bool) -> None:
        torch.manual_seed(0)
        tree, h = SoftTree(3, 4, 2, linear_leaves=linear).double(), torch.randn(5, 3, dtype=torch.float64)
        right = tree.gates(h).sigmoid()
        root, second, third = right.unbind(1)
        paths = [(1 - root) * (1 - second), (1 - root) * second, root * (1 - third), root * third]
        said = tree.leaves(h if linear else torch.ones(5, 1, dtype=torch.float64)).view(5, 4, 4).softmax(-1)
        mixture = sum(path.unsqueeze(1) * said[:, leaf] for leaf, path in enumerate(paths))
        assert isinstance(mixture, Tensor)
        assert torch.allclose(tree(h)[0].exp(), mixture)

    @pytest.mark.parametrize("linear", [True, False])
    def test_its_gradients_are_those_of_its_loss(self, linear: bool) -> None:
        torch.manual_seed(0)
        tree = SoftTree(2, 3, 2, linear_leaves=linear).double()
        learner = SoftTreeClassifier(nn.Identity(), tree, balance=0.5)
        x, y = torch.randn(4, 2, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 1, 0])

        def loss(x: Tensor, *_: Tensor) -> Tensor:
            return learner.loss(learner.module, x, y, 0)["loss"]

        assert torch.autograd.gradcheck(loss, (x, *tree.parameters()))

    def test_a_gate_that_sends_all_samples_one_way_is_penalised(self) -> None:
        fair, shifts = torch.zeros(6, 3), (0.0, 1.0, 3.0, 9.0)
        found = [float(balance_penalty(fair + torch.tensor([shift, 0.0, 0.0]), 2)) for shift in shifts]
        assert found[0] == pytest.approx(2 * np.log(2)), "ln 2 for the root, and half of it for each of two below"
        assert all(one < other for one, other in pairwise(found))


@pytest.fixture(scope="module")
def learner(splits: Splits) -> EarlyExit:
    learner = built("early_exit", splits)
    list(learner.train(splits, TrainingConfig(epochs=8, learning_rate=0.01), 0, Execution()))
    assert isinstance(learner, EarlyExit)
    return learner


class TestEarlyExit:
    def test_its_heads_read_their_own_layers(self, learner: EarlyExit, splits: Splits) -> None:
        learner.use_temperatures(())
        said, state = learner.by_depth(splits.test.x), learner.state()
        h = splits.test.x
        for depth in (1, 2):
            at, head = f"backbone.stages.{depth - 1}.0", f"head.heads.{depth - 1}"
            h = (h @ state[f"{at}.weight"].T + state[f"{at}.bias"]).relu()
            expected = (h @ state[f"{head}.weight"].T + state[f"{head}.bias"]).softmax(-1)
            assert torch.allclose(said.raw_probabilities(depth), expected, atol=1e-6)
            assert torch.equal(said.probabilities(depth), said.raw_probabilities(depth))
        assert torch.equal(learner.probabilities(splits.test.x), said.probabilities())

    def test_it_stops_where_its_calibrated_answer_is_sure_enough(self, learner: EarlyExit, splits: Splits) -> None:
        learner.calibrate(splits.valid)
        assert len(learner.temperatures) == 2
        x, y = splits.test.x, splits.test.y
        said = learner.by_depth(x)
        first, last = (said.probabilities(depth) for depth in (1, 2))
        assert torch.equal(last, learner.probabilities(x))
        entropy = -(first * first.log()).sum(1)
        eta = float(entropy.median()) + 1e-6
        sure = entropy < eta
        stopped = said.exit(eta)
        assert 0 < int(sure.sum()) < len(sure)
        assert torch.equal(stopped.depth == 1, sure)
        assert torch.equal(stopped.probs, torch.where(sure.unsqueeze(1), first, last))
        assert bool((said.exit(None).depth == 2).all())
        (row,) = said.frontier(y, [eta]).rows()
        assert row["accuracy"] == pytest.approx(metrics.accuracy(stopped.probs, y))
        assert row["nll"] == pytest.approx(metrics.nll(stopped.probs, y))
        assert row["mean_depth"] == row["mean_cost"] == pytest.approx(2 - float(sure.double().mean()))

    def test_its_threshold_is_chosen_as_that_of_a_walk_is(self, learner: EarlyExit, splits: Splits) -> None:
        allowed = EvaluationOptions(max_accuracy_loss=0.02, audits=0)
        evaluation = Medical().judge(learner, splits, allowed)
        figures, valid = evaluation.metrics, learner.by_depth(splits.valid.x)
        assert figures["fast/eta"] == valid.frontier(splits.valid.y).cheapest(0.02)
        stopped = learner.by_depth(splits.test.x).exit(figures["fast/eta"])
        assert figures["fast/accuracy"] == metrics.accuracy(stopped.probs, splits.test.y)
        assert figures["fast/mean_depth"] == float(stopped.depth.double().mean())
        assert figures["depth2/nll"] == figures["test/nll"]
        assert figures["valid/fast/accuracy"] >= max(figures["valid/accuracy"], 0) - 0.02
        assert {"fast/ece", "fast/nll", "fast/exited", "depth1/accuracy", "depth1/temperature"} <= figures.keys()
        assert evaluation.tables["frontier"]

    def test_a_study_may_set_the_threshold_and_it_says_so(self, learner: EarlyExit, splits: Splits) -> None:
        never = Medical().judge(learner, splits, EvaluationOptions(eta=-1.0, audits=0)).metrics
        assert (never["fast/exited"], never["fast/mean_depth"]) == (0, 2)
        assert never["fast/nll"] == never["test/nll"]
        assert "evaluation.eta" not in learner.ignores
        assert "evaluation.audits" in learner.ignores


def clouds(classes: int, seed: int = 0) -> Splits:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 4, generator=generator)
    y = torch.arange(240) % classes
    part = Split(centres[y] + torch.randn(240, 4, generator=generator), y)
    names = [str(number) for number in range(classes)]
    return Splits(part, part, part, names, list("wxyz"), "clouds", synthetic=True)


class TestTrees:
    @pytest.mark.parametrize("classes", [2, 3, 5])
    @pytest.mark.parametrize("absent", [False, True])
    def test_our_walk_answers_what_scikit_learn_answers(self, classes: int, absent: bool) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.tree import DecisionTreeClassifier

        data = clouds(classes).train
        labels = data.y + 1 if absent else data.y  # class 0 is never seen
        rows, num_classes = Split(data.x, labels), classes + int(absent)
        fresh = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
        for learner, reference in (
            (Cart(num_classes, max_depth=5), DecisionTreeClassifier(random_state=3, max_depth=5)),
            (
                HistBoosting(num_classes, max_iter=4),
                HistGradientBoostingClassifier(random_state=3, max_iter=4, early_stopping=False),
            ),
        ):
            learner.fit([rows], seed=3)
            reference.fit(rows.x.numpy(), rows.y.numpy())
            for x in (fresh, data.x):
                said = learner.raw_probabilities(x)
                assert torch.equal(said[:, 0], torch.zeros(len(x), dtype=said.dtype)) or not absent
                expected = torch.from_numpy(reference.predict_proba(x.numpy()))
                assert torch.allclose(said[:, int(absent) :], expected, atol=1e-12)

    def test_a_forest_that_goes_in_circles_is_left(self) -> None:
        learner = Cart(2)
        learner.fit([clouds(2).train], seed=0)
        state = learner.state()
        state["left"] = state["right"] = (torch.arange(len(state["left"])) + 1) % len(state["left"])
        learner.load_state(state)
        assert learner.raw_probabilities(torch.zeros(3, 4)).shape == (3, 2)

    def test_they_see_as_many_draws_of_fresh_noise_as_networks_do(
        self, splits: Splits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = joined(draws_of(splits, 3, seed=0))
        assert len(rows) == 3 * len(splits.train)
        first, second, third = rows.x.split(len(splits.train))
        assert not torch.equal(first, second)
        assert not torch.equal(second, third)
        assert torch.equal(rows.y.view(3, -1)[2], splits.train.y)
        assert torch.equal(joined(draws_of(splits, 3, seed=0)).x, rows.x)
        assert not torch.equal(joined(draws_of(splits, 3, seed=1)).x, rows.x)
        monkeypatch.setattr(at_once, "MOST_ROWS", 2 * len(splits.train) + 5)
        assert len(draws_of(splits, 40, seed=0)) == 2
        monkeypatch.setattr(at_once, "MOST_ROWS", 1)
        assert len(draws_of(splits, 40, seed=0)) == 1, "always one draw"

    def test_each_round_of_boosting_sees_the_next_draw(self, splits: Splits) -> None:
        import xgboost

        draws = draws_of(splits, 2, seed=0)
        ours = BoostedTrees(splits.num_classes, n_estimators=3, max_depth=2)
        ours.fit(draws, seed=0)
        settings = {"objective": "multi:softprob", "num_class": splits.num_classes, "max_depth": 2}
        reference = None
        for draw in (draws[0], draws[1], draws[0]):
            table = xgboost.DMatrix(draw.x.numpy(), draw.y.numpy())
            reference = xgboost.train(settings, table, 1, xgb_model=reference)
        assert reference is not None
        expected = torch.from_numpy(reference.predict(xgboost.DMatrix(splits.valid.x.numpy()))).double()
        assert torch.allclose(ours.raw_probabilities(splits.valid.x), expected, atol=1e-6)

    def test_without_noise_boosting_is_what_xgboost_itself_does(self) -> None:
        import xgboost

        data = clouds(3)
        ours = BoostedTrees(3, n_estimators=4)
        ours.fit([data.train], seed=0)
        reference = xgboost.XGBClassifier(n_estimators=4).fit(data.train.x.numpy(), data.train.y.numpy())
        expected = torch.from_numpy(reference.predict_proba(data.valid.x.numpy())).double()
        assert torch.allclose(ours.raw_probabilities(data.valid.x), expected, atol=1e-6)

    def test_without_fresh_noise_every_row_counts_once(self) -> None:
        data = clouds(3)
        assert joined(draws_of(data, 40, seed=0)) is data.train

    def test_of_the_training_only_the_epochs_count(self, splits: Splits) -> None:
        def learned(config: TrainingConfig) -> dict[str, Any]:
            learner = built("cart", splits)
            list(learner.train(splits, config, 0, Execution()))
            return learner.state()

        plain, other = learned(TrainingConfig(epochs=2)), learned(TrainingConfig(epochs=2, batch_size=7))
        assert all(torch.equal(plain[name], other[name]) for name in plain)
        assert len(learned(TrainingConfig(epochs=3))["feature"]) != len(plain["feature"])
        ignored = built("cart", splits).ignores
        assert "training.batch_size" in ignored
        assert "training.epochs" not in ignored

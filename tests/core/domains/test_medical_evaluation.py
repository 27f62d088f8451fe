"""What a medical evaluation says beside the test figures: further sets by depth, routing, the ceiling, importance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nbsr_core import metrics
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.medical import Medical, MedicalData, MedicalSplits, bayes_posterior, system_of, systems
from nbsr_core.domains.tabular import BoostedTreesOptions, GraphOptions, NbsrOptions
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions, classification_figures
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution, Learner, NbsrLearner
from nbsr_core.learning.objectives import Objective
from nbsr_core.learning.references.boosted_trees import BoostedTrees

DATA = MedicalData(train_patients=800, valid_patients=300, test_patients=60, draws=4, noise_scheme="fresh")
NBSR = NbsrOptions(hidden=(32,), objective=Objective(every_depth=1.0, concept=0.3))
TREES = BoostedTreesOptions(n_estimators=2, max_depth=3)


@pytest.fixture(scope="module")
def splits() -> MedicalSplits:
    return Medical().load(DATA, 0)


def trained(kind: str, options: object, splits: MedicalSplits) -> tuple[Learner, Evaluation]:
    domain = Medical()
    seed_everything(0)
    learner = domain.models[kind].build(options, Signature.of(splits))
    for _ in learner.train(splits, TrainingConfig(epochs=6, learning_rate=0.01), 0, Execution()):
        pass
    return learner, domain.evaluate(learner, splits, EvaluationOptions(prune=0.2))


@pytest.fixture(scope="module", params=[False, True], ids=["systems first", "generalist first"])
def walker(splits: MedicalSplits, request: pytest.FixtureRequest) -> tuple[NbsrLearner, Evaluation]:
    learner, evaluation = trained("nbsr", replace(NBSR, graph=GraphOptions(generalist=request.param)), splits)
    assert isinstance(learner, NbsrLearner)
    return learner, evaluation


@pytest.fixture(scope="module")
def trees(splits: MedicalSplits) -> tuple[BoostedTrees, Evaluation]:
    learner, evaluation = trained("xgboost", TREES, splits)
    assert isinstance(learner, BoostedTrees)
    return learner, evaluation


def test_noise_draws_are_judged_at_every_depth(walker: tuple[NbsrLearner, Evaluation], splits: MedicalSplits) -> None:
    learner, evaluation = walker
    draws = splits.extra["noise_draws"]
    alpha = learner.trace(draws.x).alpha  # [beliefs, N, 41], calibrated
    for depth in range(1, len(alpha)):
        probs = alpha[depth] / alpha[depth].sum(-1, keepdim=True)
        assert evaluation.metrics[f"noise_draws/depth{depth}/ece"] == pytest.approx(
            metrics.ece(probs, draws.y), abs=1e-6
        )
    assert evaluation.metrics[f"noise_draws/depth{depth}/accuracy"] == evaluation.metrics["noise_draws/accuracy"]
    assert evaluation.metrics["noise_draws/depth1/nll"] != evaluation.metrics["noise_draws/depth2/nll"]


def test_routing_is_judged_by_the_body_systems(walker: tuple[NbsrLearner, Evaluation], splits: MedicalSplits) -> None:
    learner, evaluation = walker
    for name, split in {"test": splits.test, **splits.extra}.items():
        trace = learner.trace(split.x)
        passed = [trace.graph.name(node) for walk in trace.nodes.T.tolist() for node in walk]
        visited = [name for name in passed if name in systems()]
        wanted = [system_of(splits.class_names[int(k)]) for k in split.y]
        agreement = sum(a == b for a, b in zip(visited, wanted, strict=True)) / len(wanted)
        rarest = min(visited.count(system) for system in systems()) / len(visited)
        assert evaluation.metrics[f"{name}/routing_agreement"] == pytest.approx(agreement)
        assert evaluation.metrics[f"{name}/smallest_mid_usage"] == pytest.approx(rarest)


def test_a_pruned_copy_is_judged_beside_the_whole_model(
    walker: tuple[NbsrLearner, Evaluation], splits: MedicalSplits
) -> None:
    learner, evaluation = walker
    usage, found = learner.trace(splits.valid.x).usage, evaluation.metrics
    smaller = learner.model.pruned(usage, 0.2)
    assert found["pruned/experts"] == smaller.graph.num_experts < learner.model.graph.num_experts
    assert found["pruned/parameters"] < found["model/parameters"] == learner.size
    right = smaller.predict(splits.test.x).label == splits.test.y
    assert found["pruned/accuracy"] == pytest.approx(right.double().mean().item())
    wanted = classification_figures(learner, list(splits.extra), EvaluationOptions(prune=0.2))
    assert {name for name in found if name.startswith("pruned/")} <= wanted


def test_the_ceiling_is_the_same_whatever_was_trained(
    walker: tuple[NbsrLearner, Evaluation], trees: tuple[BoostedTrees, Evaluation], splits: MedicalSplits
) -> None:
    of_walker, of_trees = (
        {name: value for name, value in evaluation.metrics.items() if name.startswith("ceiling/")}
        for _, evaluation in (walker, trees)
    )
    assert of_walker == of_trees
    draws = splits.extra["noise_draws"]
    right = bayes_posterior(draws.x, splits.profiles, DATA.noise).argmax(1) == draws.y
    assert of_walker["ceiling/noise_draws/accuracy"] == right.double().mean().item()


def test_importance_is_the_gain_that_xgboost_reports(
    trees: tuple[BoostedTrees, Evaluation], splits: MedicalSplits
) -> None:
    learner, _ = trees
    frame = learner.booster.trees_to_dataframe()
    inner = frame[frame.Feature != "Leaf"]
    gain = torch.zeros(132, dtype=torch.float64)
    for name, mean in inner.groupby("Feature").Gain.mean().items():
        gain[int(str(name)[1:])] = mean
    reloaded = BoostedTrees(splits.num_classes)
    reloaded.load_state(learner.state())
    for asked in (learner, reloaded):
        assert torch.allclose(asked.importance(132), gain / gain.sum(), rtol=1e-4)

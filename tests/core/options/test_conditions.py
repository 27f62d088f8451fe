"""An option that is said not to count makes no difference to what is learned; one that counts does."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nbsr_core.domains.acquisition.data import AcquisitionData
from nbsr_core.domains.domain import SHIPPED, Signature, find_domain
from nbsr_core.domains.table import TableData
from nbsr_core.domains.tabular import DensityOptions, GraphOptions, NbsrOptions, build_nbsr
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.learners import Execution, NbsrLearner
from nbsr_core.learning.objectives import Objective, expected_cost
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.routers import RouterSpec
from nbsr_core.options.conditions import METADATA, without_effect
from nbsr_core.options.specs import TemperatureSchedule

EVEN = DecisionGraph.taxonomy({"left": {"a": ["0"], "b": ["1"]}, "right": {"c": ["2"]}})
DEARER = DecisionGraph.taxonomy({"left": {"a": ["0"], "b": ["1"]}, "right": {"c": ["2"]}}, costs={"left": 3})


def splits() -> Splits:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    part = Split(torch.randn(60, 4, generator=generator) + y.unsqueeze(1), y)
    return Splits(part, part, part, ("0", "1", "2"), list("wxyz"), "clouds", synthetic=True)


def learned(
    options: NbsrOptions, training: TrainingConfig, graph: DecisionGraph = EVEN
) -> tuple[NbsrLearner, dict[str, Any]]:
    data = splits()
    torch.manual_seed(0)
    learner = build_nbsr(options, Signature.of(data), graph)
    list(learner.train(data, training, 0, Execution()))
    return learner, learner.state()


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


SMALL = NbsrOptions(hidden=(6,))
SHORT = TrainingConfig(epochs=3, batch_size=30, learning_rate=0.05)


@pytest.mark.parametrize(
    ("key", "options", "training", "graph"),
    [
        ("graph.depth", replace(SMALL, graph=GraphOptions(depth=3)), SHORT, EVEN),
        ("graph.width", replace(SMALL, graph=GraphOptions(width=7)), SHORT, EVEN),
        ("density.quantile", replace(SMALL, density=DensityOptions(quantile=0.7)), SHORT, EVEN),
        ("objective.anneal_epochs", replace(SMALL, objective=Objective(anneal_epochs=2)), SHORT, EVEN),
        ("training.decay_everything", SMALL, replace(SHORT, decay_everything=True), EVEN),
        ("training.step_size", SMALL, replace(SHORT, step_size=1), EVEN),
        ("training.factor", SMALL, replace(SHORT, factor=0.2), EVEN),
        ("training.patience", SMALL, replace(SHORT, patience=1), EVEN),
        ("training.finetune_scale", SMALL, replace(SHORT, finetune_scale=0.5), EVEN),
        ("training.watch", SMALL, replace(SHORT, watch="nll"), EVEN),
    ],
)
def test_what_does_not_count_makes_no_difference(
    key: str, options: NbsrOptions, training: TrainingConfig, graph: DecisionGraph
) -> None:
    learner, plain = learned(SMALL, SHORT, graph)
    idle = {**dict(without_effect(options)), **dict(without_effect(training, "training.")), **learner.ignores}
    assert key in idle
    assert equal(plain, learned(options, training, graph)[1])


@pytest.mark.parametrize(
    ("key", "base", "changed", "training"),
    [
        ("estimator", {"routing": "argmax"}, {"estimator": "counterfactual"}, SHORT),
        ("estimator", {"routing": "softmax"}, {"estimator": "counterfactual"}, SHORT),
        ("objective.cost", {"routing": "argmax"}, {"objective": Objective(cost=0.5)}, SHORT),
        ("training.temperature", {"routing": "argmax"}, {}, replace(SHORT, temperature=TemperatureSchedule(5.0))),
        (
            "objective.every_depth",
            {"graph": GraphOptions("uniform", 1)},
            {"objective": Objective(every_depth=2.0)},
            SHORT,
        ),
        ("objective.balance", {"graph": GraphOptions("chain")}, {"objective": Objective(balance=2.0)}, SHORT),
        ("router", {"graph": GraphOptions("chain")}, {"router": RouterSpec(belief="log")}, SHORT),
        ("graph.width", {"graph": GraphOptions("chain")}, {"graph": GraphOptions("chain", width=9)}, SHORT),
        (
            "graph.width",
            {"graph": GraphOptions("layered", widths=(2, 2))},
            {"graph": GraphOptions("layered", width=9, widths=(2, 2))},
            SHORT,
        ),
    ],
)
def test_what_a_walk_ignores_makes_no_difference(
    key: str, base: dict[str, Any], changed: dict[str, Any], training: TrainingConfig
) -> None:
    before, after = replace(SMALL, **base), replace(SMALL, **{**base, **changed})
    learner, plain = learned(before, SHORT, DEARER)
    assert key in {**dict(without_effect(after)), **learner.ignores}
    assert equal(plain, learned(after, training, DEARER)[1])


@pytest.mark.parametrize(("graph", "counts"), [(EVEN, False), (DEARER, True)])
def test_costs_count_only_if_a_router_can_choose_the_cheaper_child(graph: DecisionGraph, counts: bool) -> None:
    data = splits()
    learner = build_nbsr(SMALL, Signature.of(data), graph)
    expected_cost(learner.model.train()(data.train.x)).backward()
    slopes = [float(p.grad.abs().max()) for p in learner.model.parameters() if p.grad is not None]
    assert (max(slopes) > 1e-4) == counts, "what is left of a constant is rounding"
    assert ("objective.cost" in learner.ignores) == (not counts)


def test_an_option_counts_as_soon_as_its_condition_holds() -> None:
    assert dict(without_effect(GraphOptions("uniform"))).keys() == {"widths"}
    assert not dict(without_effect(DensityOptions(enabled=True)))
    assert "max_nll_loss" in dict(without_effect(EvaluationOptions(eta=-3.0)))


def conditioned(options: type) -> list[str]:
    own = [f"{options.__name__}.{item.name}" for item in fields(options) if METADATA in item.metadata]
    inner = [type(getattr(with_defaults(options), item.name)) for item in fields(options)]
    return own + [name for kind in inner if is_dataclass(kind) for name in conditioned(kind)]


def with_defaults(options: type) -> Any:
    """Options as they are where a study says no more than it must: of a table, its file, its target and a price."""
    if options is AcquisitionData:
        return AcquisitionData(Path("table.csv"), "class", other_cost=1.0)
    return TableData(Path("table.csv"), "class") if options is TableData else options()


@pytest.mark.parametrize("name", SHIPPED)
def test_conditions_of_shipped_options_can_be_asked(name: str) -> None:
    """A condition looks at the options beside it: one that names an option which is not there would raise."""
    domain = find_domain(name)
    for options in (domain.data, TrainingConfig, *(kind.options for kind in domain.models.values())):
        keys = dict(without_effect(with_defaults(options)))
        assert {key.rpartition(".")[2] for key in keys} <= {key.rpartition(".")[2] for key in conditioned(options)}

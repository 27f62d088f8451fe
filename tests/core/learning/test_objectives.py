"""Every term of the loss against its definition spelled out, and what each of them teaches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import FEATURES, GRAPHS, make_model
from reference import PADDED
from torch import Tensor
from torch.distributions import Categorical, Dirichlet

import nbsr_core as nbsr
from nbsr_core.learning import objectives
from nbsr_core.trace.belief_trace import Step

OWNED = nbsr.DecisionGraph.taxonomy(
    {"Animal": {"Pets": ["cat", "dog"], "Wild": {"Birds": ["bird"], "Deer": ["deer", "cat"]}}, "Vehicle": ["truck"]}
)
CLASSES = ["cat", "dog", "bird", "deer", "truck"]
COSTLY = nbsr.DecisionGraph.from_edges(
    [("Root", "cheap"), ("Root", "dear"), ("cheap", "a"), ("cheap", "b"), ("dear", "b"), ("dear", "c")],
    costs={"cheap": 1.0, "dear": 9.0, "a": 2.0, "b": 3.0, "c": 0.5},
)
ALL_GRAPHS = {**GRAPHS, "owned": OWNED, "costly": COSTLY, "padded": PADDED}


def walked(
    graph: nbsr.DecisionGraph, rows: int = 12, seed: int = 0, training: bool = True, eta: float | None = None
) -> nbsr.BeliefTrace:
    """A walk by an untrained model, in which routes are sampled, and some may exit early."""
    model = make_model(graph, seed=seed).train(training)
    trace: nbsr.BeliefTrace = model(3 * torch.randn(rows, FEATURES), eta=eta)
    return trace


def labels(rows: int = 12) -> Tensor:
    return torch.arange(rows) % 5


def admissible() -> Tensor:
    return torch.tensor(OWNED.admissible(5, CLASSES))


def visits(trace: nbsr.BeliefTrace, row: int) -> range:
    """The steps that one sample really took."""
    return range(int(trace.walking[:, row].sum()))


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_nll_and_deep_supervision(name: str) -> None:
    trace, y = walked(ALL_GRAPHS[name]), labels()
    last, before = [], []
    for row in range(len(trace)):
        depths = [t + 1 for t in visits(trace, row)]
        log_prob = [Categorical(probs=trace.beliefs[t][row]).log_prob(y[row]) for t in depths]
        last.append(-log_prob[-1])
        before.append(-sum(log_prob[:-1], torch.tensor(0.0)))
    torch.testing.assert_close(objectives.nll(trace.beliefs[-1], y), torch.stack(last).mean())
    torch.testing.assert_close(objectives.deep_supervision(trace, y), torch.stack(before).mean())


def test_deep_supervision_is_nothing_where_there_is_one_depth() -> None:
    trace = walked(nbsr.DecisionGraph.layered([3]))
    assert objectives.deep_supervision(trace, labels()).item() == 0.0


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_entropy_penalty(name: str) -> None:
    trace = walked(ALL_GRAPHS[name])
    spelled = [
        sum((Dirichlet(trace.beliefs[t + 1][row]).entropy() for t in visits(trace, row)), torch.tensor(0.0))
        for row in range(len(trace))
    ]
    torch.testing.assert_close(objectives.entropy_penalty(trace), torch.stack(spelled).mean())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_expected_cost_is_what_the_visited_nodes_cost(name: str, training: bool) -> None:
    trace = walked(ALL_GRAPHS[name], training=training).detach()
    spent = [
        sum(trace.graph.nodes[int(trace.nodes[t + 1, row])].cost for t in visits(trace, row))
        for row in range(len(trace))
    ]
    assert float(objectives.expected_cost(trace)) == pytest.approx(sum(spent) / len(spent))
    assert float(objectives.expected_cost(trace)) == pytest.approx(float(trace.cost[-1].mean()))


@pytest.mark.parametrize("name", ["costly", "owned", "padded"])
def test_the_gradient_of_the_cost_is_that_of_the_relaxed_choice(name: str) -> None:
    model = make_model(ALL_GRAPHS[name], router=nbsr.RouterSpec(belief="none"))
    trace = model(3 * torch.randn(12, FEATURES))
    relaxed = [step.relaxed for step in trace.steps]
    found = torch.autograd.grad(objectives.expected_cost(trace), relaxed, allow_unused=True)
    for t, gradient in enumerate(found):
        wanted = torch.zeros_like(relaxed[t])
        for row in range(len(trace)):
            for j, child in enumerate(trace.graph.nodes[int(trace.nodes[t, row])].children):
                if bool(trace.walking[t, row]):
                    wanted[row, j] = trace.graph.nodes[child].cost / len(trace)
        known = wanted > 0  # where there is no child, nothing flows further: its probability is a constant 0
        torch.testing.assert_close(gradient[known], wanted[known])


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_regulariser_counts_evidence_for_wrong_classes_only(name: str) -> None:
    trace, y = walked(ALL_GRAPHS[name]), labels()
    total = 0.0
    for row in range(len(trace)):
        for k in range(5):
            if k != int(y[row]):
                total += trace.evidence[:, row, k].sum().item()
    found = objectives.evidential_regulariser(trace, y)
    assert found.item() == pytest.approx(total / len(trace) / 5, rel=1e-5)
    (gradient,) = torch.autograd.grad(found, trace.beliefs[-1])
    assert bool((gradient.gather(1, y[:, None]) == 0).all())
    assert int((gradient > 0).sum()) == 4 * len(trace)


@pytest.mark.parametrize("eta", [None, -3.7])
@pytest.mark.parametrize("seed", range(3))
def test_concept_loss(seed: int, eta: float | None) -> None:
    trace, y, owns = walked(OWNED, rows=40, seed=seed, eta=eta), labels(40), admissible()
    stops_at_a_router = ~trace.walking[1] & (trace.nodes[1] == OWNED.index("Animal"))
    assert bool(stops_at_a_router.any()) == (eta is not None)
    spelled = []
    for row in range(len(trace)):
        blame = torch.tensor(0.0)
        for t in visits(trace, row):
            children = OWNED.nodes[int(trace.nodes[t, row])].children
            right = [j for j, child in enumerate(children) if CLASSES[int(y[row])] in OWNED.nodes[child].classes]
            if len(children) > 1 and right:
                probs = torch.softmax(trace.steps[t].logits[row, : len(children)].double(), dim=0)
                blame = blame - torch.log(probs[right].sum()).float()
        spelled.append(blame)
    wanted = torch.stack(spelled).mean()
    found = objectives.concept_loss(trace, y, owns)
    torch.testing.assert_close(found, wanted)
    logits = [step.logits for step in trace.steps]
    gradients = torch.autograd.grad(found, logits, retain_graph=True, materialize_grads=True)
    expected = torch.autograd.grad(wanted, logits, materialize_grads=True)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)


def handmade(
    graph: nbsr.DecisionGraph, logits: list[Tensor], choices: list[Tensor], walking: list[Tensor | None] | None = None
) -> nbsr.BeliefTrace:
    """A trace with these logits and choices, and the same evidence for everything."""
    rows, prior = len(choices[0]), torch.ones(5)
    node, beliefs, steps = torch.zeros(rows, dtype=torch.int64), [prior.expand(rows, -1)], []
    for t, (scores, choice) in enumerate(zip(logits, choices, strict=True)):
        node = torch.tensor(graph.child_table)[node, choice]
        evidence = torch.ones(rows, 5)
        beliefs.append(beliefs[-1] + evidence)
        steps.append(Step(node, evidence, scores, choice, None, None if walking is None else walking[t]))
    return nbsr.BeliefTrace(graph, prior, tuple(beliefs), tuple(steps))


def test_several_owners_add_up_and_strangers_are_not_blamed() -> None:
    graph = nbsr.DecisionGraph.taxonomy(
        {"left": {"a": [0], "b": [1]}, "middle": {"c": [1], "d": [2]}, "right": {"e": [3], "f": [4]}}
    )
    owns = torch.tensor(graph.admissible(5))
    first = torch.tensor([[0.3, -1.0, 2.0]] * 3, requires_grad=True)
    second = torch.tensor([[0.5, -0.5]] * 3, requires_grad=True)
    y, to_e = torch.tensor([1, 3, 2]), [torch.full((3,), 2), torch.zeros(3, dtype=torch.int64)]
    loss = objectives.concept_loss(handmade(graph, [first, second], to_e), y, owns)
    p, q = first[0].softmax(0), second[0].softmax(0)
    root = -(torch.log(p[0] + p[1]) + torch.log(p[2]) + torch.log(p[1])) / 3
    torch.testing.assert_close(loss, root - torch.log(q[0]) / 3)  # at the router of `right`, only class 3 has an owner
    loss.backward()
    assert second.grad is not None
    assert (second.grad != 0).any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_stay_finite_when_routers_are_sure_and_wrong(scale: float) -> None:
    logits = (scale * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).requires_grad_(True)
    deeper = torch.tensor([[scale, -math.inf], [-scale, scale]])  # a child that does not exist
    deeper.requires_grad_(True)
    graph = nbsr.DecisionGraph.taxonomy({"A": {"a": [0, 1]}, "B": {"b": [2], "c": [3, 4]}})
    trace = handmade(graph, [logits, deeper], [torch.tensor([0, 1]), torch.tensor([0, 1])])
    y, owns = torch.tensor([4, 2]), torch.tensor(graph.admissible(5))
    loss = objectives.concept_loss(trace, y, owns) + objectives.load_balance(trace)
    loss.backward()
    for tensor in (loss, logits.grad, deeper.grad):
        assert tensor is not None
        assert bool(tensor.isfinite().all())


def uniform_trace(rows: int = 12) -> nbsr.BeliefTrace:
    graph = nbsr.DecisionGraph.layered([3, 4])
    even = [torch.zeros(rows, 3), torch.zeros(rows, 4)]
    return handmade(graph, even, [torch.arange(rows) % 3, torch.arange(rows) % 4])


def test_load_balance_is_one_a_level_when_even_and_n_when_collapsed() -> None:
    assert float(objectives.load_balance(uniform_trace())) == pytest.approx(2.0)
    graph, rows = nbsr.DecisionGraph.layered([3, 4]), 8
    one_sided = [torch.tensor([[50.0, 0.0, 0.0]] * rows), torch.tensor([[0.0, 0.0, 50.0, 0.0]] * rows)]
    collapsed = handmade(graph, one_sided, [torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 2)])
    assert float(objectives.load_balance(collapsed)) == pytest.approx(3.0 + 4.0)
    specialised = [20 * torch.eye(3).repeat(4, 1), 20 * torch.eye(4).repeat(3, 1)]  # sure of each row, even over all
    even = handmade(graph, specialised, [torch.arange(12) % 3, torch.arange(12) % 4])
    assert float(objectives.load_balance(even)) == pytest.approx(2.0, abs=1e-5)


@given(st.integers(0, 10_000), st.sampled_from(sorted(ALL_GRAPHS)))
def test_load_balance_is_n_times_the_squared_shares_and_never_below_one(seed: int, name: str) -> None:
    trace = walked(ALL_GRAPHS[name], rows=9, seed=seed)
    wanted, levels_with_a_choice = 0.0, 0
    for t, step in enumerate(trace.steps):
        level = trace.graph.levels[t + 1]
        if step.logits.shape[1] == 1:
            continue
        share = dict.fromkeys(level, 0.0)
        walkers = trace.walking[t].nonzero().flatten().tolist()
        for row in walkers:
            children = trace.graph.nodes[int(trace.nodes[t, row])].children
            probs = step.logits[row, : len(children)].softmax(0).tolist()
            for child, p in zip(children, probs, strict=True):
                share[child] += p / len(walkers)
        levels_with_a_choice += bool(walkers)
        wanted += len(level) * sum(p * p for p in share.values())
    found = objectives.load_balance(trace).item()
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found >= levels_with_a_choice - 1e-5


def trained(graph: nbsr.DecisionGraph, objective: nbsr.Objective, x: Tensor, y: Tensor, **given: Tensor) -> nbsr.NBSR:
    """A model after a short plain training."""
    model = make_model(graph, num_classes=int(y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(80):
        optimizer.zero_grad()
        objective(model(x), y, epoch=100, **given)["loss"].backward()
        optimizer.step()
    return model.eval()


def test_the_cost_term_teaches_the_router_to_prefer_the_cheap_child() -> None:
    graph = nbsr.DecisionGraph.from_edges([("Root", "dear"), ("Root", "cheap")], costs={"dear": 5.0, "cheap": 1.0})
    x, y = torch.randn(128, FEATURES), torch.randint(3, (128,))
    usage = trained(graph, nbsr.Objective(cost=1.0), x, y)(x).usage
    assert float(usage[graph.index("cheap")]) > 0.95
    dearer_is_better = nbsr.DecisionGraph.from_edges(
        [("Root", "dear"), ("Root", "cheap")], costs={"dear": 1.0, "cheap": 5.0}
    )
    usage = trained(dearer_is_better, nbsr.Objective(cost=1.0), x, y)(x).usage
    assert float(usage[graph.index("cheap")]) < 0.05


def grouped_data(rows: int = 200) -> tuple[Tensor, Tensor]:
    """Five well separated classes."""
    y = torch.arange(rows) % 5
    return 4 * torch.eye(5, FEATURES)[y] + 0.5 * torch.randn(rows, FEATURES), y


def test_the_concept_loss_makes_walks_follow_the_taxonomy() -> None:
    graph = nbsr.DecisionGraph.taxonomy({"A": {"a0": [0], "a1": [1]}, "B": {"b": [2, 3], "c": [4]}})
    x, y = grouped_data()
    owns = torch.tensor(graph.admissible(5))
    model = trained(graph, nbsr.Objective(concept=0.5), x, y, admissible=owns)
    fresh, labels_of_fresh = grouped_data()
    with torch.no_grad():
        trace = model(fresh)
    for depth in (1, 2):
        assert float(owns[trace.nodes[depth], labels_of_fresh].float().mean()) > 0.97


def test_load_balancing_spreads_the_walks() -> None:
    graph = nbsr.DecisionGraph.layered([4])
    x, y = grouped_data()

    def imbalance(weight: float) -> float:
        return objectives.load_balance(trained(graph, nbsr.Objective(balance=weight), x, y)(x)).item()

    assert imbalance(1.0) < min(1.1, imbalance(0.0) - 0.1)


def test_objective_is_the_weighted_sum_of_its_terms() -> None:
    trace, y, owns = walked(OWNED), labels(), admissible()
    objective = nbsr.Objective(
        entropy=0.1, cost=0.2, every_depth=0.3, regulariser=0.4, anneal_epochs=8, concept=0.5, balance=0.6
    )
    terms = objective(trace, y, epoch=2, admissible=owns)
    wanted = {
        "nll": objectives.nll(trace.beliefs[-1], y),
        "entropy": 0.1 * objectives.entropy_penalty(trace),
        "cost": 0.2 * objectives.expected_cost(trace),
        "every_depth": 0.3 * objectives.deep_supervision(trace, y),
        "regulariser": 0.4 * 2 / 8 * objectives.evidential_regulariser(trace, y),
        "concept": 0.5 * objectives.concept_loss(trace, y, owns),
        "balance": 0.6 * objectives.load_balance(trace),
    }
    assert terms.keys() == {"loss", *wanted}
    for name, value in wanted.items():
        torch.testing.assert_close(terms[name], value)
    torch.testing.assert_close(terms["loss"], torch.stack(list(wanted.values())).sum())


def test_the_regulariser_is_ramped_up_linearly() -> None:
    trace, y = walked(GRAPHS["tree"]), labels()
    full = 0.02 * objectives.evidential_regulariser(trace, y).item()
    objective = nbsr.Objective(regulariser=0.02)
    at = {epoch: objective(trace, y, epoch=epoch)["regulariser"].item() for epoch in (0, 5, 10, 99)}
    assert at == pytest.approx({0: 0.0, 5: full / 2, 10: full, 99: full})
    at_once = nbsr.Objective(regulariser=0.02, anneal_epochs=0)(trace, y, epoch=0)
    assert at_once["regulariser"].item() == pytest.approx(full)


def test_terms_of_weight_zero_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> Tensor:
        raise AssertionError("a term of weight 0 was computed")

    for name in (
        "entropy_penalty",
        "expected_cost",
        "deep_supervision",
        "evidential_regulariser",
        "concept_loss",
        "load_balance",
    ):
        monkeypatch.setattr(objectives, name, forbidden)
    trace, y = walked(OWNED), labels()
    terms = nbsr.Objective()(trace, y)
    assert terms.keys() == {"loss", "nll"}
    torch.testing.assert_close(terms["loss"], objectives.nll(trace.beliefs[-1], y))


@pytest.mark.parametrize("field", ["entropy", "cost", "every_depth", "regulariser", "concept", "balance"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_bad_weights_are_refused_by_name(field: str, value: float) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(nbsr.InputError, match=rf"objective\.{field} must be a finite number >= 0"):
        nbsr.Objective(**options)


def test_a_concept_loss_without_owners_and_bad_labels_are_refused() -> None:
    trace = walked(OWNED)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: nbsr.Objective(concept=0.1)(trace, labels()), "admissible"),
        (lambda: nbsr.Objective()(trace, labels() + 1), r"within 0 \.\. 4"),
        (lambda: nbsr.Objective()(trace, labels(11)), r"expected \(12,\)"),
    ]
    for call, message in cases:
        with pytest.raises(nbsr.InputError, match=message):
            call()

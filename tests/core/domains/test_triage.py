"""The triage domain: panels and prices, policies that do not peek, thresholds that validation chooses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.domains.acquisition.buyers import random_orders
from nbsr_core.domains.acquisition.evaluation import PAPER_ETAS
from nbsr_core.domains.acquisition.learned import Greedy
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.acquisition.options import EndToEndOptions, SeparateOptions
from nbsr_core.domains.domain import Question, Signature, find_domain
from nbsr_core.domains.medical import SymptomProfiles
from nbsr_core.domains.triage import Triage, TriageData, TriageSplits, informativeness, load
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.routers import RouterSpec
from nbsr_core.trace.frontier import Frontier

SMALL = TriageData(noise_scheme="fresh", draws=1, train_patients=300, valid_patients=200, test_patients=60)
MODELS = Triage.models
NETWORKS = {
    "experts": ExpertSpec(hidden=(16, 16), activation="exp"),
    "router": RouterSpec(hidden=(16,), belief="log"),
}


@cache
def splits_of(data: TriageData = SMALL) -> TriageSplits:
    splits = load(data, 0)
    # The loader repeats validation rows with new noise; these tests need few.
    return replace(splits, valid=replace(splits.valid, x=splits.valid.x[:200], y=splits.valid.y[:200]))


def trained(kind: str, splits: TriageSplits, epochs: int = 1) -> AcquisitionLearner:
    seed_everything(0)
    options = EndToEndOptions() if kind == "ar_nbsr" else SeparateOptions(policy_after=0, **NETWORKS)  # type: ignore[arg-type]
    learner = MODELS[kind].build(options, Signature.of(splits))
    assert isinstance(learner, AcquisitionLearner)
    list(learner.train(splits, TrainingConfig(epochs=epochs), 0, Execution()))
    return learner


def test_the_paper_prices_panels_in_the_order_of_the_features() -> None:
    panels = splits_of().panels
    assert panels.costs == (10.0, 15.0, 20.0, 30.0, 50.0)
    assert (panels.free, panels.width, len(panels), panels.num_features) == (12, 24, 5, 132)


def test_decoupled_prices_rise_with_informativeness() -> None:
    splits = splits_of(replace(SMALL, costs="decoupled"))
    by_price = torch.tensor(splits.panels.costs).argsort()
    told = informativeness(splits.profiles, splits.noise)[by_price]
    assert sorted(splits.panels.costs) == [10.0, 15.0, 20.0, 30.0, 50.0]
    assert (told.diff() > 0).all()
    assert "decoupled" in splits.source
    assert splits.synthetic


def test_informativeness_of_known_profiles() -> None:
    # Two diseases alike frequent: the first symptom of the second panel tells them apart, nothing else does.
    chance = torch.full((2, 132), 0.3, dtype=torch.float64)
    chance[:, 12 + 24] = torch.tensor([0.0, 1.0])
    told = informativeness(SymptomProfiles.of_diseases(chance), noise=0.0)
    torch.testing.assert_close(told, torch.tensor([0, math.log(2), 0, 0, 0], dtype=torch.float64))


@cache
def trained_once(kind: str) -> AcquisitionLearner:
    """For tests that only look."""
    return trained(kind, splits_of())


@pytest.mark.parametrize("kind", list(MODELS))
def test_every_policy_trains_is_judged_and_comes_back_from_its_state(kind: str) -> None:
    splits, domain = splits_of(), Triage()
    learner = trained_once(kind)
    evaluation = domain.evaluate(learner, splits, EvaluationOptions(audits=2))
    for name in ("test/accuracy", "noise_draws/area", "noise_draws/cost_at_peak_1", "fast/mean_cost", "fast/accuracy"):
        assert math.isfinite(evaluation.metrics[name]), name
    assert evaluation.metrics["test/mean_cost"] == 125
    assert evaluation.metrics["fast/mean_cost"] <= 125
    for spent in (12.5, 25, 37.5, 50, 75, 100):
        right = evaluation.metrics[f"noise_draws/spending/{spent:g}/accuracy"]
        assert 0 <= right <= evaluation.metrics["noise_draws/peak"]
    rows = evaluation.tables["frontier"]
    assert {"eta", "accuracy", "mean_cost", "mean_depth"} <= rows[0].keys()
    orders = evaluation.tables["orders"]
    for step in range(1, 6):
        assert sum(float(row["share"] or 0) for row in orders if row["step"] == step) == pytest.approx(1)
    json.dumps(evaluation.audits)
    options = EndToEndOptions() if kind == "ar_nbsr" else SeparateOptions(policy_after=0, **NETWORKS)  # type: ignore[arg-type]
    again = MODELS[kind].build(options, Signature.of(splits))
    again.load_state(learner.state())
    assert torch.equal(again.probabilities(splits.test.x), learner.probabilities(splits.test.x))


def test_only_the_oracle_peeks() -> None:
    splits = splits_of()
    x = splits.test.x
    for kind in ("ar_nbsr", "planner", "greedy", "cheap_first", "random", "oracle_peeking"):
        learner = trained_once(kind)
        before = learner.trace(x).bought[0]
        hidden = x.clone()
        hidden[:, 12:] = 1 - hidden[:, 12:]  # before the first purchase, only the 12 free features are known
        same = torch.equal(learner.trace(hidden).bought[0], before)
        assert same == (kind != "oracle_peeking"), kind


def test_cheap_first_buys_by_price() -> None:
    splits = splits_of(replace(SMALL, costs="decoupled"))
    trace = trained("cheap_first", splits).trace(splits.test.x)
    assert trace.cost.diff(dim=0).T.tolist() == [[10.0, 15.0, 20.0, 30.0, 50.0]] * len(splits.test)


def test_lessons_of_the_greedy_router_are_the_entropies_that_panels_take_away() -> None:
    splits = splits_of()
    learner = trained_once("greedy")
    assert isinstance(learner.buyer, Greedy)
    x, y = splits.test.x[:20], splits.test.y[:20]
    order = random_orders(x, 5)
    with torch.no_grad():
        trace = learner.model(x, order=order)
        state, panel, gain = learner.buyer.lessons(learner.model.visited(x, order, trace), x, y)
    entropy = torch.stack([torch.special.entr(a / a.sum(-1, keepdim=True)).sum(-1) for a in trace.beliefs])
    assert len(state) == len(x) * (5 + 4 + 3 + 2 + 1)  # every panel that each state has left
    case, t = state // 5, state % 5
    bought = panel == order[case, t]  # of all panels, the one that the rollout did buy
    assert bought.sum() == len(x) * 5
    fell = entropy[t[bought], case[bought]] - entropy[t[bought] + 1, case[bought]]
    torch.testing.assert_close(gain[bought], fell, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_planner_learns_to_buy_the_one_panel_that_tells() -> None:
    """Two diseases, told apart by the panel that costs most: cheaper ones first would be money lost."""
    generator = torch.Generator().manual_seed(0)
    splits = splits_of()
    y = torch.randint(2, (3200,), generator=generator)
    x = (torch.rand(3200, 132, generator=generator) < 0.3).float()
    x[:, 12 + 4 * 24 :] = y[:, None].float()
    train, other = (replace(splits.train, x=x[part], y=y[part]) for part in (slice(2560), slice(2560, None)))
    told = replace(splits, train=train, valid=other, test=other, extra={}, class_names=["a", "b"], augment=None)
    seed_everything(0)
    options = SeparateOptions(policy_after=2, **NETWORKS)  # type: ignore[arg-type]
    learner = MODELS["planner"].build(options, Signature.of(told))
    assert isinstance(learner, AcquisitionLearner)
    list(learner.train(told, TrainingConfig(epochs=10, learning_rate=5e-3, batch_size=64), 0, Execution()))
    trace = learner.trace(told.test.x)
    assert trace.bought[0].eq(4).double().mean() > 0.9
    assert trace.frontier(told.test.y).cost_within(0.01) < 60


def test_thresholds_are_chosen_on_validation() -> None:
    splits, domain = splits_of(), Triage()
    learner = trained_once("cheap_first")
    evaluation = domain.evaluate(learner, splits, EvaluationOptions(max_accuracy_loss=0.05, audits=0))
    chosen = learner.trace(splits.valid.x).frontier(splits.valid.y).cheapest(0.05, "mean_cost")
    assert evaluation.metrics["fast/eta"] == chosen
    shuffled = replace(splits, test=replace(splits.test, y=splits.test.y.flip(0)), extra={})
    assert domain.evaluate(learner, shuffled, EvaluationOptions(max_accuracy_loss=0.05)).metrics["fast/eta"] == chosen


def test_a_vacuous_threshold_is_called_so() -> None:
    splits, domain = splits_of(), Triage()
    warnings = domain.evaluate(trained_once("ar_nbsr"), splits, EvaluationOptions(eta=-100.0, audits=0)).warnings
    assert any("no test" in warning for warning in warnings)
    assert PAPER_ETAS[0] == -110
    assert PAPER_ETAS[-1] == -400
    assert len(PAPER_ETAS) == 30


def test_explanation_of_a_patient() -> None:
    splits, domain = splits_of(), Triage()
    learner = trained_once("planner")
    answer = domain.explain(learner, splits, Question(sample=3))
    assert answer is not None
    assert answer.svg is not None
    assert "SYNTHETIC" in answer.text
    data = json.loads(json.dumps(answer.data))
    assert len(data["steps"]) == 5
    assert sum(step["bought"]["cost"] for step in data["steps"] if step["needed"]) == data["spent"]
    assert data["true"] == splits.class_names[int(splits.test.y[3])]
    trace = learner.trace(splits.test.x[3:4])
    for t, step in enumerate(data["steps"]):
        assert step["bought"]["panel"] == splits.panels.names[int(trace.bought[t, 0])]
        assert step["bought"]["doubt"] == pytest.approx(float(trace.doubt[t + 1, 0]), abs=1e-4)
        assert len(step["instead"]) == 4 - t
        assert all(other["score"] <= step["bought"]["score"] for other in step["instead"])
    following = [step for step in data["steps"] if not step["needed"]]
    assert (data["next_best"] or {}).get("panel") == (following[0]["bought"]["panel"] if following else None)
    assert answer.svg.lstrip().startswith("<?xml")
    with pytest.raises(InputError, match="from 0 to 59"):
        domain.explain(learner, splits, Question(sample=60))
    with pytest.raises(InputError, match="prompt"):
        domain.explain(learner, splits, Question(prompt="why?"))


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1)), min_size=2, max_size=8))
def test_area_is_the_mean_accuracy_over_budgets(points: list[tuple[float, float]]) -> None:
    cost = torch.tensor([point[0] for point in points], dtype=torch.float64)
    accuracy = torch.tensor([point[1] for point in points], dtype=torch.float64)
    nothing = torch.zeros(len(points)).double()
    frontier = Frontier(torch.arange(len(points)).double(), accuracy, nothing, cost, cost, nothing)
    ends = sorted([(0.0, 0.1), *zip(cost.tolist(), accuracy.tolist(), strict=True)], key=lambda point: point[0])
    total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(ends))
    assert frontier.area(0.1) == pytest.approx(total / float(cost.max()))


def test_accuracy_for_an_amount_lies_on_the_line_between_two_thresholds() -> None:
    cost, accuracy = torch.tensor([30.0, 10.0]).double(), torch.tensor([0.9, 0.5]).double()  # stricter ones first
    frontier = Frontier(torch.zeros(2).double(), accuracy, accuracy, cost, cost, accuracy)
    said = [frontier.accuracy_for(amount, chance=0.1) for amount in (0.0, 5.0, 10.0, 15.0, 30.0, 99.0)]
    assert said == pytest.approx([0.1, 0.3, 0.5, 0.6, 0.9, 0.9]), "more money than all costs buys no more"


def test_bad_options() -> None:
    with pytest.raises(InputError, match="policy_after"):
        SeparateOptions(policy_after=-1)
    structure = splits_of().structure
    with pytest.raises(InputError, match="132"):
        MODELS["planner"].build(SeparateOptions(), Signature(["a", "b"], ["x"], structure))
    with pytest.raises(InputError, match="panels and prices"):
        MODELS["planner"].build(SeparateOptions(), Signature(["a", "b"], ["x"]))
    assert isinstance(find_domain("triage"), Triage)

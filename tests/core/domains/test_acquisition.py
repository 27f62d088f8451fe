"""Tables with prices: what costs what, budgets that hold, policies that learn what tells, and services that follow."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nbsr_core.domains.acquisition import Acquisition, AcquisitionData, load
from nbsr_core.domains.acquisition.data import PanelOptions
from nbsr_core.domains.acquisition.evaluation import answers_within, budget_set
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.domain import Question, Signature, find_domain
from nbsr_core.domains.service import Questions
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.acquisition import Known, Panels
from nbsr_core.options.conditions import without_effect
from nbsr_core.options.specs import ExpertSpec, RouterSpec

MODELS = Acquisition.models
BUDGETS = (2.0, 3.0, 5.0)
SMALL: dict[str, Any] = {
    "experts": ExpertSpec(hidden=(16,), activation="exp"),
    "router": RouterSpec(hidden=(16,), belief="mean"),
    "policy_after": 1,
}


@cache
def cubes(source: Any = "cube_prices") -> Splits:
    rows = {"train_rows": 120, "valid_rows": 60, "test_rows": 50}
    return load(AcquisitionData(source=source, budgets=BUDGETS, **rows), 0)  # type: ignore[arg-type]


def trained(kind: str, splits: Splits, epochs: int = 2, rate: float = 3e-3, **options: Any) -> AcquisitionLearner:
    seed_everything(0)
    given = {**SMALL, **options}
    if kind == "ar_nbsr":
        given["experts"] = ExpertSpec(hidden=(16, 16))
    learner = MODELS[kind].build(MODELS[kind].options(**given), Signature.of(splits))
    assert isinstance(learner, AcquisitionLearner)
    list(learner.train(splits, TrainingConfig(epochs=epochs, batch_size=64, learning_rate=rate), 0, Execution()))
    return learner


@cache
def trained_once(kind: str) -> AcquisitionLearner:
    """For tests that only look."""
    return trained(kind, cubes())


@pytest.mark.parametrize("kind", list(MODELS))
def test_no_policy_spends_more_than_a_budget_or_buys_twice(kind: str) -> None:
    learner, x = trained_once(kind), cubes().test.x
    for budget in BUDGETS:
        trace = learner.trace(x, budget)
        assert (trace.cost[-1] <= budget).all()
        cheapest_left = [
            min((learner.model.panels.costs[panel] for panel in range(20) if panel not in order), default=math.inf)
            for order in trace.bought.T.tolist()
        ]
        # Nor does it keep money that would still buy something.
        assert all(spent + price > budget for spent, price in zip(trace.cost[-1].tolist(), cheapest_left, strict=True))
        for order in trace.bought.T.tolist():
            made = [panel for panel in order if panel >= 0]
            assert len(set(made)) == len(made)
        stopped, spent = learner.model.predict(x, policy=learner.policy(x), budget=budget)
        assert torch.equal(spent, trace.cost[-1])
        torch.testing.assert_close(stopped.probs, trace.probabilities())


@pytest.mark.parametrize("kind", list(MODELS))
def test_what_was_not_bought_changes_neither_purchases_nor_answers(kind: str) -> None:
    learner, x = trained_once(kind), cubes().test.x
    trace = learner.trace(x, 3.0)
    hidden = x.clone()
    for case, order in enumerate(trace.bought.T.tolist()):
        kept = [column for panel in order if panel >= 0 for column in learner.model.panels.columns[panel]]
        hidden[case] = -3.0 - hidden[case]
        hidden[case, kept] = x[case, kept]
    other = learner.trace(hidden, 3.0)
    same = torch.equal(other.bought, trace.bought) and torch.equal(other.beliefs[-1], trace.beliefs[-1])
    assert same == (kind != "oracle_peeking")
    assert learner.peeks == (kind == "oracle_peeking")


@pytest.mark.parametrize("kind", ["greedy", "planner", "fixed_order"])
def test_every_model_is_judged_under_every_budget_and_comes_back_from_its_state(kind: str) -> None:
    splits, learner = cubes(), trained_once(kind)
    evaluation = Acquisition().judge(learner, splits, EvaluationOptions(audits=2))
    for budget in BUDGETS:
        said, spent = answers_within(learner, splits.test, budget)
        right = float((said.probs.argmax(1) == splits.test.y).double().mean())
        assert evaluation.metrics[f"{budget_set('test', budget)}/accuracy"] == right
        assert evaluation.metrics[f"budget/{budget:g}/mean_cost"] == spent <= budget
        assert f"valid/budget/{budget:g}/nll" in evaluation.metrics
        assert any(row["set"] == f"budget/{budget:g}" for row in evaluation.tables["samples"])
    assert sum(int(row["cases"] or 0) for row in evaluation.tables["stops"]) == len(splits.test)
    orders = [(float(row["paid"] or 0), float(row["share"] or 0)) for row in evaluation.tables["orders"]]
    assert all(0 <= paid <= share for paid, share in orders)
    assert sum(paid for paid, _ in orders) == pytest.approx(evaluation.metrics["fast/mean_depth"])
    json.dumps(evaluation.audits)
    again = MODELS[kind].build(MODELS[kind].options(**SMALL), Signature.of(splits))
    again.load_state(learner.state())
    again.use_temperatures(learner.temperatures)
    assert torch.equal(again.probabilities(splits.test.x), learner.probabilities(splits.test.x))


def test_at_equal_prices_a_smaller_budget_ends_the_same_rollout_earlier() -> None:
    splits = cubes("cube")
    learner = trained("greedy", splits)
    assert learner.one_rollout_for_all
    for budget in BUDGETS:
        said, spent = answers_within(learner, splits.test, budget)
        torch.testing.assert_close(said.probs, learner.trace(splits.test.x, budget).probabilities())
        assert spent == budget


def telling(cost: float = 1.0) -> Splits:
    """Two classes that the fourth of six columns tells apart, and nothing else does."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (600,), generator=generator)
    x = torch.randn(600, 6, generator=generator)
    x[:, 3] = y * 2.0 - 1 + 0.3 * x[:, 3]
    panels = Panels.of([f"x{i}" for i in range(6)], [1.0, 1.0, 1.0, cost, 1.0, 1.0], [(i,) for i in range(6)], 6)
    part = Split(x, y)
    names, structure = [f"x{i}" for i in range(6)], panels.structure([3.0])
    return Splits(part, part, part, ["a", "b"], names, "made", True, structure=structure)


@pytest.mark.parametrize("kind", ["greedy", "gdfs", "dime", "planner", "fixed_order", "oracle_peeking"])
def test_the_one_column_that_tells_is_bought_first(kind: str) -> None:
    splits = telling()
    learner = trained(kind, splits, epochs=15, rate=1e-2, policy_after=5)
    trace = learner.trace(splits.test.x)
    assert trace.bought[0].eq(3).double().mean() > 0.9
    assert float((trace.probabilities(1).argmax(1) == splits.test.y).double().mean()) > 0.95


@pytest.mark.parametrize("kind", ["greedy", "gdfs", "dime", "planner"])
def test_buyers_learn_nothing_from_states_in_which_all_is_bought(kind: str) -> None:
    splits = telling()
    learner = trained(kind, splits, epochs=1)
    x, seen = splits.train.x[:200], list[torch.Tensor]()
    learn = learner.buyer.loss

    def watched(known: Known, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(known.bought)
        return learn(known, x, y)

    learner.buyer.loss = watched  # type: ignore[method-assign]
    assert (learner._states(x, due=True)[0].sum(1) == 6).any()  # experts do learn from them
    terms = learner.loss(learner.model, x, splits.train.y[:200], epoch=1)
    assert terms["policy"].isfinite()
    assert (torch.cat(seen).sum(1) < 3).all()  # the budget is 3


@pytest.mark.parametrize("expert_training", ["random", "mixed", "end_to_end"])
@pytest.mark.parametrize("kind", ["ar_nbsr", "greedy", "gdfs", "random"])
def test_every_policy_runs_on_every_set_of_experts(kind: str, expert_training: str) -> None:
    splits = cubes("cube")
    learner = trained(kind, splits, epochs=2, expert_training=expert_training)
    assert learner.trace(splits.test.x).cost[-1].eq(5).all()
    terms = learner.loss(learner.model, splits.train.x[:20], splits.train.y[:20], 1)
    assert {name for name in terms if name != "loss"} <= set(learner.terms)
    values = {name: float(value.detach()) for name, value in terms.items()}
    assert values.pop("loss") == pytest.approx(sum(values.values()), rel=1e-4)


def test_experts_that_learn_end_to_end_have_their_own_router_beside_a_greedy_network() -> None:
    splits = cubes("cube")
    learner = trained("greedy", splits, expert_training="end_to_end")
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    x, y = splits.train.x[:40], splits.train.y[:40]
    assert any(name.startswith("policy.") for name in before)
    learner.loss(learner.model, x, y, 1)["loss"].backward()
    for part in (learner.model.router, learner.model.experts, learner.model.get_submodule("policy")):
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    lines = ["age,sex,colour,urea,sodium,scan,ill"]
    for _ in range(300):
        ill = int(generator.random() < 0.5)
        urea = "" if generator.random() < 0.2 else f"{ill * 2 + generator.normal():.3f}"
        colour = ["red", "green", "blue"][int(generator.integers(3))]
        sex = "mf"[int(generator.integers(2))]
        scan = f"{4 * ill + generator.normal():.3f}"
        cells = [str(generator.integers(20, 90)), sex, colour, urea, f"{generator.normal():.3f}", scan]
        lines.append(",".join([*cells, "yes" if ill else "no"]))
    file = tmp_path / "patients.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def priced(file: Path, **options: Any) -> AcquisitionData:
    panels = {"blood": PanelOptions(("urea", "sodium"), 10.0)}
    prices = {"panels": panels, "costs": {"scan": 50.0, "colour": 2.0}}
    return AcquisitionData(file=file, target="ill", **{**prices, **options})


def test_columns_and_groups_of_columns_of_a_file_have_prices_and_the_others_are_free(table: Path) -> None:
    splits = load(priced(table), 0)
    panels = Panels.from_json(splits.structure["panels"])
    assert panels.names == ("colour", "blood", "scan"), "in the order of the table"
    assert panels.costs == (2.0, 10.0, 50.0)
    names = list(splits.feature_names)
    assert [[names[place] for place in columns] for columns in panels.columns] == [
        ["colour = blue", "colour = green", "colour = red"],
        ["urea", "urea is missing", "sodium"],
        ["scan"],
    ]
    assert [names[place] for place in panels.free_columns] == ["age", "sex = f", "sex = m"]
    everything = load(priced(table, other_cost=0.5), 0)
    assert everything.structure["panels"]["names"] == ["age", "sex", "colour", "blood", "scan"]


def test_prices_that_cannot_be_are_refused_by_name(table: Path) -> None:
    with pytest.raises(InputError, match="'scann' has a price, but is no column that models see; did you mean 'scan'"):
        load(priced(table, costs={"scann": 50.0}), 0)
    with pytest.raises(InputError, match="'urea' has several prices"):
        priced(table, costs={"urea": 5.0})
    with pytest.raises(InputError, match="must give a price to some column"):
        priced(table, panels={}, costs={})
    for cost in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"costs.scan must be a finite number > 0"):
            priced(table, costs={"scan": cost})
    with pytest.raises(InputError, match="columns must name at least one column"):
        PanelOptions((), 1.0)
    with pytest.raises(InputError, match="path of a CSV or Parquet file"):
        AcquisitionData(target="ill", other_cost=1.0)
    with pytest.raises(InputError, match="budgets"):
        priced(table, budgets=(0.0,))
    splits = load(priced(table, budgets=(1.0, 60.0)), 0)
    with pytest.raises(InputError, match="a budget of 1 buys nothing: the cheapest panel costs 2"):
        MODELS["greedy"].build(MODELS["greedy"].options(), Signature.of(splits))
    assert isinstance(find_domain("acquisition"), Acquisition)


def test_a_case_of_a_table_is_told_with_its_prices_and_cells(table: Path) -> None:
    splits = load(priced(table, budgets=(62.0,)), 0)
    learner = trained("greedy", splits)
    answer = Acquisition().explain(learner, splits, Question(sample=1))
    assert answer is not None
    assert "Case 1 of" in answer.text
    data = json.loads(json.dumps(answer.data))
    cells = dict(zip(*(line.split(",") for line in _row_of(table, splits, 1)), strict=True))
    for step in data["steps"]:
        if step["bought"]["panel"] == "scan":
            assert step["shown"] == f"scan {float(cells['scan']):.4g}"
        if step["bought"]["panel"] == "blood":
            assert step["shown"].startswith(f"urea {'missing' if not cells['urea'] else ''}")
        assert step["candidates"][0] == [step["bought"]["diagnosis"], pytest.approx(step["bought"]["confidence"])]
        assert f"Purchase {step['step']}: {step['bought']['panel']} for {step['bought']['cost']:g}" in answer.text or (
            not step["needed"]
        )
    assert f"Free: age {cells['age']}, sex {cells['sex']}." in answer.text
    assert "All panels together would have cost 62." in answer.text
    assert "entropy" not in answer.text
    assert data["spent"] <= 62


def _row_of(table: Path, splits: Any, sample: int) -> tuple[str, str]:
    head, *lines = table.read_text().splitlines()
    return head, lines[int(splits.rows.test[sample])]


def test_a_service_of_a_table_is_followed_cell_by_cell_to_what_the_model_would_have_bought(table: Path) -> None:
    splits: Any = load(priced(table, budgets=(52.0,)), 0)
    learner = trained("greedy", splits)
    domain, rows = Acquisition(), [_row_of(table, splits, sample) for sample in range(12)]
    service = domain.service(learner, Signature.of(splits))
    assert {column.name for column in service.inputs if column.required} == {"age", "sex"}
    cells = [dict(zip(head.split(","), line.split(","), strict=True)) for head, line in rows]
    panels = {"blood": ["urea", "sodium"], "scan": ["scan"], "colour": ["colour"]}
    known: list[dict[str, Any]] = [{"age": row["age"], "sex": row["sex"]} for row in cells]
    for _ in range(4):
        names = [column.name for column in service.inputs]
        values = {name: [row.get(name) for row in known] for name in names}
        said = service.answer(Questions(torch.zeros(len(known), 0), values=values))
        for row, panel in enumerate(said["next_panel"]):
            for name in panels.get(panel, []):
                known[row][name] = cells[row][name] or "NA"  # it was bought, and nothing was found
    assert said["stop"].all()
    stopped, spent = learner.model.predict(splits.test.x[:12], policy=learner.policy(splits.test.x[:12]))
    np.testing.assert_allclose(said["spent"], spent.numpy())
    np.testing.assert_allclose(said["p(yes)"], stopped.probs[:, splits.class_names.index("yes")].numpy(), atol=1e-5)
    assert (said["spent"] <= 52).all()


def asked_of(service: Any, rows: list[dict[str, Any]], **use: Any) -> dict[str, Any]:
    values = {column.name: [row.get(column.name) for row in rows] for column in service.inputs}
    answer: dict[str, Any] = service.answer(Questions(torch.zeros(len(rows), 0), values=values, **use))
    return answer


def cells_of(table: Path, rows: slice = slice(None)) -> list[dict[str, str]]:
    head, *lines = table.read_text().splitlines()
    return [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines[rows]]


def test_a_panel_with_any_cell_is_bought_and_its_empty_cells_are_missing_values(table: Path) -> None:
    splits: Any = load(priced(table), 0)
    learner = trained("greedy", splits)
    service = Acquisition().service(learner, Signature.of(splits))
    rows = cells_of(table)
    assert any(not row["urea"] for row in rows)
    said = asked_of(service, rows)
    assert set(said["spent"]) == {62.0}
    assert set(said["note"]) == {""}, "training rows have gaps in urea"
    # The training file is answered as the model was judged: with all panels, gaps and all.
    test = splits.rows.test
    expected = learner.probabilities(splits.test.x)[:, splits.class_names.index("yes")]
    np.testing.assert_allclose(said["p(yes)"][test], expected.numpy(), atol=1e-5)
    nothing = asked_of(service, [{"age": "40", "sex": "m", "urea": "", "sodium": ""}])
    assert nothing["bought"].tolist() == [""]
    nothing = asked_of(service, [{"age": "40", "sex": "m", "urea": "NA", "sodium": ""}])
    assert nothing["bought"].tolist() == ["blood"]


def test_strange_cells_of_what_was_bought_get_a_word_and_what_was_not_bought_gets_none(table: Path) -> None:
    splits = load(priced(table), 0)
    service = Acquisition().service(trained("greedy", splits), Signature.of(splits))
    assert service.outputs[-3].name == "note"
    known = {"age": "40", "sex": "m"}
    rows = [
        known,
        {**known, "colour": "violet"},
        {**known, "scan": "dark", "urea": "1", "sodium": ""},
        {"sex": "m", "scan": "1"},
    ]
    assert asked_of(service, rows)["note"].tolist() == [
        "",
        "colour is 'violet', an unknown category",
        "sodium is missing, which no training row's was; scan is 'dark', not a number: taken as missing",
        "age is missing, which no training row's was",
    ]


@pytest.mark.parametrize("kind", ["greedy", "planner"])
def test_a_service_buys_for_the_budget_that_it_is_told(table: Path, kind: str) -> None:
    splits: Any = load(priced(table, budgets=(12.0, 62.0)), 0)
    learner = trained(kind, splits)
    service = Acquisition().service(learner, Signature.of(splits))
    panels = {"blood": ["urea", "sodium"], "scan": ["scan"], "colour": ["colour"]}
    cells = [cells_of(table)[row] for row in splits.rows.test[:20]]
    for budget in (None, 12.0, 2.0):
        known: list[dict[str, Any]] = [{"age": row["age"], "sex": row["sex"]} for row in cells]
        for _ in range(4):
            said = asked_of(service, known, budget=budget)
            for row, panel in enumerate(said["next_panel"]):
                known[row] |= {name: cells[row][name] or "NA" for name in panels.get(panel, [])}
        assert said["stop"].all()
        np.testing.assert_allclose(said["spent"], learner.trace(splits.test.x[:20], budget).cost[-1].numpy())
        assert said["spent"].max() == (budget or 62.0)
    with pytest.raises(InputError, match="a budget of 1 buys nothing: the cheapest panel costs 2"):
        service.check_budget(1.0)
    with pytest.raises(InputError, match="built for budgets up to 62, got 100"):
        service.check_budget(100.0)


def test_a_case_is_told_for_the_budget_that_is_asked_about(table: Path) -> None:
    splits = load(priced(table, budgets=(62.0,)), 0)
    learner = trained("greedy", splits)
    told = Acquisition().explain(learner, splits, Question(sample=1, budget=12.0))
    assert told is not None
    assert "for 12 at most" in told.text
    assert told.data["price_of_all"] == 12
    assert learner.model.budget == 62
    with pytest.raises(InputError, match="built for budgets up to 62, got 100"):
        Acquisition().explain(learner, splits, Question(sample=1, budget=100.0))


def test_a_served_model_abstains_as_it_was_judged(table: Path) -> None:
    splits: Any = load(priced(table), 0)
    learner = trained("planner", splits)
    figures = Acquisition().judge(learner, splits, EvaluationOptions(audits=0)).metrics
    service = Acquisition().service(learner, Signature.of(splits))
    rows = [cells_of(table)[row] for row in splits.rows.test]
    said = asked_of(service, rows, max_doubt=figures["test/max_doubt"])
    assert 0 < said["abstained"].sum() < len(rows)
    assert said["abstained"].mean() == pytest.approx(figures["test/abstained"])
    assert not asked_of(service, rows)["abstained"].any()


def test_a_preview_of_a_file_says_kinds_of_columns_and_what_looks_wrong(table: Path) -> None:
    table.write_text("\n".join(f"{line},{line.split(',')[-1]}" for line in table.read_text().splitlines()))
    table.write_text(table.read_text().replace("ill,ill", "ill,copy"))
    found = Acquisition().preview(priced(table, columns={"age": "ignore"}))
    assert "columns: 2 categorical, 3 numeric, 1 boolean; left out: age (ignore)" in found.about
    assert any("column 'copy' says the target of every row" in note for note in found.notes)
    drawn = AcquisitionData(source="cube", train_rows=50, valid_rows=20, test_rows=20)
    assert Acquisition().preview(drawn).about == ""


def test_columns_for_routers_alone_have_no_effect_here(table: Path) -> None:
    assert dict(without_effect(priced(table, side=("age",))))["side"] == "it counts only if domain is table"


def test_digits_come_in_tiles_that_cover_the_picture() -> None:
    splits = load(AcquisitionData(source="digits", budgets=(2.0,)), 0)
    panels = Panels.from_json(splits.structure["panels"])
    assert sorted(place for tile in panels.columns for place in tile) == list(range(64))
    assert {len(tile) for tile in panels.columns} == {4}
    assert len(splits.train) + len(splits.valid) + len(splits.test) == 1797
    other = load(AcquisitionData(source="digits", budgets=(2.0,)), 1)
    assert not torch.equal(other.test.y, splits.test.y)
    assert replace(splits).fingerprint() == load(AcquisitionData(source="digits", budgets=(2.0,)), 0).fingerprint()

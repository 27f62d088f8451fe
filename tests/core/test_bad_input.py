"""Bad input: every mistake is refused with words that name what was given and what was expected."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from models import FEATURES, ORACLE
from torch import Tensor, nn


@pytest.fixture(scope="module")
def nbsr() -> Iterator[ModuleType]:
    """The library as users run it: without the run-time shape checks of the tests, which would speak up first."""
    checked = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "nbsr_core"}
    hooks = [finder for finder in sys.meta_path if "jaxtyping" in type(finder).__module__]
    assert hooks, "the tests run with an import hook that checks shapes"
    for name in checked:
        del sys.modules[name]
    for hook in hooks:
        sys.meta_path.remove(hook)
    try:
        plain = importlib.import_module("nbsr_core")
        yield plain
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "nbsr_core"]:
            del sys.modules[name]
        sys.modules.update(checked)
        sys.meta_path[:0] = hooks


@pytest.fixture
def model(nbsr: ModuleType) -> Any:
    return make(nbsr)


def make(nbsr: ModuleType, **options: object) -> Any:
    """A tree of depth 2 and width 3 over 5 classes."""
    settings: dict[str, Any] = {
        "backbone": nn.Linear(FEATURES, ORACLE),
        "graph": nbsr.DecisionGraph.uniform(depth=2, width=3),
        "num_classes": 5,
        "oracle_dim": ORACLE,
    }
    return nbsr.NBSR(**(settings | options))


def rows(count: int = 4) -> Tensor:
    return torch.randn(count, FEATURES)


def refuses(nbsr: ModuleType, words: str) -> Any:
    """The right kind of error with these words, which builtin handlers catch too."""
    assert issubclass(nbsr.InputError, ValueError)
    return pytest.raises(nbsr.InputError, match=words)


# --- inputs -----------------------------------------------------------------------------------------------------------


CALLS: dict[str, Callable[..., object]] = {
    "forward": lambda model, x, **options: model(x, **options),
    "predict": lambda model, x, **options: model.predict(x, **options),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("training", [True, False])
def test_inputs_that_cannot_be_walked(nbsr: ModuleType, call: Callable[..., object], training: bool) -> None:
    model = make(nbsr).train(training)
    with refuses(nbsr, r"batch is empty: its shape is \[0, 6\]"):
        call(model, torch.zeros(0, FEATURES))
    with refuses(nbsr, r"batch is empty: its shape is \[\]"):
        call(model, torch.tensor(1.0))
    for bad, where in ((float("nan"), 1), (float("inf"), 1), (float("-inf"), 1)):
        x = rows()
        x[2, 1] = bad
        with refuses(nbsr, rf"oracle h must be finite, got NaN or infinity in {where} of 4 rows"):
            call(model, x)
    assert model.training == training


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_backbones_of_the_wrong_shape(nbsr: ModuleType, call: Callable[..., object]) -> None:
    wrong: dict[str, nn.Module] = {
        r"\[4, 7\]": nn.Linear(FEATURES, 7),
        r"\[4, 8, 1\]": nn.Sequential(nn.Linear(FEATURES, ORACLE), nn.Unflatten(1, (ORACLE, 1))),
    }
    for shape, backbone in wrong.items():
        with refuses(nbsr, rf"backbone must return \[.*oracle_dim=8\], got {shape}"):
            call(make(nbsr, backbone=backbone), rows())


def test_float64_features_into_a_float32_model_are_no_accident_of_matrix_products(nbsr: ModuleType) -> None:
    model = make(nbsr, backbone=nn.Identity(), oracle_dim=FEATURES)
    assert model.predict(rows().double()).alpha.shape == (4, 5)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_side_information_that_does_not_fit(nbsr: ModuleType, call: Callable[..., object]) -> None:
    seeing, blind = make(nbsr, side_dim=2), make(nbsr)
    call(seeing, rows(), side=torch.zeros(4, 2))
    with refuses(nbsr, r"side information must have 2 columns \(side_dim\), got 0"):
        call(seeing, rows())
    with refuses(nbsr, "must have 2 columns .*got 3"):
        call(seeing, rows(), side=torch.zeros(4, 3))
    with refuses(nbsr, "must have 0 columns .*got 2"):
        call(blind, rows(), side=torch.zeros(4, 2))
    for count in (3, 5):
        with refuses(nbsr, f"must have 4 rows like the input, got {count}"):
            call(seeing, rows(), side=torch.zeros(count, 2))
    with refuses(nbsr, "side information must be finite"):
        call(seeing, rows(), side=torch.tensor([[0.0, float("nan")]]).expand(4, 2))


def test_surplus_side_information_is_noticed_whatever_the_chunk(nbsr: ModuleType) -> None:
    with refuses(nbsr, "must have 4 rows like the input, got 6"):
        make(nbsr, side_dim=2).predict(rows(), side=torch.zeros(6, 2), chunk=2)


@pytest.mark.parametrize("eta", [float("nan"), np.float32("nan"), "-3", True, [1.0], 1j, 10**400])
def test_thresholds_that_are_no_numbers(nbsr: ModuleType, model: Any, eta: object) -> None:
    trace = model.eval()(rows())
    y = torch.zeros(4, dtype=torch.int64)
    for attempt in (
        lambda: model(rows(), eta=eta),
        lambda: model.predict(rows(), eta=eta),
        lambda: trace.exit(eta),
        lambda: trace.exit_depth(eta),
        lambda: trace.frontier(y, [0.0, eta]),
    ):
        with refuses(nbsr, "eta must be a number or None"):
            attempt()


@pytest.mark.parametrize("eta", [np.float32(-3), np.float64(-3), np.int64(-3), np.float16("inf")])
def test_numbers_of_numpy_are_thresholds_too(nbsr: ModuleType, model: Any, eta: Any) -> None:
    x, y = rows(), torch.zeros(4, dtype=torch.int64)
    trace = model.eval()(x)
    assert model.predict(x, eta=eta).depth.tolist() == model.predict(x, eta=float(eta)).depth.tolist()
    assert trace.frontier(y, np.array([eta])).rows() == trace.frontier(y, [float(eta)]).rows()
    limit = np.float32(0.5)
    assert trace.exit(None, limit).abstained.tolist() == trace.exit(None, 0.5).abstained.tolist()


@pytest.mark.parametrize("limit", [0.0, -0.1, 1.0001, float("nan"), float("inf"), "0.5", True])
def test_vacuity_limits_out_of_range(nbsr: ModuleType, model: Any, limit: object) -> None:
    trace = model.eval()(rows())
    for attempt in (lambda: model.predict(rows(), max_vacuity=limit), lambda: trace.exit(None, limit)):
        with refuses(nbsr, r"max_vacuity must lie in \(0, 1\] or be None, got"):
            attempt()


@pytest.mark.parametrize("chunk", [0, -5])
def test_chunks_without_rows(nbsr: ModuleType, model: Any, chunk: int) -> None:
    with refuses(nbsr, f"chunk must be at least 1, got {chunk}"):
        model.predict(rows(), chunk=chunk)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf"), "1", None])
def test_temperatures_that_are_not_above_zero(nbsr: ModuleType, model: Any, tau: object) -> None:
    words = "temperature tau must be a finite number > 0, got"
    with refuses(nbsr, words):
        model.set_temperature(tau)
    if tau is not None:
        with refuses(nbsr, words):
            model(rows(), tau=tau)
    with refuses(nbsr, words):
        nbsr.TemperatureSchedule(start=tau)
    with refuses(nbsr, words):
        nbsr.TemperatureSchedule(floor=tau)
    assert model.tau == 1.0


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5, float("nan")])
def test_temperature_decay_out_of_range(nbsr: ModuleType, decay: float) -> None:
    with refuses(nbsr, r"temperature decay must lie in \(0, 1\], got"):
        nbsr.TemperatureSchedule(decay=decay)


def test_soft_routing_cannot_exit_early(nbsr: ModuleType) -> None:
    model = make(nbsr, routing="softmax")
    with refuses(nbsr, "softmax routing takes every path at once: it cannot exit early"):
        model(rows(), eta=-3.0)
    assert len(model.eval()(rows(), eta=-3.0)) == 4


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"num_classes": 0}, "num_classes must be at least 2, got 0"),
        ({"num_classes": 2.5}, "num_classes must be a whole number of at least 2, got 2.5"),
        ({"num_classes": "5"}, "num_classes must be a whole number of at least 2, got '5'"),
        ({"num_classes": None}, "num_classes must be a whole number of at least 2, got None"),
        ({"oracle_dim": 0}, "oracle_dim must be at least 1, got 0"),
        ({"oracle_dim": 8.0}, "oracle_dim must be a whole number of at least 1, got 8.0"),
        ({"oracle_dim": True}, "oracle_dim must be a whole number of at least 1, got True"),
        ({"side_dim": float("nan")}, "side_dim must be a whole number of at least 0, got nan"),
        ({"side_dim": -1}, "side_dim must be at least 0, got -1"),
        ({"routing": "gumble"}, "routing must be one of 'gumbel', 'softmax'.*got 'gumble'"),
        ({"estimator": "dense"}, "estimator must be one of 'sparse', 'counterfactual', got 'dense'"),
        ({"prior_weight": -1.0}, "weight must be finite and above 0, got -1"),
        ({"prior_weight": 0.0}, "weight must be finite and above 0, got 0"),
        ({"prior_weight": float("nan")}, "weight must be finite and above 0, got nan"),
        ({"base_rate": [0.2] * 4}, r"base_rate must have shape \[5\], one a class, got \[4\]"),
        ({"base_rate": [0.3] * 5}, "base_rate must be above 0 and sum to 1, got minimum 0.3 and sum 1.5"),
        ({"base_rate": [0.0, 0.1, 0.2, 0.3, 0.4]}, "base_rate must be above 0 and sum to 1, got minimum 0"),
    ],
)
def test_models_that_cannot_be(nbsr: ModuleType, options: dict[str, object], words: str) -> None:
    with refuses(nbsr, words):
        make(nbsr, **options)


def test_experts_that_do_not_fit_the_graph(nbsr: ModuleType) -> None:
    spec = nbsr.ExpertSpec()
    with refuses(nbsr, "experts names nodes that the graph does not have: 4, lion"):
        make(nbsr, experts={"default": spec, "lion": spec, "4": spec})
    with refuses(nbsr, "experts says nothing about 1.1, 1.2, 1.3, 2, 2.1 and has no 'default'"):
        make(nbsr, experts={"1": spec})
    with refuses(nbsr, "experts says nothing about"):
        make(nbsr, experts={})
    for count in (0, 3):
        with refuses(nbsr, rf"one specification per level, from 1 to 2 of them .*, got {count}"):
            make(nbsr, experts=[spec] * count)
    with refuses(nbsr, "experts names nodes that the graph does not have: root"):
        make(nbsr, experts={"default": spec, "root": spec})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "relu"}, "expert activation must be one of 'softplus', 'sigmoid', 'exp', got 'relu'"),
        ({"hidden": (16, 0)}, r"expert hidden sizes must be integers >= 1, got \(16, 0\)"),
        ({"hidden": (1.5,)}, "expert hidden sizes must be integers >= 1"),
        ({"bound": 3.0}, "softplus evidence is unbounded: drop bound=3.0"),
        ({"activation": "sigmoid"}, "sigmoid evidence needs a bound"),
        ({"activation": "sigmoid", "bound": 0.0}, "sigmoid bound must be finite and > 0, got 0.0"),
        ({"activation": "sigmoid", "bound": float("inf")}, "sigmoid bound must be finite and > 0, got inf"),
        ({"activation": "exp", "bound": 0.0}, "exp bound must be finite and > 0, got 0.0"),
        ({"activation": "exp", "bound": float("nan")}, "exp bound must be finite and > 0, got nan"),
    ],
)
def test_experts_that_cannot_be(nbsr: ModuleType, options: dict[str, object], words: str) -> None:
    with refuses(nbsr, words):
        nbsr.ExpertSpec(**options)


def test_hidden_sizes_may_come_as_a_list_as_study_files_give_them(nbsr: ModuleType) -> None:
    experts, router = nbsr.ExpertSpec(hidden=[16]), nbsr.RouterSpec(hidden=[4])
    assert len(make(nbsr, experts=experts, router=router)(rows())) == 4
    assert experts == nbsr.ExpertSpec(hidden=(16,))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"belief": "beta"}, "router belief must be one of 'alpha', 'log', 'mean', 'none', got 'beta'"),
        ({"hidden": (-1,)}, "router hidden sizes must be integers >= 1"),
    ],
)
def test_routers_that_cannot_be(nbsr: ModuleType, options: dict[str, object], words: str) -> None:
    with refuses(nbsr, words):
        nbsr.RouterSpec(**options)


def test_a_density_must_be_there_before_it_is_fitted(nbsr: ModuleType, model: Any) -> None:
    with refuses(nbsr, "this model has no density factor"):
        model.fit_density(torch.randn(50, ORACLE))


# --- traces -----------------------------------------------------------------------------------------------------------


def test_labels_that_do_not_fit_the_trace(nbsr: ModuleType, model: Any) -> None:
    trace = model.eval()(rows())
    with refuses(nbsr, r"labels run from 0 to 5; expected within 0 \.\. 4"):
        trace.frontier(torch.tensor([0, 1, 2, 5]))
    with refuses(nbsr, r"labels run from -1 to 2; expected within 0 \.\. 4"):
        trace.frontier(torch.tensor([0, 1, 2, -1]))
    with refuses(nbsr, r"labels have shape \(3,\); expected \(4,\)"):
        trace.frontier(torch.tensor([0, 1, 2]))
    with refuses(nbsr, "labels have dtype torch.float32; an integer type expected"):
        trace.frontier(torch.zeros(4))
    with refuses(nbsr, r"labels run from 0 to 5; expected within 0 \.\. 4"):
        model.calibrate(trace, torch.tensor([0, 1, 2, 5]))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], np.array([0, 1, 2, 3]), "0123", None])
def test_labels_that_are_no_tensor(nbsr: ModuleType, model: Any, labels: object) -> None:
    with refuses(nbsr, f"labels must be a tensor of class numbers, got {type(labels).__name__}"):
        model.eval()(rows()).frontier(labels)


@pytest.mark.parametrize("etas", [0.5, np.array(0.5), torch.tensor(0.5)])
def test_a_frontier_needs_a_list_of_thresholds(nbsr: ModuleType, model: Any, etas: object) -> None:
    with refuses(nbsr, "etas must be a list of thresholds or None, got .*0.5"):
        model.eval()(rows()).frontier(torch.zeros(4, dtype=torch.int64), etas)


@pytest.mark.parametrize("loss", [-1, -0.001, float("nan"), "0.1", None, True])
def test_losses_that_no_threshold_can_have(nbsr: ModuleType, model: Any, loss: object) -> None:
    frontier = model.eval()(rows()).frontier(torch.zeros(4, dtype=torch.int64))
    with refuses(nbsr, "max_accuracy_loss must be a share of at least 0, got"):
        frontier.cheapest(loss)


@pytest.mark.parametrize("top", [0, -1, 2.5, "3", None, True])
def test_an_audit_shows_a_whole_number_of_classes(nbsr: ModuleType, model: Any, top: object) -> None:
    with refuses(nbsr, "top must be (a whole number of )?at least 1, got"):
        model(rows()).audit(0).render(top=top)


def test_a_frontier_needs_thresholds(nbsr: ModuleType, model: Any) -> None:
    with refuses(nbsr, "etas must name at least one threshold"):
        model.eval()(rows()).frontier(torch.zeros(4, dtype=torch.int64), [])


@pytest.mark.parametrize("index", [4, -5, 1000])
def test_audits_of_samples_that_are_not_there(nbsr: ModuleType, model: Any, index: int) -> None:
    with refuses(nbsr, f"sample {index} is not in this trace of 4 samples"):
        model(rows()).audit(index)


def test_an_audit_wants_a_name_for_every_class(nbsr: ModuleType, model: Any) -> None:
    audit = model(rows()).audit(0)
    for names in (["a", "b"], [str(k) for k in range(6)]):
        with refuses(nbsr, f"class_names must be 5 names, one per class, got {len(names)}"):
            audit.render(names)


def test_traces_that_cannot_be_joined(nbsr: ModuleType, model: Any) -> None:
    with refuses(nbsr, "concat needs at least one trace, got none"):
        nbsr.BeliefTrace.concat([])
    other = make(nbsr, graph=nbsr.DecisionGraph.chain(2))
    with refuses(nbsr, "same graph"):
        nbsr.BeliefTrace.concat([model(rows()), other(rows())])
    with refuses(nbsr, "training"):
        nbsr.BeliefTrace.concat([model.train()(rows()), model.eval()(rows())])


@pytest.mark.parametrize(
    ("usage", "share", "words"),
    [
        ([1.0] * 3, 0.1, r"usage must be one share per node, \[13\], got shape \[3\]"),
        ([2.0] * 13, 0.1, "usage must be a share between 0 and 1, got 2.0"),
        ([1.0] * 13, -0.1, "min_share must be a share between 0 and 1, got -0.1"),
        ([1.0] * 13, float("nan"), "min_share must be a share between 0 and 1, got nan"),
    ],
)
def test_shares_that_cannot_prune(nbsr: ModuleType, model: Any, usage: list[float], share: float, words: str) -> None:
    with refuses(nbsr, words):
        model.pruned(usage, share)

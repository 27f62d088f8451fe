"""Search spaces: samples stay in bounds and conditions hold; what cannot work is refused before anything runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.study.problems import Problems, StudyError
from nbsr_platform.study.space import Space
from nbsr_platform.study.space_file import never_active, read_space
from nbsr_platform.study.yaml_file import parse

from nbsr_core.domains.tabular import NbsrOptions
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.model.experts import ExpertSpec

NBSR_KEYS = (
    "graph, experts, router, routing, estimator, evidence, prior_weight, normalise, training_eta, density, objective, "
    "hidden, training"
)
FORMS = "{int: [low, high]}, {float: [low, high]} or {choice: [...]}"

WORKING = """\
graph.shape: {choice: [uniform, chain]}
graph.depth: {int: [1, 4]}
graph.width: {int: [2, 8], step: 2, when: {graph.shape: uniform}}
lambda: {float: [1e-5, 1e-2], log: true}
gamma: {float: [0, 0.1], step: 0.025}
eta: frontier
training.learning_rate: {float: [1e-4, 1e-2], log: true}
training.temperature.floor: {choice: [0.1, 0.5]}
experts.activation: {choice: [softplus, exp, sigmoid]}
experts.bound: {float: [2, 50], when: {experts.activation: [exp, sigmoid]}}
hidden: {choice: [[64], [32, 32]]}
density.enabled: {choice: [true, false]}
density.quantile: {float: [0.9, 0.999], when: {density.enabled: true, estimator: sparse}}
density.directions: {int: [1, 64], log: true, when: {density.quantile: 0.6}}
"""


def read(text: str, options: Any = None, training: TrainingConfig | None = None) -> tuple[Space, list[str]]:
    """The space of some YAML, and what was wrong with it."""
    problems = Problems("file")
    space = read_space(
        parse(text, "file").value, options or NbsrOptions(), training or TrainingConfig(), ("search", "space"), problems
    )
    return space, [str(problem) for problem in problems.found]


@cache
def working() -> Space:
    space, wrong = read(WORKING.rsplit("density.directions", 1)[0])
    assert wrong == []
    return space


def samples(space: Space, seed: int, count: int = 40) -> list[dict[str, Any]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [space.suggest(study.ask()) for _ in range(count)]


@pytest.fixture(autouse=True)
def _quiet_optuna() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class TestSuggest:
    @given(st.integers(0, 2**32 - 1))
    def test_within_bounds(self, seed: int) -> None:
        for sample in samples(working(), seed, 3):
            assert sample["graph.depth"] in {1, 2, 3, 4}
            assert sample.get("graph.width", 2) in {2, 4, 6, 8}
            assert 1e-5 <= sample["lambda"] <= 1e-2
            assert min(abs(sample["gamma"] - tick * 0.025) for tick in range(5)) < 1e-12
            assert sample["hidden"] in ([64], [32, 32])
            assert 0.9 <= sample.get("density.quantile", 0.9) <= 0.999

    def test_equal_seeds_equal_samples(self) -> None:
        assert samples(working(), 3) == samples(working(), 3)
        assert samples(working(), 3) != samples(working(), 4)

    def test_conditions_decide_what_is_sampled(self) -> None:
        found = samples(working(), 0, 60)
        for sample in found:
            assert ("graph.width" in sample) == (sample["graph.shape"] == "uniform")
            assert ("experts.bound" in sample) == (sample["experts.activation"] in {"exp", "sigmoid"})
            assert ("density.quantile" in sample) == sample["density.enabled"]
            assert "eta" not in sample
        assert len({"graph.width" in sample for sample in found}) == 2

    def test_every_value_is_reached(self) -> None:
        found = samples(working(), 0, 80)
        assert {sample["graph.depth"] for sample in found} == {1, 2, 3, 4}
        assert {tuple(sample["hidden"]) for sample in found} == {(64,), (32, 32)}

    def test_a_condition_on_what_was_not_sampled_does_not_hold(self) -> None:
        space, wrong = read(
            "density.enabled: {choice: [true, false]}\n"
            "density.normalise: {choice: [true, false], when: {density.enabled: true}}\n"
            "density.quantile: {float: [0.9, 0.95], when: {density.normalise: [true, false]}}\n"
        )
        assert wrong == []
        for sample in samples(space, 1):
            assert ("density.quantile" in sample) == ("density.normalise" in sample) == sample["density.enabled"]

    def test_true_is_not_one(self) -> None:
        space, _ = read("density.directions: {choice: [1, 2]}\n")
        assert not space.parameters[0].can_be(True)

    def test_conditions_on_fixed_options(self) -> None:
        text = "graph.width: {int: [2, 8], when: {graph.shape: [uniform, layered]}}\nlambda: {float: [0, 1]}\n"
        off, _ = read(text)
        assert all(set(sample) == {"lambda"} for sample in samples(off, 0, 5))
        assert never_active(off) == ["graph.width"]
        on, _ = read(text, NbsrOptions(graph=NbsrOptions().graph.__class__(shape="uniform")))
        assert all(set(sample) == {"graph.width", "lambda"} for sample in samples(on, 0, 5))
        assert never_active(on) == []

    def test_tpe_proposes_what_a_storage_can_replay(self) -> None:
        space = working()
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=3))
        for number in range(8):
            trial = study.ask()
            sample = space.suggest(trial)
            study.tell(trial, float(number))
            assert space.suggest(optuna.trial.FixedTrial(study.trials[-1].params)) == sample

    def test_distributions_are_those_that_optuna_saw(self) -> None:
        space = working()
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        seen: dict[str, Any] = {}
        for _ in range(20):
            space.suggest(study.ask())
            seen |= study.trials[-1].distributions
        assert seen == space.distributions
        assert list(space.distributions)[:3] == ["graph.shape", "graph.depth", "graph.width"]


class TestApply:
    @given(st.integers(0, 2**32 - 1))
    def test_whatever_is_sampled_can_be_built(self, seed: int) -> None:
        space = working()
        for sample in samples(space, seed, 3):
            options, training = space.apply(NbsrOptions(), TrainingConfig(epochs=3), sample)
            assert isinstance(options, NbsrOptions)
            assert options.graph.depth == sample["graph.depth"]
            assert options.graph.width == sample.get("graph.width", 4)
            assert (options.objective.entropy, options.objective.cost) == (sample["lambda"], sample["gamma"])
            assert options.hidden == tuple(sample["hidden"])
            assert isinstance(options.experts, ExpertSpec)
            assert options.experts.bound == sample.get("experts.bound")
            assert (training.epochs, training.learning_rate) == (3, sample["training.learning_rate"])
            assert training.temperature.floor == sample["training.temperature.floor"]

    def test_nothing_else_changes(self) -> None:
        options, training = NbsrOptions(hidden=(7,)), TrainingConfig(watch="nll")
        assert working().apply(options, training, {}) == (options, training)
        changed, same = working().apply(options, training, {"graph.depth": 1})
        assert (changed.hidden, changed.graph.depth, same) == ((7,), 1, training)

    def test_one_expert_of_several(self) -> None:
        options = NbsrOptions(experts=(ExpertSpec(activation="sigmoid", bound=5.0), ExpertSpec()))
        space, wrong = read("experts.0.bound: {float: [1, 9]}\n", options)
        assert wrong == []
        changed, _ = space.apply(options, TrainingConfig(), {"experts.0.bound": 9.0})
        assert changed.experts == (ExpertSpec(activation="sigmoid", bound=9.0), ExpertSpec())

    def test_a_choice_of_mappings_changes_only_what_it_names(self) -> None:
        options = NbsrOptions(graph=NbsrOptions().graph.__class__(width=6))
        space, wrong = read("graph: {choice: [{shape: uniform}, {shape: chain, depth: 3}]}\n", options)
        assert wrong == []
        built = {
            tuple(vars(space.apply(options, TrainingConfig(), one)[0].graph).values()) for one in samples(space, 0)
        }
        assert built == {("uniform", 2, 6, (), False), ("chain", 3, 6, (), False)}

    def test_what_does_not_go_together_says_so(self) -> None:
        with pytest.raises(StudyError, match=r"experts.activation: sigmoid evidence needs a bound"):
            working().apply(NbsrOptions(), TrainingConfig(), {"experts.activation": "sigmoid"})


MISTAKES: dict[str, tuple[str, str]] = {
    "{}": ("", f": is empty: nothing to search over; write keys such as training.epochs: {FORMS}"),
    "{eta: frontier}": ("", f": is empty: nothing to search over; write keys such as training.epochs: {FORMS}"),
    "[lambda]": ("", ": expected a mapping, got ['lambda']"),
    "{graph.dept: {int: [1, 4]}}": (
        ".graph.dept",
        ": the model has no such option; did you mean 'graph.depth'? "
        "allowed: graph.shape, graph.depth, graph.width, graph.widths, graph.generalist",
    ),
    "{seeds: {int: [1, 4]}}": (".seeds", f": the model has no such option; allowed: {NBSR_KEYS}"),
    "{training.rate: {float: [0.1, 1]}}": (
        ".training.rate",
        ": the model has no such option; did you mean 'training.muon_rate'? allowed: training.epochs, ",
    ),
    "{learning_rate: {float: [0.1, 1]}}": (
        ".learning_rate",
        f": the model has no such option; did you mean 'training.learning_rate'? allowed: {NBSR_KEYS}",
    ),
    "{experts.0.bound: {float: [1, 5]}}": (
        ".experts.0.bound",
        ": the model has no such option; did you mean 'experts.bound'? "
        "allowed: experts.hidden, experts.bias, experts.activation, experts.bound",
    ),
    "{lamda: {float: [0.1, 1]}}": (
        ".lamda",
        f": the model has no such option; did you mean 'lambda'? allowed: {NBSR_KEYS}",
    ),
    "{graph.depth.more: {int: [1, 4]}}": (
        ".graph.depth.more",
        ": the model has no such option; allowed: none below graph.depth, which is 2 in this model",
    ),
    "{graph.depth: 3}": (".graph.depth", f": expected {FORMS}, got 3"),
    "{graph.depth: {integer: [1, 3]}}": (
        ".graph.depth.integer",
        ": unknown key; did you mean 'int'? allowed: int, float, choice, step, log, when",
    ),
    "{graph.depth: {int: [1, 3], choice: [1]}}": (
        ".graph.depth",
        f": expected {FORMS}, got {{'int': [1, 3], 'choice': [1]}}",
    ),
    "{graph.depth: {choice: [1], log: true}}": (".graph.depth.log", ": unknown key; allowed: choice, when"),
    "{graph.depth: {int: [4, 1]}}": (".graph.depth.int", ": low is above high, got [4, 1]; write [1, 4]"),
    "{graph.depth: {int: [1]}}": (".graph.depth.int", ": expected [low, high], two whole numbers, got [1]"),
    "{graph.depth: {int: [1, x]}}": (".graph.depth.int[1]", ": expected a whole number, got 'x'"),
    "{lambda: {float: [0, .inf]}}": (".lambda.float", ": expected two finite numbers, got [0, inf]"),
    "{lambda: {float: [0, 1], log: true}}": (
        ".lambda.float",
        ": log needs a low above 0, got [0, 1]; raise it, or drop log",
    ),
    "{graph.width: {int: [2, 7], step: 2}}": (".graph.width.step", ": steps do not end at 7, got 2; write [2, 6]"),
    "{gamma: {float: [0, 1], step: 0}}": (".gamma.step", ": expected a number above 0, got 0.0"),
    "{gamma: {float: [0.1, 1], step: 0.1, log: true}}": (".gamma.step", ": step and log exclude each other; drop one"),
    "{graph.depth: {float: [1, 3]}}": (".graph.depth", ": expected a whole number, got 1.763932"),
    "{training.epochs: {int: [0, 3]}}": (".training.epochs", ": must be at least 1, got 0"),
    "{hidden: {choice: []}}": (".hidden.choice", ": expected a list of values to choose from, got []"),
    "{hidden: {choice: [[64], [8], [64]]}}": (".hidden.choice[2]", ": stands twice, got [64]"),
    "{experts.activation: {choice: [exp, sofplus]}}": (
        ".experts.activation",
        ": expected one of softplus, sigmoid, exp, got 'sofplus'; did you mean 'softplus'?",
    ),
    "{experts.activation: {choice: [exp, sigmoid]}}": (
        ".experts.activation",
        ': "sigmoid": sigmoid evidence needs a bound, its confidence budget for each class',
    ),
    "{experts.activation: {choice: [sigmoid]}, experts.bound: {float: [-1, 5]}}": (
        ".experts.activation",
        ': cannot be "sigmoid" with the others\' first values: experts: sigmoid bound must be finite and > 0, got -1.0',
    ),
    "{lambda: {float: [0, 1]}, objective.entropy: {float: [0, 1]}}": (
        ".objective.entropy",
        ": sets the same option as 'lambda'; drop one of the two",
    ),
    "{graph: {choice: [{depth: 1}]}, graph.depth: {int: [1, 2]}}": (
        ".graph.depth",
        ": sets the same option as 'graph'; drop one of the two",
    ),
    "{gamma: {float: [0, 1]}, eta: {float: [-3, 3]}}": (
        ".eta",
        ": expected 'frontier', got {'float': [-3, 3]}; it never needs another training, "
        "but is picked from the trained model's frontier",
    ),
    "{density.quantile: {float: [0.9, 0.99], when: {densty.enabled: true}}}": (
        ".density.quantile.when.densty.enabled",
        f": neither the space nor the model has this key; did you mean 'density.enabled'? allowed: {NBSR_KEYS}",
    ),
    "{density.quantile: {float: [0.9, 0.99], when: {density.enabled: maybe}}}": (
        ".density.quantile.when.density.enabled",
        ": expected true or false, got 'maybe'",
    ),
    "{density.quantile: {float: [0.9, 0.99], when: always}}": (
        ".density.quantile.when",
        ": expected a mapping from another key to the value, or list of values, it must have, got 'always'",
    ),
    "{graph.width: {int: [2, 8], when: {graph.shape: chain}}, graph.shape: {choice: [uniform, chain]}}": (
        ".graph.width.when.graph.shape",
        ": graph.shape must stand before graph.width in the space",
    ),
    "{graph.shape: {choice: [uniform, chain]}, graph.width: {int: [2, 8], when: {graph.shape: layered}}}": (
        ".graph.width.when.graph.shape",
        ': is never so: graph.shape is one of {"choice": ["uniform", "chain"]}, got \'layered\'',
    ),
}


class TestFile:
    def test_round_trip(self) -> None:
        space = working()
        problems = Problems("again")
        assert read_space(space.to_plain(), NbsrOptions(), TrainingConfig(), (), problems) == space
        assert problems.found == []
        assert space.picks_eta

    def test_a_condition_out_of_the_other_keys_range(self) -> None:
        _, wrong = read(WORKING)
        assert wrong == [
            "file: search.space.density.directions.when.density.quantile: is never so: density.quantile is one of "
            '{"float": [0.9, 0.999], "step": null, "log": false}, got 0.6'
        ]

    def test_without_a_model_only_the_form_is_checked(self) -> None:
        problems = Problems("file")
        read_space({"what.ever": {"int": [1, 2]}, "more": {"int": [2, 1]}}, None, None, (), problems)
        assert [str(problem) for problem in problems.found] == [
            "file: more.int: low is above high, got [2, 1]; write [1, 2]"
        ]

    def test_everything_at_once(self) -> None:
        _, wrong = read("a: {int: [1, 2]}\ngraph.depth: {int: [2, 1]}\nhidden: {choice: [[8], x]}\neta: 3\n")
        assert [line.split(": ")[1].removeprefix("search.space.") for line in wrong] == [
            "a",
            "graph.depth.int",
            "eta",
            "hidden",
        ]

    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_each_mistake_has_its_own_message(self, mistake: str) -> None:
        key, message = MISTAKES[mistake]
        (line,) = read(mistake)[1]
        start = f"file: search.space{key}{message}"
        assert line.startswith(start) if message.endswith(", ") else line == start

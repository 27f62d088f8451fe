"""The planned walk of tokens says what the trace of the same walk says, wherever it stops and however it is cut."""

from __future__ import annotations

import pytest
import torch

from nbsr_core.domains.domain import Signature
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.models import NbsrOptions, TokenNbsr, build_nbsr
from nbsr_core.domains.language.planned import can_plan, planned_walk
from nbsr_core.domains.tabular import DensityOptions, GraphOptions
from nbsr_core.kernels import choice
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.routers import RouterSpec
from nbsr_core.model.walk import WalkInput, whole_walk

WORDS = Signature((*grammar.SPECIAL, *(f"w{rank}" for rank in range(296))), [f"token {place}" for place in range(8)])
BLIND = RouterSpec(hidden=(16,), belief="none")

RECIPES = {
    "exponential": NbsrOptions(experts=ExpertSpec(activation="exp"), router=BLIND, prior_weight=5.0),
    "hidden, bounded": NbsrOptions(experts=ExpertSpec(hidden=(6,), activation="exp", bound=20.0), router=BLIND),
    "softplus, no biases": NbsrOptions(
        experts=ExpertSpec(bias=False), router=RouterSpec(hidden=(9, 7), bias=False, belief="none")
    ),
    "uneven bands, linear routers": NbsrOptions(bands=5, router=RouterSpec(hidden=(), belief="none")),
    "a generalist with a budget": NbsrOptions(
        graph=GraphOptions(generalist=True),
        experts=(ExpertSpec(activation="sigmoid", bound=3.0), ExpertSpec(hidden=(6,), activation="exp")),
        router=BLIND,
    ),
}


COMPILED = choice.COMPILED


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few words are walked in compiled code: here the plan is in question."""
    monkeypatch.setattr(choice, "COMPILED", choice.REFERENCE)


def learner_of(recipe: str, *, close: bool = True, calibrated: bool = True) -> tuple[TokenNbsr, torch.Tensor]:
    """A model with random weights, and windows of which some end early."""
    torch.manual_seed(3)
    options = RECIPES[recipe]
    x = torch.randint(grammar.UNK, 300, (40, 8))
    x[:10, 5:] = grammar.PAD
    learner = build_nbsr(NbsrOptions(**{**vars(options), "density": DensityOptions(enabled=close)}), WORDS)
    learner.model.eval()
    if close:
        learner.model.fit_density_on(x[:20], x[20:])
    if calibrated:
        learner.model.calibration.fitted.fill_(True)
        learner.model.calibration.temperature.copy_(torch.tensor([1.3, 0.8, 0.9])[: learner.model.graph.depth])
    return learner, x


@pytest.mark.parametrize("share", [None, 0.0, 0.4, 0.97, 1.0])
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_stops_where_the_trace_stops(recipe: str, share: float | None) -> None:
    learner, x = learner_of(recipe)
    model, trace = learner.model, learner.trace(x)
    entropy = trace.entropy[1].sort().values
    eta = None if share is None else float(entropy[min(int(share * len(entropy)), len(entropy) - 1)]) + 1e-3
    wanted = trace.exit(eta, 0.5)
    with torch.inference_mode():
        h = model.oracle(x)
        for block in (7, 1000):
            said = planned_walk(model, h, eta, 0.5, model.evidence_scale(h, x), block)
            torch.testing.assert_close(said.probs, wanted.probs, rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(said.alpha, wanted.alpha, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(said.vacuity, wanted.vacuity, rtol=1e-4, atol=1e-7)
            for name in ("depth", "node", "label", "abstained"):
                assert torch.equal(getattr(said, name), getattr(wanted, name)), name


@pytest.mark.parametrize(("close", "calibrated"), [(False, True), (True, False), (False, False)])
def test_density_and_calibration_are_not_needed(close: bool, calibrated: bool) -> None:
    learner, x = learner_of("exponential", close=close, calibrated=calibrated)
    said, wanted = learner.model.predict(x), learner.trace(x).exit(None)
    torch.testing.assert_close(said.alpha, wanted.alpha, rtol=1e-4, atol=1e-5)
    assert torch.equal(said.node, wanted.node)


def test_few_words_are_walked_in_compiled_code_without_a_plan() -> None:
    learner, x = learner_of("exponential")
    planned = learner.model.predict(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "COMPILED", COMPILED)
        with torch.inference_mode():
            whole = whole_walk(learner.model, WalkInput(learner.model.oracle(x), None, None), None, None)
        if whole is None:
            pytest.skip("nothing is compiled here")
        patch.setattr("nbsr_core.domains.language.reading.planned_walk", None)
        walked = learner.model.predict(x)
    torch.testing.assert_close(walked.probs, planned.probs, rtol=1e-4, atol=1e-6)
    assert torch.equal(walked.node, planned.node)


def test_predict_plans_unless_a_router_reads_the_belief(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, x = learner_of("exponential")
    planned: list[int] = []

    def counting(*arguments: object, **named: object) -> object:
        planned.append(1)
        return planned_walk(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("nbsr_core.domains.language.reading.planned_walk", counting)
    assert can_plan(learner.model)
    learner.model.predict(x)
    reading = build_nbsr(NbsrOptions(router=RouterSpec(hidden=(8,), belief="log")), WORDS)
    assert not can_plan(reading.model)
    said, wanted = reading.model.predict(x), reading.trace(x).exit(None)
    torch.testing.assert_close(said.alpha, wanted.alpha, rtol=1e-4, atol=1e-5)
    refining = build_nbsr(NbsrOptions(router=BLIND, evidence="relative"), WORDS)
    assert not can_plan(refining.model)
    torch.testing.assert_close(
        refining.model.predict(x).alpha, refining.trace(x).exit(None).alpha, rtol=1e-4, atol=1e-5
    )
    assert planned == [1]


def test_one_prediction_can_follow_another() -> None:
    learner, x = learner_of("hidden, bounded")
    parts = [learner.model.predict(part) for part in x.split(16)]
    torch.testing.assert_close(type(parts[0]).concat(parts).probs, learner.model.predict(x).probs, rtol=1e-4, atol=1e-7)

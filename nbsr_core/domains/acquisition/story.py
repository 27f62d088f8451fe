"""One case, told step by step: what was bought for how much, what it said, when it stopped, what would come next."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core._extras import extra
from nbsr_core.belief import dirichlet
from nbsr_core.belief.calibration import calibrated
from nbsr_core.domains.acquisition.learners import AcquisitionLearner
from nbsr_core.domains.acquisition.words import in_plain_words
from nbsr_core.learning.splits import Splits
from nbsr_core.model.acquisition import AcquisitionTrace, Known, doubt_of

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
# Panels that were not bought at a step: so many of the policy's next choices are told.
MOST_INSTEAD = 8
# Of what a panel shows, so many readings are told.
MOST_WORDS = 4
# Of the classes, so many are named as candidates, the most likely first.
CANDIDATES = 3

Candidates = tuple[tuple[str, float], ...]
"""Classes with their probabilities, the most likely first."""


@dataclass(frozen=True)
class Option:
    """A panel that could have been bought at a step, and what the belief would have been after it.

    Attributes:
        score: what the policy thought of it; the highest is bought.
        doubt: what the stop rule would have compared with eta after it.
    """

    panel: str
    cost: float
    score: float
    doubt: float
    diagnosis: str
    confidence: float


@dataclass(frozen=True)
class Purchase:
    """One step: `shown` is what the panel unveiled, `candidates` what the belief then holds most likely, `instead` what
    was not bought, the policy's next choice first.
    """

    step: int
    bought: Option
    shown: str
    spent: float
    entropy: float
    categorical_entropy: float
    needed: bool
    candidates: Candidates
    instead: tuple[Option, ...]


@dataclass(frozen=True)
class Story:
    """The whole rollout of a case; `needed` purchases come before the stop, the others show what would follow.

    Attributes:
        free: what was known without paying.
        candidates: what the belief held most likely before the first purchase.
        budget: what could be spent at most; None where there was no such limit.
        price_of_all: of all purchases of the rollout, had it gone on.
        price_of_everything: of all panels that there are.
    """

    case: str
    sample: int
    true: str
    predicted: str
    confidence: float
    stop: str
    eta: float | None
    doubt_at_start: float
    spent: float
    price_of_all: float
    price_of_everything: float
    budget: float | None
    free: str
    candidates: Candidates
    steps: tuple[Purchase, ...]

    @property
    def next_best(self) -> Option | None:
        """The panel that would have been bought next, had the rollout not stopped."""
        return next((step.bought for step in self.steps if not step.needed), None)

    def to_json(self) -> dict[str, Any]:
        following = self.next_best
        return {**asdict(self), "next_best": None if following is None else asdict(following)}

    def render(self) -> str:
        """In plain words, for the terminal."""
        return "\n".join(in_plain_words(self.to_json()))

    def draw(self) -> str:
        """Doubt by step as SVG, with panels, costs, threshold and the alternatives at each step."""
        with extra("plots"):
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        figure = Figure(figsize=(8.4, 4.8), layout="constrained")
        axes = figure.subplots()
        doubts = [self.doubt_at_start, *(step.bought.doubt for step in self.steps)]
        last = sum(step.needed for step in self.steps)
        axes.plot(range(last, len(doubts)), doubts[last:], "o--", color=GREY, markersize=5, label="had it gone on")
        axes.plot(range(last + 1), doubts[: last + 1], "o-", color=BLUE, markersize=8, label="bought")
        for step in self.steps:
            others = [option.doubt for option in step.instead]
            label = "other panels at that step" if step.step == 1 else None
            axes.plot([step.step] * len(others), others, "_", color=ORANGE, markersize=14, alpha=0.8, label=label)
        if self.eta is not None:
            axes.axhline(self.eta, color=ORANGE, linestyle=":", label=f"threshold η = {self.eta:.3g}")
        ticks = ["free features", *(f"{s.bought.panel}\n+{s.bought.cost:g} = {s.spent:g}" for s in self.steps)]
        axes.set_xticks(range(len(ticks)), [tick.replace(" ", "\n", 1) for tick in ticks], fontsize=8)
        axes.set_ylabel(f"{self.stop} entropy (nats)")
        verdict = "right" if self.true == self.predicted else "wrong"
        said = f"{self.predicted} ({self.confidence:.1%}, {verdict})"
        axes.set_title(f"{self.case.capitalize()} {self.sample}: {said} for {self.spent:g}", fontsize=11)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        drawn = io.StringIO()
        with rc_context({"svg.hashsalt": "triage"}):  # equal stories, equal pictures
            figure.savefig(drawn, format="svg", metadata={"Date": None})
        return drawn.getvalue()


@torch.no_grad()
def tell(learner: AcquisitionLearner, splits: Splits, sample: int, eta: float, case: str) -> Story:
    """Roll one test case out, and look at panels that were not bought."""
    model, classes = learner.model, splits.class_names
    x = splits.test.x[sample : sample + 1].to(model.prior.device)
    trace = learner.trace(x)
    stopped = trace.exit(eta)
    depth, known, steps = int(stopped.depth[0]), model.start(x), []
    for t in range(int(trace.length[0])):
        left = (~model.closed(known)[0]).nonzero().squeeze(1)
        left = left[trace.steps[t].logits[0, left].argsort(descending=True, stable=True)[: MOST_INSTEAD + 1]]
        then = model.bought_also(known.rows(torch.zeros_like(left)), x.expand(len(left), -1), left)
        scores = trace.steps[t].logits[0]
        chosen, *others = _options(learner, trace, t, left.tolist(), then, scores.tolist(), splits)
        known = then.rows(torch.zeros(1, dtype=torch.int64, device=x.device))
        steps.append(
            Purchase(
                step=t + 1,
                bought=chosen,
                shown=shown(splits, x[0].cpu(), model.panels.columns[left[0]]),
                spent=float(trace.cost[t + 1, 0]),
                entropy=float(trace.entropy[t + 1, 0]),
                categorical_entropy=float(dirichlet.categorical_entropy(trace.belief(t + 1))[0]),
                needed=t < depth,
                candidates=_candidates(trace.probabilities(t + 1)[0], classes),
                instead=tuple(others),
            )
        )
    return Story(
        case=case,
        sample=sample,
        true=classes[int(splits.test.y[sample])],
        predicted=classes[int(stopped.label[0])],
        confidence=float(stopped.probs[0].max()),
        stop=model.stop,
        eta=eta if math.isfinite(eta) else None,
        doubt_at_start=float(trace.doubt[0, 0]),
        spent=float(trace.cost[depth, 0]),
        price_of_all=float(trace.cost[-1, 0]),
        price_of_everything=sum(model.panels.costs),
        budget=max(learner.budgets, default=None),
        free=shown(splits, x[0].cpu(), model.panels.free_columns),
        candidates=_candidates(trace.belief(0)[0] / trace.belief(0)[0].sum(), classes),
        steps=tuple(steps),
    )


def _candidates(probs: Float[Tensor, " K"], classes: Sequence[str]) -> Candidates:
    top = probs.topk(min(CANDIDATES, len(classes)))
    return tuple(
        (classes[place], value) for place, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )


def shown(splits: Splits, x: Float[Tensor, " F"], columns: Sequence[int]) -> str:
    """What columns hold, in the words of the data: cells of a table, what is there of yes and no, or numbers."""
    if not columns:
        return ""
    readings = splits.readings(x)
    if readings is not None:
        own = set(columns)
        words = [f"{reading.name} {reading.words}" for reading in readings if own.issuperset(reading.places)]
    else:
        values = {splits.feature_names[column]: float(x[column]) for column in columns}
        words = [f"{name} {value:.3g}" for name, value in values.items()]
        if set(values.values()) <= {0.0, 1.0}:
            words = [name.replace("_", " ") for name, value in values.items() if value == 1] or ["nothing"]
    more = f" and {len(words) - MOST_WORDS} more" if len(words) > MOST_WORDS else ""
    return ", ".join(words[:MOST_WORDS]) + more


def _options(
    learner: AcquisitionLearner,
    trace: AcquisitionTrace,
    t: int,
    left: list[int],
    then: Known,
    scores: list[float],
    splits: Splits,
) -> list[Option]:
    belief = then.alpha if trace.temperature is None else calibrated(then.alpha, trace.temperature[t])
    doubts, panels = doubt_of(trace.stop, belief).tolist(), learner.model.panels
    sure = (belief / belief.sum(-1, keepdim=True)).max(-1)
    return [
        Option(
            panel=panels.names[panel],
            cost=panels.costs[panel],
            score=scores[panel],
            doubt=doubts[i],
            diagnosis=splits.class_names[int(sure.indices[i])],
            confidence=float(sure.values[i]),
        )
        for i, panel in enumerate(left)
    ]

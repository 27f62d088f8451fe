"""An explained sample: its walk as data, as JSON and in words. `nbsr_platform.explain` makes it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbsr_core.attribution import Feature
from nbsr_core.graph import DecisionGraph

BAR, WIDTH = 20, 110
ALTERNATIVES_IN_TEXT, FIRST_OF_POPULATION = 4, 10


@dataclass(frozen=True)
class Amount:
    """A named quantity: evidence for a class, or the belief in one."""

    name: str
    value: float


@dataclass(frozen=True)
class Population:
    """What another model of the study looks at over all samples, beside what mattered for this one.

    Attributes:
        trial: the other trial's key, `name` what a person would call it.
        features: those that it uses at all, with their share of the importance, the most important first.
    """

    trial: str
    name: str
    features: tuple[Amount, ...]

    def rank(self, name: str) -> int | None:
        """The place of a feature, from 1; None where it is not used."""
        return next((place for place, feature in enumerate(self.features, 1) if feature.name == name), None)


@dataclass(frozen=True)
class Visit:
    """The visit to one expert.

    Attributes:
        alternatives: all children of the node before, with their route probabilities.
        evidence: what the expert said most strongly, in pseudo-counts.
        belief: the likeliest classes after it.
        belief_shift: KL divergence of the belief after from the belief before, in nats.
        consulted: whether the expert is asked when the walk may exit early.
        features: what this expert's evidence for the explained class rests on.
    """

    depth: int
    node: str
    route_probability: float
    alternatives: dict[str, float]
    evidence: tuple[Amount, ...]
    belief: tuple[Amount, ...]
    belief_shift: float
    entropy: float
    vacuity: float
    consulted: bool
    features: tuple[Feature, ...]

    @property
    def prediction(self) -> str:
        return self.belief[0].name


@dataclass(frozen=True, eq=False)
class Explanation:
    """One sample's walk to full depth, and where it stops when it may exit early.

    Attributes:
        trial: the trial's key, `name` what a person would call it.
        answer: what the model says where it stops, with `confidence`.
        prediction: what it says at full depth: the class whose belief `features` explain.
        eta: the trial's exit threshold; None where walks never exit early.
        exit_depth: the depth at which it stops with that threshold.
        abstained: whether it would rather not answer, being vaguer than `max_vacuity`.
        density: closeness to the training data, for models with a density factor.
        notes: what a reader must know before believing any of it.
        population: importance of the features over all samples, if the study has boosted trees with the same data.
        portrait: what a person would see of the sample (PNG), where its domain has pictures.
    """

    trial: str
    name: str
    study: str
    source: str
    synthetic: bool
    sample: int
    test_samples: int
    true_class: str
    answer: str
    confidence: float
    prediction: str
    eta: float | None
    exit_depth: int
    max_vacuity: float | None
    abstained: bool
    density: float | None
    prior_entropy: float
    num_classes: int
    visits: tuple[Visit, ...]
    features: tuple[Feature, ...]
    notes: tuple[str, ...]
    graph: DecisionGraph
    population: Population | None = None
    portrait: bytes | None = None

    @property
    def exits_early(self) -> bool:
        return self.exit_depth < len(self.visits)

    @property
    def verdict(self) -> str:
        """The answer beside the truth, in a line."""
        right = "right" if self.answer == self.true_class else "wrong"
        said = f"{self.answer} ({self.confidence:.1%}), which is {right}"
        return f"abstains; would have said {said}" if self.abstained else f"says {said}"

    @property
    def stop(self) -> str:
        """Why the walk stops where it does."""
        if not self.exits_early:
            return "full depth" if self.eta is None else f"full depth: never below eta = {self.eta:.4g} on the way"
        entropy = self.visits[self.exit_depth - 1].entropy
        return f"exits at depth {self.exit_depth}: entropy {entropy:.4g} is below eta = {self.eta:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for `nbsr explain --json`; graph and portrait stay out, an infinite eta is text."""
        plain = asdict(self)
        del plain["graph"], plain["portrait"]
        if self.eta is not None and not math.isfinite(self.eta):
            plain["eta"] = str(self.eta)
        return plain

    def text(self) -> str:
        """The walk as a person reads it."""
        return "\n".join(_lines(self))


def _lines(told: Explanation) -> Iterator[str]:
    origin = f"{told.source}{' (synthetic)' if told.synthetic else ''}"
    yield f"{told.study}: {told.name} (trial {told.trial}), on {origin}"
    yield from (f"note: {note}" for note in told.notes)
    yield f"sample {told.sample} of 0 to {told.test_samples - 1}: truly {told.true_class}; the model {told.verdict}"
    yield f"walk to {told.stop}" if told.exit_depth == len(told.visits) else f"walk {told.stop}"
    if told.density is not None:
        yield f"closeness to the training data {told.density:.3g} (evidence is scaled by it)"
    yield ""
    root = told.graph.root.name
    yield f"0. {root}: a prior over {told.num_classes} classes, entropy {told.prior_entropy:.4g}, vacuity 1"
    for visit in told.visits:
        yield from _visit_lines(visit, told)
    yield ""
    yield f"What drove the belief in {told.prediction} (input x gradient, all experts together):"
    yield from _feature_lines(told.features)
    if told.population is not None:
        yield from _population_lines(told.features, told.population)


def _visit_lines(visit: Visit, told: Explanation) -> Iterator[str]:
    unasked = "" if visit.consulted else "   [not asked after the exit]"
    yield f"{visit.depth}. {visit.node}{unasked}"
    others = sorted(((p, name) for name, p in visit.alternatives.items() if name != visit.node), reverse=True)
    rivals = [f"{name} {p:.3f}" for p, name in others[:ALTERNATIVES_IN_TEXT]]
    if len(others) > len(rivals):
        rivals.append(f"{len(others) - len(rivals)} more")
    route = f"p = {visit.route_probability:.3f}" + (f"; others: {', '.join(rivals)}" if rivals else "")
    yield _field("route", route)
    yield _field("evidence", ", ".join(f"{said.name} +{said.value:.3g}" for said in visit.evidence))
    yield _field("belief", ", ".join(f"{share.name} {share.value:.1%}" for share in visit.belief))
    measures = f"entropy {visit.entropy:.4g}, vacuity {visit.vacuity:.3g}"
    yield _field("belief shift", f"{visit.belief_shift:.3g} nats; {measures}")
    if visit.features:
        yield _field("features", ", ".join(f"{f.name} ({f.reading}) {f.attribution:+.3g}" for f in visit.features))
    if visit.depth == told.exit_depth:
        yield f"     ── stops here and {told.verdict} ──"


def _field(name: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"     {name:<14}", subsequent_indent=" " * 19)


def _feature_lines(features: Sequence[Feature]) -> Iterator[str]:
    if not features:
        yield "  nothing: no input has an influence along this path"
        return
    longest = max(len(feature.name) for feature in features)
    readings = max(len(feature.reading) for feature in features)
    largest = max(abs(feature.attribution) for feature in features)
    for feature in features:
        bar = "█" * max(1, round(BAR * abs(feature.attribution) / largest))
        line = f"{feature.name:<{longest}}  {feature.reading:<{readings}}  {feature.attribution:+9.3g}  {bar}"
        yield f"  {line}"


def _population_lines(features: Sequence[Feature], population: Population) -> Iterator[str]:
    known = population.features
    first = ", ".join(f"{feature.name} {feature.value:.1%}" for feature in known[:FIRST_OF_POPULATION])
    ranks = ", ".join(f"{feature.name} {population.rank(feature.name) or 'unused'}" for feature in features)
    yield ""
    yield f"Beside it, what {population.name} (trial {population.trial}) looks at over all samples (share of the gain):"
    yield textwrap.fill(first, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if features:
        told = f"places of this sample's features among its {len(known)}: {ranks}"
        yield textwrap.fill(told, WIDTH, initial_indent="  ", subsequent_indent="  ")

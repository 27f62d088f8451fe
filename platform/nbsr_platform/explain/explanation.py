"""An explained sample: its walk as data, as JSON and in words. `nbsr_platform.explain.explain` makes it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.trace.visit import WIDTH, Amount, Feature, Visit, counts, nats

BAR, FIRST_OF_POPULATION = 20, 10
CALIBRATION = (
    "T is the calibration temperature of that depth, fitted on the validation split: the model says p^(1/T), "
    "renormalised over all classes, where the evidence alone gives p = alpha / sum. Vacuity and the order of the "
    "classes stay as they are. An entropy is off the chart where calibration all but rules some classes out."
)


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
        prior_weight: pseudo-counts of the prior, over all classes.
        inputs: what `features` are: inputs, pixels, or what a frozen backbone made of these; None if they cannot vary.
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
    prior_weight: float
    num_classes: int
    visits: tuple[Visit, ...]
    features: tuple[Feature, ...]
    inputs: str | None
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
            return "full depth" if self.eta is None else f"full depth: never below eta, {self.threshold}, on the way"
        entropy = nats(self.visits[self.exit_depth - 1].entropy, self.num_classes)
        return f"exits at depth {self.exit_depth}: entropy {entropy} is below eta, {self.threshold}"

    @property
    def method(self) -> str:
        """How features were found, and what they are."""
        what = "input" if self.inputs in (None, "inputs") else self.inputs
        return f"{what} × gradient, all experts of the walk together"

    @property
    def no_features(self) -> str:
        """Why there are none."""
        if self.inputs is None:
            return "not attributed: the input stands for something and cannot be varied a little"
        return f"nothing: small changes of the {self.inputs} change nothing along this path"

    @property
    def threshold(self) -> str:
        """The exit threshold on the scale of the entropies."""
        if self.eta is None or self.eta == math.inf:
            return "none" if self.eta is None else "which every entropy is"
        return nats(self.eta, self.num_classes)

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


def _lines(explained: Explanation) -> Iterator[str]:
    origin = f"{explained.source}{' (synthetic)' if explained.synthetic else ''}"
    yield f"{explained.study}: {explained.name} (trial {explained.trial}), on {origin}"
    yield from (f"note: {note}" for note in explained.notes)
    which = f"sample {explained.sample} of 0 to {explained.test_samples - 1}"
    yield f"{which}: truly {explained.true_class}; the model {explained.verdict}"
    yield f"walk to {explained.stop}" if explained.exit_depth == len(explained.visits) else f"walk {explained.stop}"
    if explained.density is not None:
        yield f"closeness to the training data {explained.density:.3g} (evidence is scaled by it)"
    yield ""
    root = explained.graph.root.name
    prior = f"{counts(explained.prior_weight)} pseudo-counts over {explained.num_classes} classes"
    yield f"0. {root}: the prior, {prior}; vacuity 1, entropy {nats(explained.prior_entropy, explained.num_classes)}"
    for visit in explained.visits:
        yield from visit.explained_lines()
        if visit.depth == explained.exit_depth:
            yield f"     ── stops here and {explained.verdict} ──"
    if any(visit.temperature is not None for visit in explained.visits):
        yield ""
        yield textwrap.fill(CALIBRATION, WIDTH)
    yield ""
    yield f"What drove the belief in {explained.prediction} ({explained.method}):"
    yield from _feature_lines(explained)
    if explained.population is not None:
        yield from _population_lines(explained.features, explained.population)


def _feature_lines(explained: Explanation) -> Iterator[str]:
    features = explained.features
    if not features:
        yield f"  {explained.no_features}"
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
        said = f"places of this sample's features among its {len(known)}: {ranks}"
        yield textwrap.fill(said, WIDTH, initial_indent="  ", subsequent_indent="  ")

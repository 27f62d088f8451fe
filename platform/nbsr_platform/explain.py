"""Why did the model say that? One test sample's walk, told from a stored trial: routes, evidence, belief, features.

Nothing is kept for it but the weights: the model is built anew from the trial's options, the data is loaded again from
its options and seed, and the sample walks once more. Where code or data are no longer those of the trial, it is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nbsr_core import attribute, dirichlet
from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Domain, Signature, find_domain
from nbsr_core.errors import InputError
from nbsr_core.graph import DecisionGraph
from nbsr_core.learners import NbsrLearner
from nbsr_platform.options import from_plain
from nbsr_platform.paths import Home
from nbsr_platform.results import ResultStore, TrialResult
from nbsr_platform.tracking_store import TrackingError, TrackingStore, masked, sqlite_file
from nbsr_platform.trial import Trial

TOP_CLASSES, TOP_FEATURES, TOP_FEATURES_OF_EXPERT = 4, 10, 5
RUN_ID = re.compile(r"[0-9a-f]{32}")
MOST_LISTED = 8


@dataclass(frozen=True)
class Amount:
    """A named quantity: evidence for a class, or the belief in one."""

    name: str
    value: float


@dataclass(frozen=True)
class Feature:
    """What one input contributed to the belief in the explained class.

    Attributes:
        state: `present` or `absent` where the feature is binary, else None.
    """

    name: str
    value: float
    attribution: float
    state: str | None

    def __str__(self) -> str:
        return f"{self.name} ({self.state or f'= {self.value:.4g}'}) {self.attribution:+.3g}"


@dataclass(frozen=True)
class Visit:
    """The visit to one expert.

    Attributes:
        alternatives: all children of the node before, with their route probabilities.
        evidence: what the expert said most strongly.
        belief: the likeliest classes after it.
        belief_shift: KL divergence of the belief after from the belief before, in nats.
        consulted: whether the expert is asked at all when the walk may exit early.
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
    prediction: str
    confidence: float
    consulted: bool
    features: tuple[Feature, ...]


@dataclass(frozen=True, eq=False)
class Explanation:
    """One sample's walk to full depth, and where it stops when it may exit early.

    Attributes:
        eta: the trial's exit threshold; None where walks never exit early.
        answer: what the model says where it stops, `answer_confidence` how surely.
        prediction: what it says at full depth; the class whose belief `features` explain.
        abstained: whether it would rather not say, `max_vacuity` being the limit.
        density: closeness to the training data, for models with a density factor.
        notes: what a reader must know before believing any of it.
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
    answer_confidence: float
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

    def to_json(self) -> dict[str, Any]:
        """Plain values; the graph stays out."""
        plain = asdict(self)
        del plain["graph"]
        if self.eta is not None and math.isinf(self.eta):
            plain["eta"] = "always"
        return plain

    def text(self) -> str:
        """The walk as a person reads it."""
        return "\n".join(_lines(self))


def explain(home: Home, what: str, sample: int, tracking_uri: str | None = None) -> Explanation:
    """Explain what a trial's model says of one sample of its test split.

    Args:
        home: the store with the trial's result.
        what: a trial's key, the beginning of one, or the id of a trial's run in MLflow.
        sample: number of the sample in the test split, from 0.
        tracking_uri: MLflow's address for run ids; the store's own unless told.
    """
    store = ResultStore(home.trials)
    key = find_trial(home, what, tracking_uri)
    result = store.load(key)
    trial = _trial_of(result)
    domain = find_domain(trial.domain)
    if trial.kind not in domain.models or domain.models[trial.kind].family != "nbsr":
        raise InputError(_not_nbsr(trial, store))
    splits = domain.load(from_plain(domain.data, trial.data), trial.seed)
    if isinstance(sample, bool) or not 0 <= sample < len(splits.test):
        raise InputError(f"sample must be from 0 to {len(splits.test) - 1}, the test split's rows; got {sample!r}")
    learner = _rebuild(trial, domain, splits, store)
    return _explain(trial, result, learner, splits, sample, _doubts(trial, key, domain, splits))


def find_trial(home: Home, what: str, tracking_uri: str | None = None) -> str:
    """The key of the finished trial that is meant."""
    store = ResultStore(home.trials)
    if RUN_ID.fullmatch(what):
        key = _key_of_run(home, what, tracking_uri)
        if not store.has(key):
            raise InputError(
                f"run {what} is trial {key}, which is not among the finished trials in {home.trials}; "
                "name the home of whoever ran it, or run its study here"
            )
        return key
    matches = [key for key in _keys(store) if what and key.startswith(what)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{what!r} is the beginning of {len(matches)} trials: {_listed(store, matches)}")
    known = _listed(store, list(_keys(store))) or "none yet; `nbsr run STUDY` makes some"
    raise InputError(f"no trial {what!r} in {home.trials}; give a trial's key or MLflow run id. Trials: {known}")


def _keys(store: ResultStore) -> Iterator[str]:
    if store.root.is_dir():
        yield from sorted(path.name for path in store.root.iterdir() if store.has(path.name) and path.name[0] != ".")


def _listed(store: ResultStore, keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MOST_LISTED} more" if len(keys) > MOST_LISTED else ""
    return ", ".join(f"{key} ({_trial_of(store.load(key)).name})" for key in keys[:MOST_LISTED]) + more


def _trial_of(result: TrialResult) -> Trial:
    try:
        return Trial(**result.trial)
    except TypeError:
        raise InputError(f"trial {result.key} was stored without what rebuilds its model; run its study again") from None


def _key_of_run(home: Home, run_id: str, tracking_uri: str | None) -> str:
    uri = tracking_uri or home.tracking_uri
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise InputError(f"no run {run_id}: there is no tracking store at {masked(uri)}")
    tracking = TrackingStore(uri)
    try:
        run = tracking.call("get_run", run_id)
    except TrackingError as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise InputError(f"no run {run_id} in {tracking.public_uri}") from None
    key = run.data.tags.get("nbsr.trial_key")
    if key is not None:
        return str(key)
    children = tracking.call(
        "search_runs", [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'", max_results=MOST_LISTED + 1
    )
    trials = [f"{child.info.run_id} ({child.info.run_name})" for child in children]
    if not trials:
        raise InputError(f"run {run_id} ({run.info.run_name}) is not a trial's: it has no tag nbsr.trial_key")
    more = " and more" if len(trials) > MOST_LISTED else ""
    raise InputError(
        f"run {run_id} ({run.info.run_name}) is a whole study; name one of its trials: "
        f"{', '.join(trials[:MOST_LISTED])}{more}"
    )


def _not_nbsr(trial: Trial, store: ResultStore) -> str:
    others = [_trial_of(store.load(key)) for key in _keys(store)]
    walks = [f"{other.key} ({other.name})" for other in others if other.family == "nbsr" and other.study == trial.study]
    message = f"only NBSR models walk and can be explained by it; {trial.name!r} of study {trial.study!r} is a"
    message += f" {trial.family} of kind {trial.kind!r}"
    return f"{message}. NBSR trials of that study: {', '.join(walks[:MOST_LISTED])}" if walks else message


def _rebuild(trial: Trial, domain: Domain, splits: Splits, store: ResultStore) -> NbsrLearner:
    kind = domain.models[trial.kind]
    signature = Signature(splits.class_names, splits.feature_names)
    learner = kind.build(from_plain(kind.options, trial.options), signature)
    if not isinstance(learner, NbsrLearner):
        raise InputError(f"{trial.name!r} is an NBSR model of another make ({type(learner).__name__}): no walk to explain")
    try:
        learner.load_state(store.load_state(trial.key if store.has(trial.key) else ""))
    except (RuntimeError, OSError) as error:
        raise InputError(f"trial {trial.key}: its weights do not fit the model any more ({error})") from None
    return learner

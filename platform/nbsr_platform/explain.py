"""Why did the model say that? One test sample's walk, told from a stored trial: routes, evidence, belief, features.

Nothing is kept for it but the weights: the model is built anew from the trial's options, the data is loaded again from
its options and seed, and the sample walks once more. Where code or data are no longer those of the trial, it is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from nbsr_core import attribute, dirichlet
from nbsr_core.attribution import Feature, feature_namer, strongest_features
from nbsr_core.audit import AuditStep
from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Answer, Domain, Question, Signature
from nbsr_core.errors import InputError
from nbsr_core.learners import BoostedTrees, Learner, NbsrLearner
from nbsr_platform.credentials import masked
from nbsr_platform.explanation import Amount, Explanation, Population, Visit
from nbsr_platform.options import from_plain
from nbsr_platform.paths import Home
from nbsr_platform.results import TrialResult
from nbsr_platform.sqlite_address import sqlite_file
from nbsr_platform.store import ResultStore
from nbsr_platform.stored_trial import checked_key, domain_of, trial_of
from nbsr_platform.tracking_names import PARETO
from nbsr_platform.tracking_store import TrackingError, TrackingStore
from nbsr_platform.trial import Trial, code_version

TOP_CLASSES, TOP_FEATURES, TOP_FEATURES_OF_EXPERT = 4, 10, 5
RUN_ID = re.compile(r"[0-9a-f]{32}")
MOST_LISTED = 8


def explain(
    home: Home, what: str, question: Question | int, tracking_uri: str | None = None, code: Path | None = None
) -> Explanation | Answer:
    """Explain what a trial's model says: the walk of one test sample, or whatever its domain tells.

    Args:
        home: the store with the trial's result.
        what: a trial's key, the beginning of one, or the id of a trial's run in MLflow.
        question: what to explain; a number is that of a sample in the test split, from 0.
        tracking_uri: MLflow's address for run ids; the store's own unless told.
        code: folder with the module of the trial's domain, where that is not installed.
    """
    store = ResultStore(home.trials)
    key = find_trial(home, what, tracking_uri)
    result = store.load(key)
    trial, domain = trial_of(result, code), domain_of(result, code)
    if trial.kind not in domain.models:
        raise InputError(_no_walk(trial, store))
    data: Any = from_plain(domain.data, trial.data)
    splits = domain.load(data, trial.seed)
    question = question if isinstance(question, Question) else Question(sample=question)
    question = replace(question, eta=_eta(result), max_vacuity=trial.evaluation.get("max_vacuity"))
    learner = _rebuild(trial, key, domain, splits, store)
    notes = []
    if domain.fingerprint(data) != trial.data_fingerprint:
        notes.append("the data has changed since this trial: the sample may not be the one that it was tested on")
    elif trial.code != code_version(trial.domain, trial.beside):
        notes.append("the code has changed since this trial: what it said then may have been something else")
    answer = domain.explain(learner, splits, question)
    if answer is not None:
        text = "".join(f"\nnote: {note}" for note in notes)
        return replace(answer, text=answer.text + text, data={**answer.data, "notes": notes})
    if not isinstance(learner, NbsrLearner):
        raise InputError(_no_walk(trial, store))
    for name in ("prompt", "episode"):
        if getattr(question, name) is not None:
            raise InputError(f"domain {domain.name!r} has no {name} to explain; give a sample of its test split")
    sample = 0 if question.sample is None else question.sample
    if isinstance(sample, bool) or not isinstance(sample, int) or not 0 <= sample < len(splits.test):
        raise InputError(f"sample must be from 0 to {len(splits.test) - 1}, the rows of the test split; got {sample!r}")
    explained = _explain(key, trial, result, learner, splits, sample, notes)
    population = _population(trial, domain, splits, store)
    return replace(explained, population=population, portrait=domain.portrait(data, sample))


def picture(explained: Explanation | Answer, kind: str) -> bytes:
    """The explanation drawn, as the content of a file of the asked kind (`svg` or `gif`)."""
    if isinstance(explained, Explanation):
        from nbsr_platform.walk_svg import draw_walk

        drawn: str | bytes | None = draw_walk(explained) if kind == "svg" else None
    else:
        drawn = explained.svg if kind == "svg" else explained.gif
    if drawn is None:
        raise InputError(f"there is no {kind} of this explanation")
    return drawn.encode() if isinstance(drawn, str) else drawn


def find_trial(home: Home, what: str, tracking_uri: str | None = None) -> str:
    """The key of the finished trial that is meant."""
    store = ResultStore(home.trials)
    if RUN_ID.fullmatch(what):
        _, key = key_of_run(home, what, tracking_uri)
        if not store.folder(key).is_dir():
            raise InputError(
                f"run {what} is trial {key}, which is not among the finished trials in {home.trials}; "
                "name the home of whoever ran it, or run its study here"
            )
        return key
    keys = store.keys()
    matches = [key for key in keys if what and key.startswith(what)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{what!r} is the beginning of {len(matches)} trials: {_listed(store, matches)}")
    known = _listed(store, keys) if keys else "none yet; `nbsr run STUDY` makes some"
    raise InputError(f"no trial {what!r} in {home.trials}; give a trial's key or MLflow run id. Trials: {known}")


def _named(store: ResultStore, keys: Iterable[str]) -> Iterator[tuple[str, Trial]]:
    """Trials to list in a message; what cannot be read is left out of it."""
    for key in keys:
        with suppress(InputError):
            yield key, trial_of(store.load(key))


def _listed(store: ResultStore, keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MOST_LISTED} more" if len(keys) > MOST_LISTED else ""
    return ", ".join(f"{key} ({trial.study}: {trial.name})" for key, trial in _named(store, keys[:MOST_LISTED])) + more


def stored_run(home: Home, run_id: str, tracking_uri: str | None) -> tuple[TrackingStore, Any]:
    """A run in MLflow by its id, with the store that it is in; never makes a store."""
    uri = tracking_uri or home.tracking_uri
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise InputError(f"no run {run_id}: there is no tracking store {masked(uri)}")
    tracking = TrackingStore(uri)
    try:
        return tracking, tracking.call("get_run", run_id)
    except TrackingError as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise InputError(f"no run {run_id} in {tracking.public_uri}") from None


def key_of_run(home: Home, run_id: str, tracking_uri: str | None) -> tuple[TrackingStore, str]:
    """The key of the trial that a run in MLflow is of, and the store that it is in."""
    tracking, run = stored_run(home, run_id, tracking_uri)
    key = run.data.tags.get("nbsr.trial_key")
    if key is not None:
        return tracking, checked_key(key, f"run {run_id}")
    below, members = f"tags.`mlflow.parentRunId` = '{run_id}'", f"tags.`{PARETO}` = 'true'"
    for condition, which in ((f"{below} and {members}", "members of its Pareto set"), (below, "trials")):
        found = tracking.call("search_runs", [run.info.experiment_id], condition, max_results=MOST_LISTED + 1)
        if found:
            named = ", ".join(f"{child.info.run_id} ({child.info.run_name})" for child in found[:MOST_LISTED])
            more = " and more" if len(found) > MOST_LISTED else ""
            raise InputError(
                f"run {run_id} ({run.info.run_name}) is a whole study; name one of the {which}: {named}{more}"
            )
    raise InputError(f"run {run_id} ({run.info.run_name}) is not a trial's: it has no tag nbsr.trial_key")


def _no_walk(trial: Trial, store: ResultStore) -> str:
    said = (
        f"only NBSR models walk and can be explained by their walk; {trial.name!r} of study {trial.study!r} is a "
        f"{trial.family} of kind {trial.kind!r}"
    )
    others = [(key, other) for key, other in _named(store, store.keys()) if other.study == trial.study]
    walks = [f"{key} ({other.name})" for key, other in others if other.family == "nbsr"]
    return f"{said}. NBSR trials of that study: {', '.join(walks[:MOST_LISTED])}" if walks else said


def _rebuild(trial: Trial, key: str, domain: Domain, splits: Splits, store: ResultStore) -> Learner:
    kind = domain.models[trial.kind]
    signature = Signature(splits.class_names, splits.feature_names)
    learner = kind.build(from_plain(kind.options, trial.options), signature)
    state = store.load_state(key)
    if state is None:
        raise InputError(f"trial {key} was stored without its weights; run its study again")
    try:
        learner.load_state(state)
    except RuntimeError as error:
        raise InputError(f"the weights of trial {key} do not fit the model as it is built now: {error}") from None
    return learner


def _population(trial: Trial, domain: Domain, splits: Splits, store: ResultStore) -> Population | None:
    """What boosted trees of the same study, on the same data, look at over all samples; None where there are none."""

    def same(other: Trial) -> bool:
        shared = ("study", "domain", "data_fingerprint", "seed")
        return all(getattr(other, name) == getattr(trial, name) for name in shared)

    for key, other in _named(store, store.keys()):
        if not same(other) or other.family != "baseline" or other.kind not in domain.models:
            continue
        learner = _rebuild(other, key, domain, splits, store)
        if isinstance(learner, BoostedTrees):
            name, shares = feature_namer(splits), learner.importance(splits.test.x[0].numel())
            order = [index for index in shares.argsort(descending=True, stable=True).tolist() if shares[index]]
            return Population(key, other.name, tuple(Amount(name(index), float(shares[index])) for index in order))
    return None


def _explain(
    key: str,
    trial: Trial,
    result: TrialResult,
    learner: NbsrLearner,
    splits: Splits,
    sample: int,
    notes: list[str],
) -> Explanation:
    x = splits.test.x[sample : sample + 1]
    trace = learner.trace(x)
    trail = trace.audit(0)
    eta, max_vacuity = _eta(result), trial.evaluation.get("max_vacuity")
    stopped = trace.exit(eta, max_vacuity)
    total: tuple[Feature, ...] = ()
    by_expert: list[tuple[Feature, ...]] = [()] * len(trail.steps)
    if x.is_floating_point():
        attribution = attribute(learner.model, x)
        total = strongest_features(attribution.total[0], x[0], splits, TOP_FEATURES)
        parts = attribution.by_expert[: len(trail.steps), 0]
        by_expert = [strongest_features(part, x[0], splits, TOP_FEATURES_OF_EXPERT) for part in parts]
        silent = [
            step.node
            for step, features in zip(trail.steps, by_expert, strict=True)
            if not features and step.evidence[attribution.label[0]] > 0
        ]
        if silent:
            notes.append(
                f"the evidence of {', '.join(silent)} is at its limit, where small changes of the input change "
                "nothing: its share is missing among the features"
            )
    else:
        notes.append("the input is not made of numbers that could be varied: no attribution to features")
    classes, depth = splits.class_names, int(stopped.depth[0])
    return Explanation(
        trial=key,
        name=trial.name,
        study=trial.study,
        source=splits.source,
        synthetic=splits.synthetic,
        sample=sample,
        test_samples=len(splits.test),
        true_class=classes[int(splits.test.y[sample])],
        answer=classes[int(stopped.label[0])],
        confidence=float(stopped.probs[0].max()),
        prediction=classes[trail.steps[-1].prediction],
        eta=eta,
        exit_depth=depth,
        max_vacuity=max_vacuity,
        abstained=bool(stopped.abstained[0]),
        density=trail.density,
        prior_entropy=float(dirichlet.entropy(trail.prior)),
        num_classes=len(classes),
        visits=tuple(
            _visit(step, features, classes, step.depth <= depth)
            for step, features in zip(trail.steps, by_expert, strict=True)
        ),
        features=total,
        notes=tuple(notes),
        graph=learner.model.graph,
    )


def _eta(result: TrialResult) -> float | None:
    """The trial's threshold. JSON has no infinities: without a number, either nobody exited early or everybody did."""
    eta: float | None = result.metrics.get("fast/eta")
    if eta is None and result.metrics.get("fast/exited"):
        return math.inf
    return eta


def _visit(step: AuditStep, features: tuple[Feature, ...], classes: Sequence[str], consulted: bool) -> Visit:
    def strongest(values: Tensor) -> tuple[Amount, ...]:
        top = values.topk(min(TOP_CLASSES, len(values)))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return tuple(Amount(classes[index], value) for index, value in pairs)

    return Visit(
        depth=step.depth,
        node=step.node,
        route_probability=step.route_probability,
        alternatives=step.alternatives,
        evidence=strongest(step.evidence),
        belief=strongest(step.alpha / step.alpha.sum()),
        belief_shift=step.belief_shift,
        entropy=step.entropy,
        vacuity=step.vacuity,
        consulted=consulted,
        features=features,
    )

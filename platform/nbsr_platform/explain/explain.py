"""Why did the model say that? One test sample's walk, told from a stored trial: routes, evidence, belief, features.

Nothing is kept for it but the weights: the model is built anew from the trial's options, the data is loaded again from
its options and seed, and the sample walks once more. Where code or data are no longer those of the trial, it is said.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nbsr_core import attribute
from nbsr_core.belief import dirichlet
from nbsr_core.domains.domain import Answer, Domain, Question, Signature
from nbsr_core.errors import InputError
from nbsr_core.evaluation.abstention import MAX_DOUBT
from nbsr_core.evaluation.after_training import temperatures_in
from nbsr_core.evaluation.attribution import shares_by_input, strongest_features, varied
from nbsr_core.evaluation.evaluation import exit_threshold
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.references.boosted_trees import BoostedTrees
from nbsr_core.learning.splits import Splits
from nbsr_core.metrics import names
from nbsr_core.trace.visit import Feature
from nbsr_platform.explain.explanation import Explanation, Population
from nbsr_platform.study.options import from_plain
from nbsr_platform.tracking.lookup import MOST_LISTED, find_trial, named_trials
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import training_code
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.stored_trial import domain_of, trial_of
from nbsr_platform.trials.trial import Trial

TOP_CLASSES, TOP_FEATURES, TOP_FEATURES_OF_EXPERT = 4, 10, 5


def explain(
    home: Home, what: str, question: Question | int, tracking_uri: str | None = None, code: Path | None = None
) -> Explanation | Answer:
    """Explain what a trial's model says: the walk of one test sample, or whatever its domain tells.

    Args:
        home: the store with the trial's result.
        what: a trial's key, the beginning of one, or the id of a trial's run in MLflow.
        question: what to explain; a number is that of a sample in the test split, from 0.
        tracking_uri: MLflow's address for run ids; the store's own by default.
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
    limit = result.metrics.get(names.test(MAX_DOUBT), result.max_vacuity(trial.evaluation))
    question = replace(question, eta=exit_threshold(result.metrics), max_vacuity=limit)
    learner = rebuild(trial, result, domain, splits, store)
    if question.budget is not None and not domain.service(learner, Signature.of(splits)).takes_budget:
        raise InputError(f"budget: only models that buy panels have one; {trial.name!r} is of kind {trial.kind!r}")
    notes = []
    if domain.fingerprint(data) != trial.data_fingerprint:
        notes.append("the data has changed since this trial: the sample may not be the one that it was tested on")
    elif trial.code != training_code(trial.domain, trial.beside):
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
    portrait = domain.portrait(data, trial.seed, sample)
    if portrait is not None and explained.inputs == "inputs":
        explained = replace(explained, inputs="features that a frozen backbone made of the picture")
    return replace(explained, population=population, portrait=portrait)


def picture(explained: Explanation | Answer, kind: str) -> bytes:
    """The explanation drawn, as the content of a file of the asked kind (`svg` or `gif`)."""
    if isinstance(explained, Explanation):
        from nbsr_platform.explain.walk_svg import draw_walk

        drawn: str | bytes | None = draw_walk(explained) if kind == "svg" else None
    else:
        drawn = explained.svg if kind == "svg" else explained.gif
    if drawn is None:
        raise InputError(f"there is no {kind} of this explanation")
    return drawn.encode() if isinstance(drawn, str) else drawn


def _no_walk(trial: Trial, store: ResultStore) -> str:
    said = (
        f"only NBSR models walk and can be explained by their walk; {trial.name!r} of study {trial.study!r} is a "
        f"{trial.family} of kind {trial.kind!r}"
    )
    others = [(key, other) for key, other in named_trials(store, store.keys()) if other.study == trial.study]
    walks = [f"{key} ({other.name})" for key, other in others if other.family == "nbsr"]
    return f"{said}. NBSR trials of that study: {', '.join(walks[:MOST_LISTED])}" if walks else said


def rebuild(trial: Trial, result: TrialResult, domain: Domain, splits: Splits, store: ResultStore) -> Learner:
    """The model as it was judged: what was learned, and what was fitted after that."""
    kind = domain.models[trial.kind]
    signature = Signature.of(splits)
    learner = kind.build(from_plain(kind.options, trial.options), signature)
    key, state = result.key, store.load_state(result.key)
    if state is None:
        raise InputError(f"trial {key} was stored without its weights; run its study again")
    try:
        learner.load_state(state)
    except RuntimeError as error:
        raise InputError(f"the weights of trial {key} do not fit the model as it is built now: {error}") from None
    learner.use_temperatures(temperatures_in(result.metrics))
    return learner


def _population(trial: Trial, domain: Domain, splits: Splits, store: ResultStore) -> Population | None:
    """What boosted trees of the same study, on the same data, look at over all samples; None where there are none."""

    def same(other: Trial) -> bool:
        shared = ("study", "domain", "data_fingerprint", "seed")
        return all(getattr(other, name) == getattr(trial, name) for name in shared)

    for key, other in named_trials(store, store.keys()):
        if not same(other) or other.family != "baseline" or other.kind not in domain.models:
            continue
        learner = rebuild(other, store.load(key), domain, splits, store)
        if isinstance(learner, BoostedTrees):
            shares = learner.importance(splits.test.x[0].numel())
            return Population(key, other.name, tuple(shares_by_input(shares, splits)))
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
    eta, max_vacuity = exit_threshold(result.metrics), result.max_vacuity(trial.evaluation)
    stopped = trace.exit(eta, max_vacuity)
    total: tuple[Feature, ...] = ()
    by_expert: list[tuple[Feature, ...]] = [()] * len(trail.steps)
    numbers = varied(x)
    if numbers is not None:
        attribution = attribute(learner.model, numbers)
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
        prior_weight=float(trail.prior.sum()),
        num_classes=len(classes),
        visits=tuple(
            replace(step.visit(classes, TOP_CLASSES), consulted=step.depth <= depth, features=features)
            for step, features in zip(trail.steps, by_expert, strict=True)
        ),
        features=total,
        inputs=None if numbers is None else "pixels" if x.dtype == torch.uint8 else "inputs",
        notes=tuple(notes),
        graph=learner.model.graph,
    )

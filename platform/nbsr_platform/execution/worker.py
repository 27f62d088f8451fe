"""What a worker does with a trial: load, build, train, evaluate, and report: epochs now and then, at last the result.

What was learned before, for a trial that differs only in how it is judged, is not trained again: it is loaded and
evaluated. It is all the same on a worker of Ray's (`ray_worker`) and in the driver's own process (`local`).
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from nbsr_core.domains.domain import Domain, Signature, find_domain
from nbsr_core.learning import EpochRecord, TrainingConfig, seed_everything
from nbsr_core.learning.batches import GLOBAL_GENERATOR
from nbsr_core.learning.learners import Execution, Learner, TorchLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.options.specs import EvaluationOptions
from nbsr_platform.study.options import from_plain
from nbsr_platform.trials.checkpoints import Checkpoints, Events, run_alone
from nbsr_platform.trials.environment import environment
from nbsr_platform.trials.keys import in_order, judging_code, named_files, training_code
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import StaleError, Trial
from nbsr_platform.trials.weights import Learned

# A worker reports at most this often: reports cost the driver time, and nobody reads faster.
REPORT_SECONDS = 0.5
# Under which name the last report holds the result.
RESULT = "trial_result"
AGAIN = "nothing was kept of this trial; the same command goes on with what is there then"
# How Ray calls the folder into which it unpacks a job's files.
JOB_FOLDER = "_ray_pkg_"


Options = TypeVar("Options")


class TrialWork:
    """One trial under way in this process, a few epochs a step.

    Args:
        trial: what to run.
        device: where.
        threads: that its arithmetic may use.
        progress: its epochs, at last its result. Nothing is loaded before the first, so that errors are the trial's.
        workers: processes that train it together.
    """

    def __init__(
        self, trial: Trial, device: str, threads: int, progress: Iterator[EpochRecord | TrialResult], workers: int = 1
    ) -> None:
        self.trial, self.device, self.workers, self.progress = trial, device, workers, progress
        torch.set_num_threads(max(1, threads))
        self.began = time.perf_counter()
        self.epochs: list[dict[str, float]] = []
        self.reported = 0

    @staticmethod
    def alone(
        trial: Trial,
        device: str,
        threads: int,
        kept: Checkpoints,
        find_learned: Callable[[], Learned | None] = lambda: None,
    ) -> TrialWork:
        """A trial on one worker.

        Args:
            trial: what to run.
            device: where.
            threads: that its arithmetic may use.
            kept: its checkpoints; training goes on from the newest if there is one.
            find_learned: gives what its model learned before, which is only judged then; None has to be trained.
        """

        def judge_or_train() -> Events:
            learned = find_learned()
            if learned is None:
                yield from run_alone(partial(run_trial, trial, device), device, kept)
            else:
                yield from judge_again(trial, device, learned)

        return TrialWork(trial, device, threads, judge_or_train())

    def step(self) -> dict[str, Any]:
        """Go on for a while. An error is a result like another: the worker stays warm for the next trial."""
        with GLOBAL_GENERATOR:
            return self._go_on()

    def _go_on(self) -> dict[str, Any]:
        until = time.perf_counter() + REPORT_SECONDS
        try:
            for event in self.progress:
                if isinstance(event, TrialResult):
                    if not event.was_judged_again:
                        event.epochs = self.epochs
                    return self.finished(event)
                self.epochs.append({"epoch": float(event.epoch), **event.flat(), "seconds": event.seconds})
                if time.perf_counter() > until:
                    break
        except StaleError as error:
            return self.finished(TrialResult(self.trial.key, "stale", 0.0, self.epochs, error=str(error)))
        except Exception as error:
            made_in = environment(torch.get_num_threads(), self.workers, self.device)
            return self.finished(_failed(self.trial, error, made_in, self.epochs))
        return self.report(done=False)

    def stop(self) -> None:
        """End it early, with what it has open."""
        if isinstance(self.progress, Generator):
            self.progress.close()

    def finished(self, result: TrialResult) -> dict[str, Any]:
        """The last report, with the result in it."""
        result.seconds += time.perf_counter() - self.began
        return {**self.report(done=True), RESULT: result}

    def report(self, *, done: bool) -> dict[str, Any]:
        """The epochs since the last report."""
        news, self.reported = self.epochs[self.reported :], len(self.epochs)
        return {"epochs": news, "epoch": len(self.epochs), "done": done}


def run_trial(trial: Trial, device: str, execution: Execution | None = None) -> Iterator[EpochRecord | TrialResult]:
    """Train and judge a model: a record for each epoch, at last the result. Deterministic given the trial."""
    execution = execution or Execution(device=device)
    made_in = environment(torch.get_num_threads(), execution.shard[1], device)
    domain, splits, learner = _untrained(trial, made_in)
    training = from_plain(TrainingConfig, trial.training)
    yield from learner.train(splits, training, trial.seed, execution)
    if execution.shard[0] > 0:
        return  # one of a team judges for all
    try:
        result = _judged(trial, domain, splits, learner, made_in)
    except Exception as error:  # what was learned is kept: when the mistake is mended, only judging is left to do
        result = _failed(trial, error, made_in)
        result.weights = trial.weights_key
    learner.use_temperatures(())  # what was fitted after training stands in the result
    result.state = learner.state()
    yield result


def judge_again(trial: Trial, device: str, learned: Learned, workers: int = 1) -> Iterator[TrialResult]:
    """Judge a model that was trained before: the result is what training it now would give, epochs included."""
    made_in = environment(torch.get_num_threads(), workers, device)
    domain, splits, learner = _untrained(trial, made_in)
    learner.load_state(learned.state)
    if isinstance(learner, TorchLearner):
        learner.module.to(device)
    result = _judged(trial, domain, splits, learner, made_in)
    result.seconds, result.epochs, result.trained_in = learned.seconds, learned.epochs, learned.environment
    yield result


def _untrained(trial: Trial, made_in: Mapping[str, str]) -> tuple[Domain, Splits, Learner]:
    """The trial's domain, data and model, which must be what its key says."""
    domain = find_domain(trial.domain, beside_here(trial.beside))
    check_current(trial, domain, made_in)
    splits = load_splits(trial)
    kind = domain.models[trial.kind]
    seed_everything(trial.seed)
    signature = Signature.of(splits)
    return domain, splits, kind.build(options_here(kind.options, trial.options), signature)


def _judged(trial: Trial, domain: Domain, splits: Splits, learner: Learner, made_in: dict[str, str]) -> TrialResult:
    """The result of a trained model, the same whenever it was trained: what is random in it follows from the seed."""
    seed_everything(trial.seed)
    evaluation = domain.judge(learner, splits, from_plain(EvaluationOptions, trial.evaluation))
    return TrialResult(
        key=trial.key,
        status="finished",
        seconds=0.0,
        metrics=evaluation.metrics,
        tables=evaluation.tables,
        audits=evaluation.audits,
        warnings=evaluation.warnings,
        data={
            "source": splits.source,
            "synthetic": splits.synthetic,
            "fingerprint": trial.data_fingerprint,
            "class_names": list(splits.class_names),
            "feature_names": list(splits.feature_names),
            "structure": dict(splits.structure),
        },
        environment=made_in,
        trial=asdict(trial),
        weights=trial.weights_key,
    )


def _failed(
    trial: Trial, error: Exception, made_in: dict[str, str], epochs: list[dict[str, float]] | None = None
) -> TrialResult:
    text = "".join(traceback.format_exception(error))
    return TrialResult(trial.key, "failed", 0.0, epochs or [], error=text, environment=made_in)


def beside_here(beside: str | None) -> str | None:
    """The folder of the study file as this node sees it.

    A job's files lie in a folder of their own on every node, under different roots; the folder's name, a hash of what
    is in it, is the same on all of them.
    """
    here = Path.cwd()
    if beside is None or not here.name.startswith(JOB_FOLDER) or here.name not in (parts := Path(beside).parts):
        return beside
    return str(here.joinpath(*parts[parts.index(here.name) + 1 :]))


def options_here(kind: type[Options], plain: Mapping[str, Any]) -> Options:
    """Options as this node sees them: files that came with a job lie in another folder on every node."""

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [moved(item) for item in value]
        return beside_here(value) if isinstance(value, str) and value.startswith("/") else value

    return from_plain(kind, moved(plain))


def check_current(trial: Trial, domain: Domain, made_in: Mapping[str, str]) -> None:
    """Raise where code, files or environment are not those that the trial's key speaks of; see `load_splits` for data.

    Files are looked at before they are read: one that changes in between is found by the next trial.
    """
    here = beside_here(trial.beside)
    if (training_code(trial.domain, here), judging_code(trial.domain, here)) != (trial.code, trial.judging_code):
        raise StaleError(f"{trial.name}: the code has changed since the study began; {AGAIN}")
    kind = domain.models[trial.kind]
    data: Any = options_here(domain.data, trial.data)
    options: Any = options_here(kind.options, trial.options)
    now = {**named_files(data, ("data",)), **named_files(options)}
    changed = sorted(name for name in now.keys() | trial.files.keys() if now.get(name) != trial.files.get(name))
    if changed:
        raise StaleError(f"{trial.name}: the file of {changed[0]} has changed since the study began; {AGAIN}")
    other = [f"{name} {made_in[name]}, not {value}" for name, value in trial.rounding.items() if made_in[name] != value]
    if other:
        raise StaleError(
            f"{trial.name}: resources.same_environment is set, and this worker has {'; '.join(other)}; give all nodes "
            "of the cluster the same, or leave it out"
        )


def load_splits(trial: Trial) -> Splits:
    """The trial's data, which must be what its key says; a warm worker keeps what it loaded last."""
    beside = beside_here(trial.beside)
    try:
        return _load_splits(trial.domain, beside, in_order(trial.data), trial.data_fingerprint, trial.seed)
    except StaleError as error:
        raise StaleError(f"{trial.name}: {error}") from None


@lru_cache(maxsize=4)
def _load_splits(domain: str, beside: str | None, data: str, fingerprint: str, seed: int) -> Splits:
    """Loaded first, then compared: whatever changed before or meanwhile shows in the fingerprint."""
    found = find_domain(domain, beside)
    options: Any = options_here(found.data, json.loads(data))
    splits = found.load(options, seed)
    if not splits.synthetic:
        _fingerprint.cache_clear()  # files may change at any time; what is generated follows from code and options
    if (now := _fingerprint(domain, beside, data)) != fingerprint:
        raise StaleError(
            f"the data has changed since the study began (its fingerprint was {fingerprint} and is {now}); {AGAIN}"
        )
    return splits


@lru_cache(maxsize=4)
def _fingerprint(domain: str, beside: str | None, data: str) -> str:
    found = find_domain(domain, beside)
    options: Any = options_here(found.data, json.loads(data))
    return found.fingerprint(options)

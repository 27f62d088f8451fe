"""What a Ray worker does with a trial: load, build, train, evaluate. Workers stay warm and run one trial after another.

Ray Tune places and restarts workers and passes on what they report: epochs now and then, at last the result itself.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from ray import tune

from nbsr_core.domains.base import Splits
from nbsr_core.domains.domain import Domain, Signature, find_domain
from nbsr_core.evaluation import EvaluationOptions
from nbsr_core.learners import Execution, Learner
from nbsr_core.training import EpochRecord, TrainingConfig, seed_everything
from nbsr_platform.checkpoints import run_alone
from nbsr_platform.environment import environment
from nbsr_platform.options import from_plain
from nbsr_platform.placement import Team
from nbsr_platform.results import TrialResult
from nbsr_platform.trial import StaleError, Trial, canonical, code_version, named_files

# A worker reports at most this often: reports cost the driver time, and nobody reads faster.
REPORT_SECONDS = 0.5
# Under which name the last report holds the result.
RESULT = "trial_result"
AGAIN = "nothing was kept of this trial; the same command goes on with what is there then"
# How Ray calls the folder into which it unpacks a job's files.
JOB_FOLDER = "_ray_pkg_"


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One trial after another in the same process (`reuse_actors`), a few epochs a step."""

    def setup(self, config: dict[str, Any]) -> None:
        self.begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.begin(new_config)
        return True

    def begin(self, config: dict[str, Any]) -> None:
        """Prepare the next trial; nothing is loaded before the first step, so that errors belong to the trial."""
        self.trial: Trial = config["trial"]
        self.team: Team = config["team"]
        self.device: str = config["device"]
        torch.set_num_threads(max(1, int(self.team.cpus_per_worker)))
        self.began = time.perf_counter()
        self.epochs: list[dict[str, float]] = []
        self.reported = 0
        kept = Path(config["storage"]) / self.trial.key
        self.progress: Iterator[EpochRecord | TrialResult]
        if self.team.workers > 1:
            from nbsr_platform.distributed import run_distributed  # Ray Train, which one worker alone does not need

            self.progress = run_distributed(self.trial, self.team, kept, config["collector"])
        else:
            self.progress = run_alone(partial(run_trial, self.trial, self.device), self.device, kept)

    def step(self) -> dict[str, Any]:
        """Go on for a while. An error is a result like another: the worker stays warm for the next trial."""
        until = time.perf_counter() + REPORT_SECONDS
        try:
            for event in self.progress:
                if isinstance(event, TrialResult):
                    event.epochs = self.epochs
                    return self.finished(event)
                self.epochs.append({"epoch": float(event.epoch), **event.flat(), "seconds": event.seconds})
                if time.perf_counter() > until:
                    break
        except StaleError as error:
            return self.finished(TrialResult(self.trial.key, "stale", 0.0, self.epochs, error=str(error)))
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            made_in = environment(torch.get_num_threads(), self.team.workers, self.device)
            return self.finished(
                TrialResult(self.trial.key, "failed", 0.0, self.epochs, error=text, environment=made_in)
            )
        return self.report(done=False)

    def finished(self, result: TrialResult) -> dict[str, Any]:
        """The last report, with the result in it."""
        result.seconds = time.perf_counter() - self.began
        return {**self.report(done=True), RESULT: result}

    def report(self, *, done: bool) -> dict[str, Any]:
        """The epochs since the last report."""
        news, self.reported = self.epochs[self.reported :], len(self.epochs)
        return {"epochs": news, "epoch": len(self.epochs), "done": done}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: trials leave checkpoints themselves (`nbsr_platform.checkpoints`), and only finished ones count."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See `save_checkpoint`."""


def run_trial(trial: Trial, device: str, execution: Execution | None = None) -> Iterator[EpochRecord | TrialResult]:
    """Train and judge a model: a record an epoch, at last the result. Deterministic given the trial."""
    execution = execution or Execution(device=device)
    made_in = environment(torch.get_num_threads(), execution.shard[1], device)
    domain = find_domain(trial.domain, beside_here(trial.beside))
    check_current(trial, domain, made_in)
    splits = load_splits(trial)
    kind = domain.models[trial.kind]
    seed_everything(trial.seed)
    learner: Learner = kind.build(
        from_plain(kind.options, trial.options), Signature(splits.class_names, splits.feature_names)
    )
    training = from_plain(TrainingConfig, trial.training)
    yield from learner.train(splits, training, trial.seed, execution)
    if execution.shard[0] > 0:
        return  # one of a team judges for all
    evaluation = domain.evaluate(learner, splits, from_plain(EvaluationOptions, trial.evaluation))
    yield TrialResult(
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
        },
        environment=made_in,
        trial=asdict(trial),
        state=learner.state(),
    )


def beside_here(beside: str | None) -> str | None:
    """The folder of the study file as this node sees it.

    A job's files lie in a folder of their own on every node, under different roots; the folder's name, a hash of what
    is in it, is the same on all of them.
    """
    here = Path.cwd()
    if beside is None or not here.name.startswith(JOB_FOLDER) or here.name not in (parts := Path(beside).parts):
        return beside
    return str(here.joinpath(*parts[parts.index(here.name) + 1 :]))


def check_current(trial: Trial, domain: Domain, made_in: Mapping[str, str]) -> None:
    """Raise where code, files or environment are not those that the trial's key speaks of; see `load_splits` for data.

    Files are looked at before they are read: one that changes in between is found by the next trial.
    """
    if code_version(trial.domain, beside_here(trial.beside)) != trial.code:
        raise StaleError(f"{trial.name}: the code has changed since the study began; {AGAIN}")
    kind = domain.models[trial.kind]
    data: Any = from_plain(domain.data, trial.data)
    options: Any = from_plain(kind.options, trial.options)
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
        return _load_splits(trial.domain, beside, canonical(trial.data), trial.data_fingerprint, trial.seed)
    except StaleError as error:
        raise StaleError(f"{trial.name}: {error}") from None


@lru_cache(maxsize=4)
def _load_splits(domain: str, beside: str | None, data: str, fingerprint: str, seed: int) -> Splits:
    """Loaded first, then compared: whatever changed before or meanwhile shows in the fingerprint."""
    found = find_domain(domain, beside)
    options: Any = from_plain(found.data, json.loads(data))
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
    options: Any = from_plain(found.data, json.loads(data))
    return found.fingerprint(options)

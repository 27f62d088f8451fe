"""How long a trial takes: from recorded trials that are like it, else from a short probe in this process."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import torch

from nbsr_core.errors import InputError
from nbsr_platform.execution.on_ray.placement import Placement
from nbsr_platform.trials.keys import canonical
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial

# The first epoch of a process is slower than the others, and the second tells whether a model has any.
PROBE_EPOCHS = 2
MOST_READ = 300


@dataclass(frozen=True)
class Timing:
    """How long trials of a kind take.

    Attributes:
        epoch: seconds of one epoch, None where unknown.
        rest: seconds for loading, building and judging.
        one_epoch: whether training is over after one epoch, whatever the settings (boosted trees).
        basis: what this rests on.
    """

    epoch: float | None
    rest: float
    one_epoch: bool
    basis: str

    def of_trial(self, epochs: int) -> float | None:
        return None if self.epoch is None else self.rest + self.epoch * epochs


@dataclass
class Timings:
    """Asks the store first, and then the model itself."""

    store: ResultStore

    def of(self, trial: Trial, where: Placement) -> Timing:
        """The timing of trials like this one, in the place where they are to run."""
        alike = [result for result in self._recorded if _is_alike(result, trial, where)]
        same = [result for result in alike if _setting(result.trial) == _setting(vars(trial))]
        return _from_records(same or alike) if alike else probe(trial, where)

    @cached_property
    def _recorded(self) -> list[TrialResult]:
        """Finished trials, of many the newest; what cannot be read is for those to complain of who need it."""
        files = sorted(self.store.root.glob("[!.]*/result.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        found = []
        for file in files[:MOST_READ]:
            with suppress(InputError):
                found.append(self.store.load(file.parent.name))
        return [result for result in found if result.epochs and result.trial]


def _is_alike(result: TrialResult, trial: Trial, where: Placement) -> bool:
    """The same kind of model on the same data and the same kind of device."""
    on_cpu = result.environment.get("device", "cpu") == "cpu"
    return (
        result.trial["domain"] == trial.domain
        and result.trial["kind"] == trial.kind
        and canonical(result.trial["data"]) == canonical(trial.data)
        and on_cpu == (where.device == "cpu")
    )


def _setting(trial: dict[str, object]) -> str:
    """What else the time of an epoch depends on: the model's size, and the batch's."""
    training = trial["training"]
    assert isinstance(training, dict)
    return canonical([trial["options"], training.get("batch_size")])


def _from_records(results: list[TrialResult]) -> Timing:
    rests, epochs, one_epoch = [], [], True
    for result in results:
        spent = [epoch["seconds"] for epoch in result.epochs]
        epochs.append(median(spent))
        rests.append(max(0.0, result.seconds - sum(spent)))
        one_epoch &= len(spent) == 1 < result.trial["training"]["epochs"]
    number = f"{len(results)} recorded trial{'s' if len(results) > 1 else ''}"
    return Timing(median(epochs), median(rests), one_epoch, number)


def probe(trial: Trial, where: Placement) -> Timing:
    """Train for two epochs and judge, here and now; what goes wrong is told instead of a time.

    Where a training of two epochs makes no sense (it has more rounds of something), the real one is begun and left.
    """
    short = replace(trial, training={**trial.training, "epochs": min(PROBE_EPOCHS, int(trial.training["epochs"]))})
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, int(where.team.cpus_per_worker)))
    try:
        try:
            spent, rest = _try_out(short, where.device)
            how = ""
        except InputError:
            spent, rest = _try_out(trial, where.device)
            how = ", without judging"
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        return Timing(None, 0.0, False, f"nothing: a probe failed ({said[0]})")
    finally:
        torch.set_num_threads(threads)
    one_epoch = len(spent) == 1 < short.training["epochs"]
    return Timing(min(spent), rest, one_epoch, f"a probe of {len(spent)} epoch{'s' if len(spent) > 1 else ''}{how}")


def _try_out(trial: Trial, device: str) -> tuple[list[float], float]:
    """Seconds of its first epochs, and of all the rest if it ends with them."""
    from nbsr_platform.execution.worker import run_trial

    began, spent = time.perf_counter(), []
    for event in run_trial(trial, device):
        if not isinstance(event, TrialResult):
            spent.append(event.seconds)
        if len(spent) == PROBE_EPOCHS < int(trial.training["epochs"]):
            return spent, 0.0
    return spent, time.perf_counter() - began - sum(spent)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them; a guess is not given to the second."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

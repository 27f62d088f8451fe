"""What a home holds: its studies, and their trials with key, state and figures. Read from files, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from nbsr_core.errors import InputError
from nbsr_core.metrics import names
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.study.problems import did_you_mean
from nbsr_platform.trials.home import FINISHED, Home
from nbsr_platform.trials.sealed import DamagedError
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.stored_trial import trial_of

# Figures that people look for, as far as a trial has them; the domain's own choice would take importing it.
FIGURES = ("accuracy", "perplexity", "success", "ece", "nll")
# How a study is called whose name nobody can read any more.
UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class ListedTrial:
    """A trial of which a home holds something.

    Attributes:
        state: `finished`; `damaged` and `failed` run again; `begun` goes on from its checkpoint.
        model: its label in the study; None where that is not known.
        figures: some of those on the test split.
        says: what is wrong with it.
        saved: when, as ISO 8601 in local time.
    """

    key: str
    state: str
    model: str | None = None
    seed: int | None = None
    proposal: int | None = None
    seconds: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    says: str = ""
    saved: str | None = None


@dataclass(frozen=True)
class ListedStudy:
    """A study of which a home holds trials; `report` is its newest one."""

    name: str
    domain: str
    report: str | None
    trials: tuple[ListedTrial, ...]


def listing(home: Home, study: str | None = None) -> list[ListedStudy]:
    """All studies of a home, or the one that is asked for."""
    found: dict[str, list[tuple[str, ListedTrial]]] = {}
    for name, domain, trial in [*_stored(home), *_failed(home), *_begun(home)]:
        found.setdefault(name, []).append((domain, trial))
    if study is not None and study not in found:
        known = ", ".join(sorted(found)) or "none yet; `nbsr run STUDY` makes some"
        hint = did_you_mean(study, found)
        raise InputError(f"no study {study!r} in {home.root}; {hint + ' ' if hint else ''}studies there: {known}")
    return [
        ListedStudy(
            name,
            next((domain for domain, _ in members if domain), ""),
            str(home.report(name)) if home.report(name).exists() else None,
            tuple(sorted((trial for _, trial in members), key=_order)),
        )
        for name, members in sorted(found.items())
        if study in (None, name)
    ]


def _order(trial: ListedTrial) -> tuple[Any, ...]:
    """Proposals by number, models by name, seeds in order; what is not known comes last."""
    number = -1 if trial.proposal is None else trial.proposal
    return (trial.model is None, trial.model or "", number, trial.seed or 0)


def _stored(home: Home) -> Iterator[tuple[str, str, ListedTrial]]:
    store = ResultStore(home.trials)
    for key in sorted(store.keys(), key=lambda key: -_saved_at(store, key)):  # of equals, the newest first
        try:
            result = store.load(key)
            trial = trial_of(result)
        except DamagedError as error:
            yield UNKNOWN, "", ListedTrial(key, "damaged", says=str(error))
            continue
        except InputError as error:
            yield UNKNOWN, "", ListedTrial(key, "finished", says=str(error))
            continue
        named = {name: result.metrics.get(names.test(name)) for name in FIGURES}
        figures = {name: value for name, value in named.items() if value is not None}
        yield (
            trial.study,
            trial.domain,
            ListedTrial(
                key,
                result.status,
                trial.label,
                trial.seed,
                trial.proposal,
                result.seconds,
                figures,
                saved=datetime.fromtimestamp(_saved_at(store, key)).isoformat(timespec="seconds"),
            ),
        )


def _saved_at(store: ResultStore, key: str) -> float:
    return store.folder(key).stat().st_mtime


def _failed(home: Home) -> Iterator[tuple[str, str, ListedTrial]]:
    """Trials whose last words were kept, and that did not succeed since."""
    for log in _files(home.log("*", "*")):
        if not (home.trials / log.stem).is_dir():
            _, *lines = log.read_text(errors="replace").strip().splitlines() or [""]
            yield log.parent.name, "", ListedTrial(log.stem, "failed", says=lines[-1] if lines else "")


def _begun(home: Home) -> Iterator[tuple[str, str, ListedTrial]]:
    """Trials that left a checkpoint: somebody runs them now, or was stopped."""
    for folder in _files(home.checkpoints / "[!.]*" / "[!.]*"):
        if folder.name != FINISHED and not (home.weights / folder.name).is_dir():
            yield UNKNOWN, "", ListedTrial(folder.name, "begun", says="goes on from its checkpoint when its study runs")


def _files(pattern: Path) -> Sequence[Path]:
    anchor = Path(pattern.anchor)
    return sorted(anchor.glob(str(pattern.relative_to(anchor))))


def to_json(studies: Sequence[ListedStudy]) -> list[dict[str, Any]]:
    return [asdict(study) for study in studies]


def render(studies: Sequence[ListedStudy], console: Terminal) -> None:
    """A table for each study."""
    for study in studies:
        states = [trial.state for trial in study.trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        console.say(f" ({study.domain or 'domain not known'}): {counts}", head=study.name, style="bold")
        table = Table(box=None, pad_edge=False)
        shown = [name for name in FIGURES if any(name in trial.figures for trial in study.trials)]
        for name in ("  key", "model", "seed", "state"):
            table.add_column(name)
        for name in shown:
            table.add_column(name, justify="right")
        table.add_column("saved")
        table.add_column("")
        for trial in study.trials:
            number = "" if trial.proposal is None else f" #{trial.proposal}"
            figures = [f"{trial.figures[name]:.4g}" if name in trial.figures else "-" for name in shown]
            when = (trial.saved or "").replace("T", " ")
            seed = "-" if trial.seed is None else str(trial.seed)
            table.add_row(
                f"  {trial.key}", f"{trial.model or '-'}{number}", seed, trial.state, *figures, when, trial.says
            )
        console.print(table)
        if study.report is not None:
            console.say(f"  report  {study.report}")
    if not studies:
        console.say("nothing yet; `nbsr run STUDY` makes some")

"""A dry run: how many trials there would be, how many are done, where they would run and for about how long.

Nothing is started and nothing is written. Times come from recorded trials of the same kind on the same data; where
there are none, a short probe trains the model for two epochs in this process. Each estimate says what it rests on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import optuna
import torch
from rich.table import Table

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.execution.on_ray.placement import Placement, placement
from nbsr_platform.inspect.estimates import Timing, Timings, duration
from nbsr_platform.search.storage import open_storage
from nbsr_platform.study.space import Choice, FloatRange, IntRange, Parameter
from nbsr_platform.study.study import Collection, Search, Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.keys import study_key
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid, make_trial

# Seconds that go by before the first trial works: stated, not measured, since a plan starts nothing.
RAY_START, TEAM_START, NEW_STORE = 15.0, 30.0, 20.0
ENDED = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL)


@dataclass(frozen=True)
class ModelPlan:
    """The trials of one model.

    Attributes:
        total: trials, or proposals of a search.
        done: those that need not be run again.
        epochs: at most so many a trial.
        timing: how long one takes and how we know, None where nothing is to run.
        to_judge: those of the trials to run that were trained before, and only have to be judged again.
    """

    label: str
    kind: str
    total: int
    done: int
    epochs: int
    timing: Timing | None
    to_judge: int = 0

    @property
    def to_run(self) -> int:
        return self.total - self.done

    @property
    def to_train(self) -> int:
        return self.to_run - self.to_judge

    @property
    def seconds_each(self) -> float | None:
        return None if self.timing is None else self.timing.of_trial(self.epochs)


@dataclass(frozen=True)
class SearchPlan:
    """What a search looks for, and where; `space` has the keys with their ranges in words."""

    space: Mapping[str, str]
    objectives: Mapping[str, str]
    sampler: str
    pruner: str
    constraints: Mapping[str, str]
    try_first: int


@dataclass(frozen=True)
class StudyPlan:
    """A study's trials and where they run."""

    name: str
    domain: str
    models: tuple[ModelPlan, ...]
    where: Placement
    machine: Mapping[str, float]
    search: SearchPlan | None = None
    notes: tuple[str, ...] = ()

    @property
    def to_run(self) -> int:
        return sum(model.to_run for model in self.models)

    @property
    def seconds(self) -> float | None:
        """Wall-clock time of the trials; None where that of one of the models is unknown."""
        starting = TEAM_START if self.where.team.workers > 1 else 0
        each: list[tuple[int, float]] = []  # trials, and how long one of them takes
        for model in self.models:
            if model.to_train:
                if model.seconds_each is None:
                    return None
                each.append((model.to_train, model.seconds_each + starting))
            if model.to_judge and model.timing is not None:
                each.append((model.to_judge, model.timing.rest))
        work = sum(count * seconds for count, seconds in each)
        return max([work / self.where.concurrency, *(seconds for _, seconds in each)], default=0.0)


@dataclass(frozen=True)
class Plan:
    """What a run would do; `starting` has the seconds that go by before the trials, by reason."""

    name: str
    studies: tuple[StudyPlan, ...]
    starting: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(model.total for study in self.studies for model in study.models)

    @property
    def to_run(self) -> int:
        return sum(study.to_run for study in self.studies)

    @property
    def to_judge(self) -> int:
        return sum(model.to_judge for study in self.studies for model in study.models)

    @property
    def done(self) -> int:
        return self.total - self.to_run

    def to_json(self) -> dict[str, Any]:
        """The document that `nbsr plan --json` prints."""
        studies = [{**asdict(study), "to_run": study.to_run, "seconds": study.seconds} for study in self.studies]
        for plain, study in zip(studies, self.studies, strict=True):
            for model, planned in zip(plain["models"], study.models, strict=True):
                model |= {"to_run": planned.to_run, "seconds_each": planned.seconds_each}
        return {
            "name": self.name,
            "trials": {"total": self.total, "done": self.done, "to_run": self.to_run, "to_judge": self.to_judge},
            "seconds": self.seconds,
            "starting": dict(self.starting),
            "studies": studies,
        }

    @property
    def seconds(self) -> float | None:
        """The whole run, start-up included; None where some part is unknown."""
        parts = [study.seconds for study in self.studies]
        known = [seconds for seconds in parts if seconds is not None]
        return sum(known) + sum(self.starting.values()) if len(known) == len(parts) else None


def plan(what: Study | Collection, home: Home) -> Plan:
    """Plan a run of a study or a collection with the results in `home`, on this machine or on the Ray that is up."""
    machine = this_machine()
    timings = Timings(ResultStore(home.trials))
    parts = tuple(_plan_study(study, home, machine, timings) for study in what.studies)
    starting: dict[str, float] = {}
    if any(part.to_run for part in parts):
        starting["starting Ray and its workers"] = RAY_START
        if not home.database.exists():
            starting["making the tracking store"] = NEW_STORE
    return Plan(what.name, parts, starting)


def this_machine() -> dict[str, float]:
    """CPUs and GPUs, as Ray counts them."""
    ray = sys.modules.get("ray")  # whoever did not import it has not started one
    if ray is not None and ray.is_initialized():
        found: dict[str, float] = ray.cluster_resources()
        return {name: found.get(name, 0.0) for name in ("CPU", "GPU")}
    return {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}


def _plan_study(study: Study, home: Home, machine: dict[str, float], timings: Timings) -> StudyPlan:
    where, store = placement(study.resources, machine), ResultStore(home.trials)
    fingerprint = data_fingerprint(study)
    if study.search is not None:
        label = study.search.model
        ended = _ended_proposals(home, f"{study.name}-{study_key(study, fingerprint)}")
        first = make_trial(study, label, study.seeds[0], fingerprint)
        to_run = max(0, study.search.trials - ended)
        total = max(study.search.trials, ended)  # a search keeps what it has, also where fewer are asked for now
        models = (_plan_model(study, label, total, [first] if to_run else [], to_run, where, timings),)
        return StudyPlan(
            study.name, study.domain, models, where, machine, _plan_search(study.search), _notes(study, where, machine)
        )
    trials = grid(study, fingerprint)
    planned = []
    for label in study.models:
        mine = [trial for trial in trials if trial.label == label]
        missing = [trial for trial in mine if not store.has(trial.key)]
        to_judge = sum(store.weights.has(trial.weights_key) for trial in missing)
        planned.append(_plan_model(study, label, len(mine), missing, len(missing), where, timings, to_judge))
    notes = _notes(study, where, machine)
    return StudyPlan(study.name, study.domain, tuple(planned), where, machine, notes=notes)


def _plan_model(
    study: Study,
    label: str,
    total: int,
    missing: Sequence[Trial],
    to_run: int,
    where: Placement,
    timings: Timings,
    to_judge: int = 0,
) -> ModelPlan:
    choice = study.models[label]
    timing = timings.of(missing[0], where) if missing else None
    epochs = 1 if timing is not None and timing.one_epoch else choice.training.epochs
    return ModelPlan(label, choice.kind, total, total - to_run, epochs, timing, to_judge)


def _ended_proposals(home: Home, name: str) -> int:
    """Proposals with an outcome in the search's journal; one that was under way when a run ended goes on."""
    if not home.search_journal(name).exists():
        return 0
    try:
        found = optuna.load_study(study_name=name, storage=open_storage(home, name))
    except KeyError:
        return 0
    return len(found.get_trials(deepcopy=False, states=ENDED))


def _plan_search(search: Search) -> SearchPlan:
    space = {parameter.key: _in_words(parameter) for parameter in search.space.parameters}
    if search.space.picks_eta:
        space["eta"] = "picked from the frontier, needs no trial"
    pruner = "none"
    if search.pruner is not None:
        chosen = search.pruner
        pruner = f"{chosen.name} on {chosen.metric} ({chosen.direction}), after {chosen.warmup_epochs} epochs"
    sampler = f"{search.sampler.name}, seed {search.sampler.seed}"
    constraints, first = dict(search.constraints), len(search.try_first)
    return SearchPlan(space, dict(search.objectives), sampler, pruner, constraints, first)


def _in_words(parameter: Parameter) -> str:
    text = ""
    if isinstance(parameter, Choice):
        text = f"one of {', '.join(map(str, parameter.names))}"
    elif isinstance(parameter, IntRange | FloatRange):
        text = f"{parameter.low:g} to {parameter.high:g}"
        if parameter.log:
            text += ", logarithmic"
        elif parameter.step not in (None, 1):
            text += f" in steps of {parameter.step:g}"
    for key, values in parameter.when.items():
        text += f", if {key} is {' or '.join(map(str, values))}"
    return text


def _notes(study: Study, where: Placement, machine: Mapping[str, float]) -> tuple[str, ...]:
    notes = []
    wanted, team = study.resources, where.team
    if team.workers * team.cpus_per_worker > machine["CPU"]:
        notes.append(
            f"a trial asks for {team.workers * team.cpus_per_worker:g} CPUs, but there are {machine['CPU']:g} here: it "
            "would wait for ever; lower resources.workers or resources.cpus_per_worker, or run on a larger cluster"
        )
    if wanted.gpus_per_worker and not machine["GPU"]:
        notes.append("there is no GPU here: trials run on CPUs")
    if wanted.concurrency is not None and wanted.concurrency > where.concurrency:
        notes.append(f"there is room for {where.concurrency} trials at once, not for {wanted.concurrency}")
    if study.search is not None and len(study.seeds) > 1:
        again = study.search.promising * (len(study.seeds) - 1)
        notes.append(f"members of the Pareto set are trained again with further seeds: at most {again} more trials")
    chosen = [study.models[study.search.model]] if study.search is not None else list(study.models.values())
    stopping = any(choice.training.stop_patience is not None for choice in chosen)
    pruning = study.search is not None and study.search.pruner is not None
    if stopping or pruning:
        reason = " and ".join(name for name, holds in (("early stopping", stopping), ("pruning", pruning)) if holds)
        notes.append(f"times are upper bounds: {reason} may cut trials short")
    return tuple(notes)


def render(planned: Plan, console: Terminal) -> None:
    """The plan as a person reads it, with what its times rest on."""
    for study in planned.studies:
        console.say(f"{study.name}: {_where(study)}")
        table = Table(box=None, pad_edge=False)
        table.add_column("  model")
        with_judged = any(model.to_judge for model in study.models)
        for name in ("trials", "done", "to run", *(["only to judge"] if with_judged else []), "epochs", "each"):
            table.add_column(name, justify="right")
        table.add_column("time rests on")
        for model in study.models:
            judged = [model.to_judge] if with_judged else []
            counts = map(str, (model.total, model.done, model.to_run, *judged, model.epochs))
            timing = ("", "") if model.timing is None else (duration(model.seconds_each), model.timing.basis)
            table.add_row(f"  {model.label}", *counts, *timing)
        console.print(table)
        if study.search is not None:
            _render_search(study.search, study.models[0], console)
        for note in study.notes:
            console.say(f"  note: {note}")
        console.print()
    console.say(_total(planned))


def _render_search(search: SearchPlan, model: ModelPlan, console: Terminal) -> None:
    goals = ", ".join(f"{direction} {metric}" for metric, direction in search.objectives.items())
    bounds = "".join(f", {metric} {bound}" for metric, bound in search.constraints.items())
    console.say(f"  search of {model.label}: {model.total} proposals to {goals}{bounds}")
    first = f"; {search.try_first} to try first" if search.try_first else ""
    console.say(f"  sampler {search.sampler}; pruner {search.pruner}{first}")
    longest = max(map(len, search.space))
    for key, words in search.space.items():
        console.say(f"    {key:<{longest}}  {words}")


def _where(study: StudyPlan) -> str:
    team = study.where.team
    what = f"{team.cpus_per_worker:g} CPU{'s' if team.cpus_per_worker != 1 else ''}"
    if team.gpus_per_worker:
        what += f" and {team.gpus_per_worker:g} GPU{'s' if team.gpus_per_worker != 1 else ''}"
    share = f"{team.workers} workers with {what} each" if team.workers > 1 else f"{what} each"
    here = f"{study.machine['CPU']:g} CPUs, {study.machine['GPU']:g} GPUs here"
    at_once = study.where.concurrency
    return f"{at_once} trial{'s' if at_once > 1 else ''} at once, {share} ({here}); takes {duration(study.seconds)}"


def _total(planned: Plan) -> str:
    if not planned.to_run:
        return f"{planned.name}: nothing to run, all {planned.total} trials are done"
    judged = "all" if planned.to_judge == planned.to_run else f"{planned.to_judge}"
    trained = f" ({judged} of them judged again, without training)" if planned.to_judge else ""
    what = f"{planned.to_run} of {planned.total} trials to run{trained}"
    counted = f"{planned.name}: {what}, {duration(planned.seconds)} in all"
    starting = ", ".join(f"about {duration(seconds)} for {reason}" for reason, seconds in planned.starting.items())
    return f"{counted} (with {starting})"

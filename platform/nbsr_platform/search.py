"""A search is a feed whose trials Optuna proposes; Optuna's storage is the one truth of what became of each proposal.

Proposals are numbered and the sampler of each is seeded by its number, so a search that was killed goes on as it would
have gone: proposals that were under way are taken up again with the very parameters they had, finished ones are told
from our store, and none stays RUNNING for ever.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from nbsr_core.errors import InputError
from nbsr_platform.paths import Home
from nbsr_platform.proposals import Proposal, promising
from nbsr_platform.results import TrialResult
from nbsr_platform.search_journal import KEY_ATTRIBUTE
from nbsr_platform.search_options import Search
from nbsr_platform.search_storage import open_storage, patiently
from nbsr_platform.store import ResultStore
from nbsr_platform.study import Study
from nbsr_platform.trial import Trial, make_trial

optuna.logging.set_verbosity(optuna.logging.WARNING)
logging.getLogger("optuna").propagate = False

ERROR_ATTRIBUTE = "nbsr.error"
LONGEST_REASON = 2000  # characters of it: all figures' names fit


def sampler_of(search: Search, number: int) -> optuna.samplers.BaseSampler:
    """The named sampler, seeded by the search's seed and the proposal's number."""
    seed = int(np.random.SeedSequence([search.sampler.seed, number]).generate_state(1)[0])
    name = search.sampler.name
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed)
    if name == "qmc":
        return optuna.samplers.QMCSampler(seed=search.sampler.seed)
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


def pruner_of(search: Search) -> optuna.pruners.BasePruner:
    """The named pruner; pruning looks at one proxy metric, whatever the objectives are."""
    pruner = search.pruner
    if pruner is None or pruner.name == "none":
        return optuna.pruners.NopPruner()
    if pruner.name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, pruner.warmup_epochs))
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=pruner.warmup_epochs)


@dataclass
class SearchFeed:
    """Asks Optuna for proposals until there are as many as the study wants, and tells it what became of them."""

    study: Study
    search: Search
    optuna_study: optuna.Study
    proxy: optuna.Study
    store: ResultStore
    fingerprint: str
    adopted: list[int] = field(default_factory=list)
    # By the proposal's number: a search may well propose the same point, and so the same trial, twice.
    running: dict[int | None, optuna.Trial] = field(default_factory=dict)
    proxy_trials: dict[int | None, optuna.Trial] = field(default_factory=dict)
    reused: list[tuple[Trial, TrialResult]] = field(default_factory=list)

    @staticmethod
    def open(study: Study, key: str, fingerprint: str, home: Home, url: str | None = None) -> SearchFeed:
        """Create or continue the search of a study."""
        search = study.search
        assert search is not None
        name = f"{study.name}-{key}"
        storage = open_storage(home, name, url)
        directions = list(search.objectives.values())
        main = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
        direction = search.pruner.direction if search.pruner is not None else "minimize"
        # Optuna prunes single-objective studies only: a study in memory sees the one proxy metric of all trials.
        proxy = optuna.create_study(direction=direction, pruner=pruner_of(search))
        feed = SearchFeed(study, search, main, proxy, ResultStore(home.trials), fingerprint)
        feed.adopt()
        return feed

    def adopt(self) -> None:
        """Take up what nobody is running: proposals that were under way, and those whose result is not in the store.

        The latter are finished in a database that outlived the machine on which the results were.
        """
        asked = self.optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.COMPLETE))
        self.adopted = [
            trial.number
            for trial in asked
            if trial.number not in self.running
            and (trial.state == TrialState.RUNNING or not self.store.has(str(trial.user_attrs.get(KEY_ATTRIBUTE))))
        ]

    def next(self) -> Trial | None:
        """A proposal to run. One whose result is in the store already is told at once and skipped."""
        return patiently(self._next, before_retry=self.adopt)

    def _next(self) -> Trial | None:
        while True:
            proposal = self._adopt_or_ask()
            if proposal is None:
                return None
            trial = self._trial(proposal)
            self.running[proposal.number] = proposal
            if not self.store.has(trial.key):
                return trial
            result = self.store.load(trial.key)
            self.done(trial, result)
            self.reused.append((trial, result))

    def _adopt_or_ask(self) -> optuna.Trial | None:
        if self.adopted:
            number = self.adopted.pop(0)
            frozen = next(t for t in self.optuna_study.get_trials(deepcopy=False) if t.number == number)
            return optuna.Trial(self.optuna_study, frozen._trial_id)
        asked = self.optuna_study.get_trials(deepcopy=False)
        if len(asked) >= self.search.trials:
            return None
        self.optuna_study.sampler = sampler_of(self.search, len(asked))
        return self.optuna_study.ask()

    def _trial(self, proposal: optuna.Trial) -> Trial:
        self.optuna_study.sampler = sampler_of(self.search, proposal.number)
        assignment = self.search.space.suggest(proposal)
        choice = self.study.models[self.search.model]
        options, training = self.search.space.apply(choice.options, choice.training, assignment)
        trial = make_trial(
            self.study,
            self.search.model,
            self.study.seeds[0],
            self.fingerprint,
            options=options,
            training=training,
            proposal=proposal.number,
        )
        if proposal.user_attrs.get(KEY_ATTRIBUTE) != trial.key and not self._has_ended(proposal):
            proposal.set_user_attr(KEY_ATTRIBUTE, trial.key)
        return trial

    def should_prune(self, trial: Trial, epoch: dict[str, float]) -> bool:
        pruner = self.search.pruner
        if pruner is None or pruner.name == "none":
            return False
        shadow = self.proxy_trials.get(trial.proposal)
        if shadow is None:
            shadow = self.proxy_trials[trial.proposal] = self.proxy.ask()
        if pruner.metric not in epoch:
            raise InputError(
                f"search.pruner.metric: {pruner.metric!r} is not reported; an epoch reports {', '.join(sorted(epoch))}"
            )
        shadow.report(epoch[pruner.metric], int(epoch["epoch"]))
        return shadow.should_prune()

    def done(self, trial: Trial, result: TrialResult) -> TrialResult:
        """Tell Optuna the truth: complete with values, pruned, or failed. Returns what the search counts it as."""
        proposal = self.running[trial.proposal]
        result = self.counted(result)
        patiently(lambda: self._tell(proposal, result))
        del self.running[trial.proposal]
        shadow = self.proxy_trials.pop(trial.proposal, None)
        if shadow is not None:
            if result.status == "finished":
                self.proxy.tell(shadow, list(self.proxy.trials[shadow.number].intermediate_values.values())[-1])
            else:
                self.proxy.tell(shadow, state=TrialState.PRUNED if result.status == "pruned" else TrialState.FAIL)
        return result

    def counted(self, result: TrialResult) -> TrialResult:
        """The result as the search sees it: a trial without a figure that the search is after is a failed proposal.

        Such a figure may be missing for good reasons (there is no `fast/eta` where no exit is worth it), so that the
        trial itself is fine, is kept, and no reason to end the search.
        """
        if result.status != "finished":
            return result
        try:
            objective_values(self.search.objectives, result.metrics)
        except InputError as error:
            return replace(result, status="failed", error=str(error), state=None)
        return result

    def _tell(self, proposal: optuna.Trial, result: TrialResult) -> None:
        """Once, however often it is called: an answer may be lost, or the proposal have been told by another run."""
        if result.status == "finished":
            values = objective_values(self.search.objectives, result.metrics)
            self.optuna_study.tell(proposal, values, skip_if_finished=True)
        elif result.status == "pruned":
            # A multi-objective study has no pruned value; the state says what happened.
            self.optuna_study.tell(proposal, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            if not self._has_ended(proposal):
                proposal.set_user_attr(ERROR_ATTRIBUTE, result.last_words[:LONGEST_REASON])
            self.optuna_study.tell(proposal, state=TrialState.FAIL, skip_if_finished=True)

    def _has_ended(self, proposal: optuna.Trial) -> bool:
        """Whether the storage has its outcome: nothing can be added to it then."""
        return self.optuna_study.get_trials(deepcopy=False)[proposal.number].state.is_finished()

    def ended(self) -> list[tuple[Trial, TrialResult]]:
        """Proposals that were trained before, with their results.

        Among them are those that failed only for want of a figure (see `counted`): no run trains them again.
        """
        known = []
        for proposal in self.optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)):
            key = str(proposal.user_attrs.get(KEY_ATTRIBUTE, ""))
            if key and self.store.has(key):
                result = self.store.load(key)
                if proposal.state == TrialState.FAIL and self.counted(result).status == "finished":
                    continue  # its worker was lost; that somebody else trained the same since does not help it
                # Its domain's module is the one beside the study as it is run now: a job's folder may be gone.
                beside = None if self.study.folder is None else str(self.study.folder)
                names = {
                    "study": self.study.name,
                    "domain": self.study.domain,
                    "label": self.search.model,
                    "proposal": proposal.number,
                }
                known.append((Trial(**{**result.trial, **names, "beside": beside}), result))
        return known

    @property
    def remaining(self) -> int:
        """Proposals that are still to be run, as far as the storage knows."""
        asked = self.optuna_study.get_trials(deepcopy=False)
        return max(0, self.search.trials - len(asked)) + len(self.adopted)

    def proposals(self) -> list[Proposal]:
        """All points that were tried, whatever became of them."""
        return [
            Proposal(
                trial.number,
                trial.state.name,
                dict(trial.params),
                list(trial.values or ()),
                str(trial.user_attrs.get(KEY_ATTRIBUTE, "")),
            )
            for trial in self.optuna_study.get_trials(deepcopy=False)
        ]

    def pareto(self) -> list[int]:
        """Numbers of the proposals that no other one beats in every objective; of equal ones, the first.

        Small data has few different figures: without that, half of a search may be in its Pareto set.
        """
        first: dict[tuple[float, ...], int] = {}
        for trial in sorted(self.optuna_study.best_trials, key=lambda trial: trial.number):
            first.setdefault(tuple(trial.values), trial.number)
        return list(first.values())

    def promising(self) -> list[int]:
        """Numbers of the members of the Pareto set that stand for all of it; sure only when the search is over."""
        numbers = set(self.pareto())
        members = [proposal for proposal in self.proposals() if proposal.number in numbers]
        chosen = promising(members, list(self.search.objectives.values()), self.search.promising)
        return [proposal.number for proposal in chosen]

    def repeats(self, ended: Iterable[Trial]) -> list[Trial]:
        """The promising members with the study's further seeds; proposals have the first one only."""
        trials = {trial.proposal: trial for trial in ended}
        known = [trials[number] for number in self.promising() if number in trials]
        return [replace(trial, seed=seed) for seed in self.study.seeds[1:] for trial in known]


def objective_values(objectives: Mapping[str, Any], metrics: Mapping[str, float | None]) -> list[float]:
    """The objectives' values, in order; one that the evaluation did not give is an error that lists what it gave.

    A figure that is not finite counts as not given: stored results have no such numbers, and Optuna takes no NaN.
    """
    given = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
    for name in objectives:
        if name not in given:
            raise InputError(f"search.objectives: {name!r} is not among the figures: {', '.join(sorted(given))}")
    return [given[name] for name in objectives]

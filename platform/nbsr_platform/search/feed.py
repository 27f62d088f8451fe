"""A search is a feed whose trials Optuna proposes; Optuna's storage is the one truth of what became of each proposal.

Proposals are numbered and the sampler of each is seeded by its number, so a search that was killed goes on as it would
have gone: proposals that were under way are taken up again with the very parameters they had, finished ones are told
from our store, and none stays RUNNING for ever.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.trial import TrialState

from nbsr_core.errors import InputError
from nbsr_platform.base.compat import resumed_trial
from nbsr_platform.search.journal import KEY_ATTRIBUTE
from nbsr_platform.search.record import SearchRecord, figures_of, search_name
from nbsr_platform.search.storage import open_storage, patiently
from nbsr_platform.search.warm_start import taken_over
from nbsr_platform.study.search_options import Search, excess
from nbsr_platform.study.space import Assignment
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, make_trial

ERROR_ATTRIBUTE, POINTS_ATTRIBUTE = "nbsr.error", "nbsr.earlier_points"
LONGEST_REASON = 2000  # characters of it: all figures' names fit


def sampler_of(search: Search, number: int, first: Sequence[Assignment] = ()) -> optuna.samplers.BaseSampler:
    """The named sampler, seeded by the search's seed and the proposal's number; the first ones propose given points.

    CMA-ES is not among them: Optuna keeps its state as a pickle among the proposals, and whoever opens a store would
    run what it holds. A store is data (SECURITY.md).
    """
    seed = int(np.random.SeedSequence([search.sampler.seed, number]).generate_state(1)[0])
    samplers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False),
        "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed),
        "nsga3": lambda: optuna.samplers.NSGAIIISampler(seed=seed),
        "qmc": lambda: optuna.samplers.QMCSampler(seed=search.sampler.seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # tests of ours say when one changes
        sampler = samplers[search.sampler.name]()
        if number >= len(first):
            return sampler
        stored = {parameter.key: parameter.stored for parameter in search.space.parameters}
        fixed = {key: stored[key](value) for key, value in first[number].items()}
        return optuna.samplers.PartialFixedSampler(fixed, sampler)


def pruner_of(search: Search) -> optuna.pruners.BasePruner:
    """The named pruner; pruning looks at one proxy metric, whatever the objectives are."""
    pruner = search.pruner
    if pruner is None or pruner.name == "none":
        return optuna.pruners.NopPruner()
    if pruner.name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, pruner.warmup_epochs))
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=pruner.warmup_epochs)


@dataclass(kw_only=True)
class SearchFeed(SearchRecord):
    """Asks Optuna for proposals until there are as many as the study wants, and tells it what became of them."""

    proxy: optuna.Study
    fingerprint: str
    first_points: list[Assignment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was taken over from earlier searches
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
        name = search_name(study, key)
        storage = open_storage(home, name, url)
        directions = list(search.objectives.values())
        main = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
        direction = search.pruner.direction if search.pruner is not None else "minimize"
        # Optuna prunes single-objective studies only: a study in memory sees the one proxy metric of all trials.
        proxy = optuna.create_study(direction=direction, pruner=pruner_of(search))
        feed = SearchFeed(study, search, main, ResultStore(home.trials), proxy=proxy, fingerprint=fingerprint)
        feed.first_points = list(map(dict, search.try_first)) + feed.earlier_points(home, url)
        feed.adopt()
        return feed

    def earlier_points(self, home: Home, url: str | None) -> list[Assignment]:
        """Points of earlier searches: found once and kept with this one, since those searches may go on."""
        if not self.search.warm_start:
            return []
        kept = self.optuna_study.user_attrs.get(POINTS_ATTRIBUTE)
        if kept is None:
            found = taken_over(self.study, self.search, home, url)
            kept, self.notes = found.points, found.notes
            patiently(lambda: self.optuna_study.set_user_attr(POINTS_ATTRIBUTE, kept))
        return [dict(point) for point in kept]

    def adopt(self) -> None:
        """Take up what nobody is running: see `open_numbers`."""
        self.adopted = [number for number in self.open_numbers() if number not in self.running]

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
            return resumed_trial(self.optuna_study, frozen)
        asked = self.optuna_study.get_trials(deepcopy=False)
        if len(asked) >= self.search.trials:
            return None
        self.optuna_study.sampler = sampler_of(self.search, len(asked), self.first_points)
        return self.optuna_study.ask()

    def _trial(self, proposal: optuna.Trial) -> Trial:
        self.optuna_study.sampler = sampler_of(self.search, proposal.number, self.first_points)
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

    def _tell(self, proposal: optuna.Trial, result: TrialResult) -> None:
        """Once, however often it is called: an answer may be lost, or the proposal have been told by another run."""
        if result.status == "finished":
            values = figures_of("objectives", self.search.objectives, result.metrics)
            self._set_constraints(proposal, result)
            self.optuna_study.tell(proposal, values, skip_if_finished=True)
        elif result.status == "pruned":
            # A multi-objective study has no pruned value; the state says what happened.
            self.optuna_study.tell(proposal, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            if not self._has_ended(proposal):
                proposal.set_user_attr(ERROR_ATTRIBUTE, result.last_words[:LONGEST_REASON])
            self.optuna_study.tell(proposal, state=TrialState.FAIL, skip_if_finished=True)

    def _set_constraints(self, proposal: optuna.Trial, result: TrialResult) -> None:
        """How far each figure lies beyond its bound: said before the end, after which nothing can be added."""
        if self._has_ended(proposal):
            return
        bounds = self.search.constraints
        known = self.optuna_study.get_trials(deepcopy=False)[proposal.number].constraints
        for name, figure in zip(bounds, figures_of("constraints", bounds, result.metrics), strict=True):
            if name not in known:
                proposal.set_constraint(name, excess(bounds[name], figure))

    def _has_ended(self, proposal: optuna.Trial) -> bool:
        """Whether the storage has its outcome: nothing can be added to it then."""
        return self.optuna_study.get_trials(deepcopy=False)[proposal.number].state.is_finished()

    @property
    def remaining(self) -> int:
        """Proposals that this run still has to give out."""
        return max(0, self.search.trials - self.asked) + len(self.adopted)

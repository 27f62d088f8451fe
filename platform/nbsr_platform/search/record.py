"""What a search has proposed and what became of it, as Optuna's storage and the store of results know it: only read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import optuna
from optuna.trial import TrialState

from nbsr_core.errors import InputError
from nbsr_platform.base.plain_json import finite_figures
from nbsr_platform.search.journal import KEY_ATTRIBUTE
from nbsr_platform.search.proposals import Proposal, promising
from nbsr_platform.search.storage import open_for_reading
from nbsr_platform.study.search_options import Search
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial

optuna.logging.set_verbosity(optuna.logging.WARNING)
logging.getLogger("optuna").propagate = False


def search_name(study: Study, key: str) -> str:
    """The name of a search in its storage: that of the study as it was when it ran."""
    return f"{study.name}-{key}"


@dataclass
class SearchRecord:
    """A search that was begun."""

    study: Study
    search: Search
    optuna_study: optuna.Study
    store: ResultStore

    @staticmethod
    def read(study: Study, key: str, home: Home, url: str | None = None) -> SearchRecord | None:
        """What is known of a study's search; None where it was never begun. Nothing is written.

        Args:
            study: with a search.
            key: of the study as it was when it ran.
            home: the store with the results, and with the journal of the search where no URL is given.
            url: of the database that the search is kept in.
        """
        assert study.search is not None
        name = search_name(study, key)
        storage = open_for_reading(home, name, url)
        if storage is None:
            return None
        try:
            known = optuna.load_study(study_name=name, storage=storage)
        except KeyError:
            return None
        return SearchRecord(study, study.search, known, ResultStore(home.trials))

    def counted(self, result: TrialResult) -> TrialResult:
        """The result as the search sees it: a trial without a figure that the search is after is a failed proposal.

        Such a figure may be missing for good reasons (there is no `fast/eta` where no exit is worth it), so that the
        trial itself is fine, is kept, and no reason to end the search.
        """
        if result.status != "finished":
            return result
        try:
            figures_of("objectives", self.search.objectives, result.metrics)
            figures_of("constraints", self.search.constraints, result.metrics)
        except InputError as error:
            return replace(result, status="failed", error=str(error), state=None)
        return result

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
    def asked(self) -> int:
        """Proposals that were made, whatever became of them: more than are wanted where fewer were asked for since."""
        return len(self.optuna_study.get_trials(deepcopy=False))

    @property
    def remaining(self) -> int:
        """Proposals that are still to be run, as far as the storage knows."""
        return max(0, self.search.trials - self.asked) + len(self.open_numbers())

    def open_numbers(self) -> list[int]:
        """Numbers of the proposals that were under way, or whose result is not in the store.

        The latter are finished in a database that outlived the machine on which the results were.
        """
        asked = self.optuna_study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.COMPLETE))
        return [
            trial.number
            for trial in asked
            if trial.state == TrialState.RUNNING or not self.store.has(str(trial.user_attrs.get(KEY_ATTRIBUTE)))
        ]

    def proposals(self) -> list[Proposal]:
        """All points that were tried, whatever became of them."""
        return [
            Proposal(
                trial.number,
                trial.state.name,
                dict(trial.params),
                list(trial.values or ()),
                str(trial.user_attrs.get(KEY_ATTRIBUTE, "")),
                all(beyond <= 0 for beyond in trial.constraints.values()),
            )
            for trial in self.optuna_study.get_trials(deepcopy=False)
        ]

    def pareto(self) -> list[int]:
        """Numbers of the proposals that no other one beats in every objective; of equal ones, the first.

        Those that lie beyond a constraint are not among them, whatever their objectives.
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


def figures_of(what: str, wanted: Iterable[str], metrics: Mapping[str, float | None]) -> list[float]:
    """The figures that a search asks for, in order; one that the evaluation did not give is an error that lists all.

    A figure that is not finite counts as not given: stored results have no such numbers, and Optuna takes no NaN.
    """
    given, names = finite_figures(metrics), list(wanted)
    for name in names:
        if name not in given:
            raise InputError(f"search.{what}: {name!r} is not among the figures: {', '.join(sorted(given))}")
    return [given[name] for name in names]

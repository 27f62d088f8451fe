"""What is allowed in a study but probably not meant: said before it runs, and no reason not to run it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nbsr_core.errors import InputError
from nbsr_platform.base.terminal import Terminal
from nbsr_platform.study.rehearsal import Rehearsal, rehearse
from nbsr_platform.study.space_file import never_active
from nbsr_platform.study.study import Study


def say_warnings(studies: Iterable[Study], console: Terminal) -> None:
    """Say what is known of the data of all studies, and warn of them, before any of them runs."""
    for study in studies:
        tried = rehearse(study)
        if tried.about:
            console.say(tried.about, head="data")
        for warning in _all(study, tried):
            console.say(f"{study.name}: {warning}", head="warning", style="yellow")


def warnings(study: Study) -> list[str]:
    """A sentence for each thing. Raises a `StudyError` with what would end the study, see `rehearse`."""
    return _all(study, rehearse(study))


def _all(study: Study, tried: Rehearsal) -> list[str]:
    found = [*tried.warnings, *_vacuous_thresholds(study)]
    if study.search is None:
        return found
    for metric in study.search.objectives:
        if re.match(r"(test|fast|depth\d+)/", metric):
            found.append(
                f"search.objectives: {metric} is measured on the test split; what is chosen by it looks better than it "
                "is. Choose by valid/..."
            )
    for key in never_active(study.search.space):
        found.append(f"search.space.{key}: its condition on a fixed option never holds, so it is never sampled")
    pruner, epochs = study.search.pruner, study.models[study.search.model].training.epochs
    if pruner is not None and pruner.warmup_epochs >= epochs:
        found.append(f"search.pruner: {pruner.warmup_epochs} warm-up epochs of {epochs} leave nothing to prune")
    return found


def _vacuous_thresholds(study: Study) -> list[str]:
    """Models for which eta is no test: the belief before any evidence passes it already."""
    eta = study.evaluation.eta
    walking = {label: choice.options for label, choice in study.models.items() if choice.family == "nbsr"}
    if eta is None or not walking:
        return []
    from nbsr_core.belief import dirichlet
    from nbsr_core.trace.exits import is_vacuous

    try:
        classes = study.domain_object.load(study.data, study.seeds[0]).num_classes
    except InputError:  # data that is not there is for those to complain of who need it
        return []
    found = []
    for label, options in walking.items():
        prior = dirichlet.prior(classes, getattr(options, "prior_weight", None))
        if is_vacuous(eta, prior):
            highest = float(dirichlet.entropy(prior))
            found.append(
                f"evaluation.eta: {eta:g} is above the entropy of {label}'s prior over {classes} classes, "
                f"{highest:.1f}: every sample exits at depth 1"
            )
    return found

"""A study tried out before it runs: its data is looked for, its models are built, its words are held against both.

Reading a study file checks its form, and needs neither data nor models. This takes a second or two more, trains
nothing, and finds what would otherwise end the study after its first training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nbsr_core.domains.domain import ModelKind, Preview, Signature
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner
from nbsr_platform.study.idle_options import ModelInUse, Way, in_use, searched_in_vain, set_in_vain
from nbsr_platform.study.options import to_plain
from nbsr_platform.study.problems import KeyPath, Problems, did_you_mean, nearest
from nbsr_platform.study.search_options import Search
from nbsr_platform.study.space import TRAINING, Choice
from nbsr_platform.study.study import Study
from nbsr_platform.study.yaml_file import holds

# Models of a search that are built, one for each combination of its choices: a study is to be checked in seconds.
MOST_BUILT = 48


class Rehearsal(NamedTuple):
    """What trying a study out has found: a sentence about its data, and what is allowed but surely not meant."""

    about: str
    warnings: list[str]


def rehearse(study: Study) -> Rehearsal:
    """Raise a `StudyError` with all that would end the study; returns what else there is to be said."""
    problems = Problems(study.name) if study.source is None else study.source.problems.scratch()
    models = in_use(study)
    preview = _preview(study, problems)
    if preview is not None:
        for model in models.values():
            _build(study, model, preview.signature, problems)
        if study.search is not None:
            _check_figures(study, study.search, models[study.search.model].learners, preview, problems)
    if not problems.found:
        searched_in_vain(study, models, problems)
    problems.stop_if_any()
    assert preview is not None, "a study whose data is not there was refused"
    return Rehearsal(preview.about, [*preview.notes, *set_in_vain(study, models)])


def _preview(study: Study, problems: Problems) -> Preview | None:
    try:
        return study.domain_object.preview(study.data)
    except InputError as error:
        problems.add(*_blamed(("data",), study.data, str(error)))
    except OSError as error:
        problems.add(("data",), f"{error.filename or study.domain} cannot be read: {error.strerror or error}")
    return None


def _build(study: Study, model: ModelInUse, signature: Signature, problems: Problems) -> None:
    """Build the model in some of the ways in which it will be trained; what it refuses is a problem, once."""
    kind, learners = study.domain_object.models[model.choice.kind], []
    different = _different(study, model)
    for way in different[:MOST_BUILT]:
        try:
            learners.append(_built(kind, way, signature))
        except InputError as error:
            place, what = _blamed(("models", model.choice.label), way.options, str(error))
            if way.assignment:
                what += f" (with {', '.join(f'{key}: {value}' for key, value in way.assignment.items())})"
            problems.add(place, what)
            return
        except Exception:  # a mistake in somebody's code is for the trial to tell, with its trace
            return
    if len(different) <= MOST_BUILT:
        model.learners += learners


def _different(study: Study, model: ModelInUse) -> list[Way]:
    """Ways in which a model is built differently; of a search, one for each combination of choices between options."""
    if study.search is None:
        return list(model.ways)
    parameters = [parameter for parameter in study.search.space.parameters if isinstance(parameter, Choice)]
    choices = [parameter.key for parameter in parameters if not parameter.key.startswith(f"{TRAINING}.")]
    different: dict[str, Way] = {}
    for way in model.ways:
        different.setdefault(str([way.assignment.get(key) for key in choices]), way)
    return list(different.values())


def _check_figures(
    study: Study, search: Search, learners: Sequence[Learner], preview: Preview, problems: Problems
) -> None:
    """What a search is after, and what it prunes by, must be a figure that its trials have."""
    domain, judged = study.domain_object, study.evaluation
    at_the_end = [domain.figures(study.data, preview.sets, learner, judged) for learner in learners]
    for part, wanted in {"objectives": search.objectives, "constraints": search.constraints}.items():
        for name in wanted:
            _check_figure(name, at_the_end, ("search", part, name), "is no figure of the trained model", problems)
    if search.pruner is not None and search.pruner.metric is not None:
        each = [learner.epoch_figures for learner in learners]
        place = ("search", "pruner", "metric")
        _check_figure(search.pruner.metric, each, place, "is no figure that every epoch reports", problems)


def _check_figure(name: str, known: Sequence[set[str] | None], place: KeyPath, what: str, problems: Problems) -> None:
    """A problem unless one of the models has the figure, or has figures that nobody knows."""
    names = {figure for figures in known for figure in figures or ()}
    if not known or None in known or any(fnmatchcase(name, figure) for figure in names):
        return
    examples = sorted(figure.replace("*", "1") for figure in names)
    first = (nearest(name, examples) or name).split("/")[0]
    alike = [figure for figure in examples if figure.split("/")[0] == first]
    problems.add(place, what, given=name, hint=did_you_mean(name, examples), allowed=", ".join(alike or examples))


def _built(kind: ModelKind, way: Way, signature: Signature) -> Learner:
    import torch

    with torch.random.fork_rng():
        return kind.build(way.options, signature)


def _blamed(place: KeyPath, options: Any, message: str) -> tuple[KeyPath, str]:
    """The option that a message begins with (`graph.shape: this domain has ...`), if it does, and the rest of it."""
    found = re.match(r"`?(?:data\.)?([a-z_][a-z0-9_.]*)`?(?:: | )(.*)", message, re.DOTALL)
    if found is None:
        return place, message
    path = tuple(found[1].split("."))
    return ((*place, *path), found[2]) if holds(to_plain(options), path) else (place, message)

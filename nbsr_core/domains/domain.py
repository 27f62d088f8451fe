"""The door through which every domain comes in, the shipped ones and yours: data, models by name, evaluation.

A study names a domain (`iris`, `medical`, or `package.module:ClassName`) and the options of its data and models; all
options are plain dataclasses, so that a study file can be checked against them before anything runs.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from nbsr_core.code.named import allow, import_named, is_missing, split_name
from nbsr_core.errors import InputError
from nbsr_core.options.specs import EvaluationOptions, Family

if TYPE_CHECKING:  # torch is not needed to say what a domain offers
    from nbsr_core.domains.service import Service
    from nbsr_core.evaluation.evaluation import Evaluation
    from nbsr_core.learning.learners import Learner
    from nbsr_core.learning.splits import Splits

SHIPPED = {
    "iris": "nbsr_core.domains.iris:Iris",
    "medical": "nbsr_core.domains.medical:Medical",
    "language": "nbsr_core.domains.language:Language",
    "acquisition": "nbsr_core.domains.acquisition:Acquisition",
    "triage": "nbsr_core.domains.triage:Triage",
    "navigation": "nbsr_core.domains.navigation:Navigation",
    "vision": "nbsr_core.domains.vision:Vision",
    "table": "nbsr_core.domains.table:Table",
}


class UnknownModuleError(InputError):
    """The module of a domain is neither installed nor in the folder that was named."""


@dataclass(frozen=True)
class Signature:
    """What a model must know of the data before it sees any: enough to build it anew when it is loaded.

    Attributes:
        structure: what else it is built from, see `Splits.structure`.
    """

    class_names: Sequence[str]
    feature_names: Sequence[str]
    structure: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(splits: Splits) -> Signature:
        return Signature(splits.class_names, splits.feature_names, splits.structure)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_features(self) -> int:
        return len(self.feature_names)


@dataclass(frozen=True)
class Preview:
    """What is known of the data before anything is trained on it.

    Attributes:
        signature: what models are built from.
        sets: names of the further labelled sets, see `Splits.extra`.
        about: what was found out about the data, in a sentence; empty where nothing had to be.
        notes: what a person must know about it before a model learns from it, a sentence each.
    """

    signature: Signature
    sets: tuple[str, ...] = ()
    about: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelKind:
    """A model that a domain offers.

    Attributes:
        family: `nbsr` or `baseline`, for grouping in comparisons.
        options: dataclass of its parameters; every field has a default.
        build: makes an untrained learner; all randomness from torch's global generator, seeded by the caller.
    """

    family: Family
    options: type
    build: Callable[[Any, Signature], Learner]


@dataclass(frozen=True)
class Question:
    """What somebody wants explained: a sample of the test split, unless it is words or a whole episode.

    Attributes:
        sample: number of a test sample, from 0.
        prompt: words to go on from, where a domain reads text.
        episode: number of a held-out episode, where a domain acts.
        eta: exit threshold under which the model was judged; None walks to the leaves.
        max_vacuity: vacuity above which it abstains, or doubt of a model that knows no vacuity; None never does.
        budget: what may be spent at most, where a model buys; None is as much as it was built for.
    """

    sample: int | None = None
    prompt: str | None = None
    episode: int | None = None
    eta: float | None = None
    max_vacuity: float | None = None
    budget: float | None = None


@dataclass(frozen=True)
class Answer:
    """An explanation in a domain's own terms.

    Attributes:
        text: for the terminal.
        data: the same as plain values, for JSON.
        svg: a picture of it.
        gif: a short animation of it.
    """

    text: str
    data: dict[str, Any]
    svg: str | None = None
    gif: bytes | None = None


@runtime_checkable
class Work(Protocol):
    """A piece of work to be done before trials can start, once for all of them, by any process that sees the same disk.

    Attributes:
        name: for a progress line.
        size: how much work it is, in items.
        done: whether its result is there already.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def done(self) -> bool: ...

    def run(self) -> None:
        """Do it and keep the result, whole or not at all."""


class Domain(ABC):
    """A kind of problem. It loads, builds and evaluates; it does not train, log, plot or read a command line.

    Attributes:
        name: as it shows in reports.
        data: dataclass of the options under `data:` in a study.
        models: what can be trained, by the names that a study uses.
        shown: figures that a person compares first, `*` standing for any name of a set; the others are in reports and
            JSON.
        ceiling: what figures under `ceiling/...` stand for, where `evaluate` gives such: the best that any model could
            reach.
        unusable: kinds of models that nobody could use, each with the reason in a few words (it peeks): shown and
            marked beside the others, never called best, and compared with nobody.
        builds_on: shipped domains whose code this one runs; a change there makes its results stale too.
    """

    name: ClassVar[str]
    builds_on: ClassVar[tuple[str, ...]] = ()
    data: ClassVar[type]
    models: ClassVar[Mapping[str, ModelKind]]
    shown: ClassVar[Sequence[str]] = ("accuracy", "ece", "ece_raw", "nll", "mean_depth", "coverage", "error_answered")
    ceiling: ClassVar[str | None] = None
    unusable: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def load(self, data: Any, seed: int) -> Splits:
        """Read or generate the data; everything random in it follows from the seed."""

    def preview(self, data: Any) -> Preview:
        """What a study is checked against before it runs; a domain whose data is costly to load may know it without.

        Raises an `InputError`, or an `OSError`, if the data is not there.
        """
        splits = self.load(data, 0)
        return Preview(Signature.of(splits), tuple(splits.extra))

    def fingerprint(self, data: Any) -> str:
        """A hash of the data as seed 0 sees it; a domain whose data is costly to load may know it without."""
        return self.load(data, 0).fingerprint()

    def prepare(self, data: Any, seeds: Sequence[int]) -> Sequence[Work]:
        """Work whose results `load` reads with any of the seeds.

        The platform does it in parallel beforehand, otherwise `load` does it.
        """
        return ()

    def judge(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Fit what is fitted after training, which is the same for every model and domain, then `evaluate`."""
        from nbsr_core.evaluation.after_training import fit_after_training

        fitted = fit_after_training(learner, splits, options)
        evaluation = self.evaluate(learner, splits, options)
        evaluation.metrics |= fitted
        return evaluation

    def evaluate(self, learner: Learner, splits: Splits, options: EvaluationOptions) -> Evaluation:
        """Figures of a trained model as it is used, calibrated where it is (`judge`); classification by default."""
        from nbsr_core.evaluation.evaluation import evaluate_classification

        return evaluate_classification(learner, splits, options)

    def figures(self, data: Any, sets: Sequence[str], learner: Learner, options: EvaluationOptions) -> set[str] | None:
        """Names of all figures that `evaluate` may give, `*` for any depth; None if nobody knows them before.

        A search is checked against them before it runs. A domain with an `evaluate` of its own adds its own names to
        those of `classification_figures`, or is not checked.

        Args:
            data: the study's.
            sets: names of the further labelled sets, see `Preview`.
            learner: the model, built and not trained.
            options: how it will be judged.
        """
        from nbsr_core.evaluation.evaluation import classification_figures

        own = type(self).evaluate is not Domain.evaluate
        return None if own else classification_figures(learner, sets, options)

    def portrait(self, data: Any, seed: int, sample: int) -> bytes | None:
        """What a person would see of a seed's test sample, as a PNG beside its walk; None where there is no such."""
        return None

    def service(self, learner: Learner, signature: Signature) -> Service:
        """How a trained model is asked from outside; one column per feature by default."""
        from nbsr_core.domains.service import Service

        return Service(learner, signature.class_names, signature.feature_names)

    def explain(self, learner: Learner, splits: Splits, question: Question) -> Answer | None:
        """Why the model does what it does; None leaves it to the walk of one sample that every NBSR model has."""
        return None


def find_domain(name: str, beside: Path | str | None = None) -> Domain:
    """A shipped domain by its name, or anybody's by `package.module:ClassName`.

    Args:
        name: which domain.
        beside: a folder that the user named (that of the study file): its modules and those of the project around it
            can be named from then on; what is installed goes before them. A folder that a stored result names is none.
    """
    if name not in SHIPPED and ":" not in name:
        close = difflib.get_close_matches(name, SHIPPED, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(
            f"domain must be one of {', '.join(SHIPPED)} or 'package.module:ClassName', got {name!r}{hint}"
        )
    folders = None if beside is None else allow(beside)
    try:
        module_name, class_name = split_name(SHIPPED.get(name, name))
        module = import_named(module_name, None if name in SHIPPED else folders)
        found = getattr(module, class_name, None)
        if isinstance(found, type) and issubclass(found, Domain):
            return found()
    except ImportError as error:
        kind = UnknownModuleError if is_missing(module_name, error) else InputError
        raise kind(f"domain {name!r}: cannot import {module_name!r} ({error})") from None
    except InputError as error:
        raise InputError(f"domain {name!r} cannot be used: {error}") from None
    except (Exception, SystemExit) as error:  # whatever somebody's module does when it is imported
        raise InputError(f"domain {name!r} cannot be used: {type(error).__name__}: {error}") from error
    if found is None:
        place = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        raise InputError(f"domain {name!r}: module {module_name!r}{place} has no {class_name!r}")
    raise InputError(f"domain {name!r} must be a subclass of nbsr_core.domains.Domain")

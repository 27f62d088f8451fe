"""Which pictures, where they lie, and how they become splits: pixels for a backbone that learns, or kept features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.embedded import digits
from nbsr_core.domains.vision.image_files import image_tree
from nbsr_core.domains.vision.images import ImageSet
from nbsr_core.domains.vision.named_sets import IN_FOLDER, WITHOUT_FILES, cifar10, unknown
from nbsr_core.domains.vision.oracle_cache import Features, Pixels, Recipe, Table, cache_folder
from nbsr_core.domains.vision.selection import Selection, select, to_judge
from nbsr_core.domains.vision.views import Augmentation, StoredPictures
from nbsr_core.errors import InputError
from nbsr_core.files import path_except, user_path
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.options.conditions import counts_when

LARGEST_SIZE = 2048
UNKNOWN_CLASSES = "unknown_classes"


@dataclass(frozen=True)
class OracleOptions(BackboneOptions):
    """A frozen backbone whose features are computed once and kept; models then learn from features, not pictures.

    Attributes:
        views: augmented views of every training picture that are kept beside the plain one; each time a training
            picture comes up, one of them all is drawn.
    """

    weights: str = field(default="imagenet", metadata=path_except("none", "imagenet"))
    views: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.views < 0:
            raise InputError(f"oracle.views must be at least 0, got {self.views}")
        if self.stages:
            raise InputError("oracle.stages: features of a frozen backbone are computed once, all of them; drop it")


@dataclass(frozen=True)
class VisionData:
    """Pictures to learn from.

    Attributes:
        source: `digits` (scikit-learn's 1,797 real scanned digits), `cifar10`, or the path of an image tree (a folder
            or a zip with `train/<class>/...` and `test/<class>/...`).
        root: folder with `cifar10`, `mnist`, `fashion` and `svhn` in it; by default, the one that NBSR_DATA names.
        ood: sets of another kind, to be told from the test pictures: `patches` (of scikit-learn's two sample
            photographs), `digits`, `noise` (1,000 pictures of uniform and 1,000 of Gaussian noise), `mnist`, `fashion`
            (Fashion-MNIST), `svhn`, or the path of a folder or zip of images.
        known: how many classes are known, or the names of those that are; models learn these alone, and the test
            pictures of the others are a set of another kind, `unknown_classes`. Which classes a number stands for
            follows from the seed. None knows all.
        size: px of stored pictures, width and height.
        subset: learn from so many training pictures only, validation included: seed s takes the s-th stretch of so
            many, beginning again at the end. Models are judged on a fifth as many of the test set and of each `ood`
            set, the same for every seed. None for all.
        valid: share of the training pictures that is held out for validation; which ones follows from the seed.
        augment: changes training pictures, see `Augmentation`; None leaves them as they are.
        oracle: a frozen backbone; None gives the models the pictures themselves.
        cache: folder for features and decoded pictures; by default, NBSR_CACHE or ~/.cache/nbsr.
    """

    source: str = field(default="digits", metadata=path_except("digits", "cifar10"))
    root: str | None = field(
        default=None,
        metadata={
            **path_except(),
            **counts_when(
                f"source is cifar10, or ood names {' or '.join(IN_FOLDER)}",
                lambda data: data.source == "cifar10" or bool(set(IN_FOLDER) & set(data.ood)),
            ),
        },
    )
    ood: tuple[str, ...] = field(default=("patches",), metadata=path_except(*WITHOUT_FILES, *IN_FOLDER))
    known: int | tuple[str, ...] | None = None
    size: int = 32
    subset: int | None = None
    valid: float = 0.1
    augment: Augmentation | None = field(
        default=None,
        metadata=counts_when(
            "there is no oracle, or oracle.views is above 0", lambda data: data.oracle is None or data.oracle.views > 0
        ),
    )
    oracle: OracleOptions | None = None
    cache: str | None = field(default=None, metadata=path_except())

    def __post_init__(self) -> None:
        if not 0 < self.valid < 1:
            raise InputError(f"valid must lie in (0, 1), got {self.valid}")
        if not 1 <= self.size <= LARGEST_SIZE:
            raise InputError(f"size must be from 1 to {LARGEST_SIZE}, got {self.size}")
        if self.subset is not None and self.subset < 50:
            raise InputError(f"subset must be at least 50, got {self.subset}")
        if self.known is not None:
            _check_known(self.known)
        names = ["test", *self.unknown_sets]
        if len(set(names)) < len(names):
            raise InputError(f"ood must be sets of different names, none of them 'test', got {', '.join(self.ood)}")

    @property
    def unknown_sets(self) -> tuple[str, ...]:
        """What the out-of-distribution sets are called in figures."""
        others = () if self.known is None else (UNKNOWN_CLASSES,)
        return (*others, *map(_set_name, self.ood))


def _check_known(known: int | Sequence[str]) -> None:
    if isinstance(known, int):
        if known < 2:
            raise InputError(f"known must be at least 2 classes, got {known}")
    elif len(set(known)) < max(2, len(known)):
        raise InputError(f"known must name at least 2 classes, each once, got {', '.join(known) or 'none'}")


def _set_name(given: str) -> str:
    """What a set under `ood` is called in figures: its name, or that of its file."""
    return Path(given).stem


@dataclass(frozen=True, eq=False)
class VisionSplits(Splits):
    """Splits with out-of-distribution inputs beside them, whose labels mean nothing here.

    Attributes:
        ood: inputs by the name of their set.
        identity: fingerprint of the data, the same for every seed and known without reading any of it.
    """

    ood: dict[str, Tensor] = field(default_factory=dict)
    identity: str = ""

    def fingerprint(self) -> str:
        return self.identity


@dataclass(frozen=True)
class Source:
    """The sets that a study's data stands for, found but not decoded."""

    data: VisionData

    @cached_property
    def train(self) -> ImageSet:
        return self._parts[0]

    @cached_property
    def test(self) -> ImageSet:
        return self._parts[1]

    @cached_property
    def _parts(self) -> tuple[ImageSet, ImageSet]:
        source = self.data.source
        if source == "digits":
            return digits()
        if source == "cifar10":
            return cifar10(self.data.root)
        path = user_path(source)
        if not path.exists():
            raise InputError(f"data.source must be digits, cifar10 or the path of an image tree, got {source!r}")
        train = image_tree(path, "train")
        return train, image_tree(path, "test", train.class_names)

    @cached_property
    def ood(self) -> dict[str, ImageSet]:
        return {_set_name(name): unknown(name, self.data.root) for name in self.data.ood}

    def selection(self, seed: int) -> Selection:
        """The classes that a seed knows, and the rows of training and test set that it takes."""
        data = self.data
        return select(self.train, self.test, seed, subset=data.subset, valid=data.valid, known=data.known)

    def class_names(self, chosen: Selection) -> list[str]:
        """Names of the classes that a seed knows."""
        return [self.train.class_names[label] for label in chosen.classes.tolist()]

    def rows(self, images: ImageSet) -> Int[Tensor, " n"]:
        """The rows of an out-of-distribution set on which models are judged."""
        return to_judge(torch.arange(len(images)), self.data.subset)

    def needed(self, seeds: Sequence[int]) -> list[tuple[ImageSet, Int[Tensor, " n"]]]:
        """All sets, each with the rows that any of the seeds takes."""
        chosen = [self.selection(seed) for seed in seeds]
        return [
            (self.train, torch.cat([rows for one in chosen for rows in (one.train, one.valid)])),
            (self.test, torch.cat([rows for one in chosen for rows in (one.test, one.unknown)])),
            *((images, self.rows(images)) for images in self.ood.values()),
        ]

    def tables(self, images: ImageSet) -> list[Table]:
        """What is kept of a set: pixels, or features with one table a view."""
        data, folder = self.data, cache_folder(self.data.cache)
        recipes: list[Recipe] = [Pixels(data.size)]
        if data.oracle is not None:
            backbone = BackboneOptions(data.oracle.name, data.oracle.weights, data.oracle.size)
            views = data.oracle.views if images is self.train else 0
            augmentation = data.augment or Augmentation()
            recipes = [Features(backbone, data.size, view, augmentation) for view in range(views + 1)]
        return [Table(folder, images, recipe) for recipe in recipes]

    @property
    def sets(self) -> list[ImageSet]:
        return [self.train, self.test, *self.ood.values()]

    @property
    def identity(self) -> str:
        """What determines the splits, without computing them."""
        described = [[images.fingerprint, [table.place.name for table in self.tables(images)]] for images in self.sets]
        chosen = [self.data.known, self.data.subset, self.data.valid]
        words = json.dumps([described, list(self.ood), chosen, list(self.train.class_names)])
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def read(self, images: ImageSet, rows: Int[Tensor, " n"]) -> Tensor:
        """Inputs [n, ...] as models are judged on them: pictures as bytes, or features of the plain ones."""
        return self.tables(images)[0].read(rows)

    def read_views(self, rows: Int[Tensor, " n"]) -> Tensor:
        """Training inputs, as `read` gives them, or features in several views [n, views, d]."""
        parts = [table.read(rows) for table in self.tables(self.train)]
        return parts[0] if len(parts) == 1 else torch.stack(parts, 1)


def load(data: VisionData, seed: int) -> VisionSplits:
    """All splits. Which training pictures are held out, and which classes are known, follows from the seed."""
    source = Source(data)
    chosen, train, test = source.selection(seed), source.train, source.test
    x = source.read_views(chosen.train)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    if data.oracle is not None and data.oracle.views > 0:
        augment = any_view
    elif data.oracle is None and data.augment is not None:
        augment = StoredPictures(data.augment)
    names = feature_names(x.shape[-1]) if data.oracle is not None else pixel_names(data.size)
    oracle = "" if data.oracle is None else f", seen by a frozen {data.oracle.name} at {data.oracle.input_size} px"
    pictures = f"{len(chosen.train) + len(chosen.valid):,} training and {len(chosen.test):,} test pictures"
    known = "" if data.known is None else f" of {len(chosen.classes)} of {len(train.class_names)} classes"
    others = {} if data.known is None else {UNKNOWN_CLASSES: source.read(test, chosen.unknown)}
    return VisionSplits(
        train=Split(x, chosen.labels(train, chosen.train)),
        valid=Split(source.read(train, chosen.valid), chosen.labels(train, chosen.valid)),
        test=Split(source.read(test, chosen.test), chosen.labels(test, chosen.test)),
        class_names=source.class_names(chosen),
        feature_names=names,
        source=f"{train.name}, {pictures}{known}{oracle}",
        synthetic=False,
        augment=augment,
        ood=others | {name: source.read(images, source.rows(images)) for name, images in source.ood.items()},
        identity=source.identity,
    )


def any_view(x: Tensor, generator: torch.Generator) -> Tensor:
    """One of the kept views [B, V, d] of every picture, drawn anew."""
    return x[torch.arange(len(x)), torch.randint(x.shape[1], (len(x),), generator=generator)]


def feature_names(width: int) -> list[str]:
    return [f"feature {number}" for number in range(width)]


def pixel_names(size: int) -> list[str]:
    """One name a value of a picture [3, size, size], in the order in which it is flattened."""
    return [
        f"{colour} {row},{column}"
        for colour in ("red", "green", "blue")
        for row in range(size)
        for column in range(size)
    ]

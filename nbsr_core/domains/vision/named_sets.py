"""Sets of pictures that a study calls by name, and where their files lie; a missing one says how to get it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nbsr_core.domains.vision.embedded import digits, noise, patches
from nbsr_core.domains.vision.image_files import image_tree
from nbsr_core.domains.vision.images import ImageSet
from nbsr_core.domains.vision.packed_images import CIFAR10, cifar10_batches, idx_images, svhn
from nbsr_core.errors import InputError
from nbsr_core.files import user_path

FOLDER_VARIABLE = "NBSR_DATA"
# Sets of another kind that need no file, and those that lie in the folder of all data.
WITHOUT_FILES, IN_FOLDER = ("patches", "digits", "noise"), ("mnist", "fashion", "svhn")


def cifar10(root: str | None) -> tuple[ImageSet, ImageSet]:
    """CIFAR-10's training and test pictures, as torchvision keeps them or as a tree of image files."""
    advice = (
        "get it with torchvision.datasets.CIFAR10('<root>/cifar10', download=True), or put there an image tree "
        "train/<class>/*.png, test/<class>/*.png, plain or as one zip"
    )
    batches = "cifar-10-batches-py/test_batch"
    folder, file = _folder("cifar10", root, (batches, "train", "cifar10.zip"), advice)
    if file == batches:
        return cifar10_batches((folder / file).parent, True), cifar10_batches((folder / file).parent, False)
    tree = folder if file == "train" else folder / file
    return image_tree(tree, "train", CIFAR10), image_tree(tree, "test", CIFAR10)


def unknown(name: str, root: str | None) -> ImageSet:
    """A set of another kind, by its name or by the path of its images."""
    if name == "patches":
        return patches()
    if name == "digits":
        return digits()[1]
    if name == "noise":
        return noise()
    if name == "mnist":
        return _mnist("mnist", "MNIST", root)
    if name == "fashion":
        return _mnist("fashion", "FashionMNIST", root, "fashion.zip")
    if name == "svhn":
        advice = "get it with torchvision.datasets.SVHN('<root>/svhn', split='test', download=True)"
        folder, file = _folder("svhn", root, ("test_32x32.mat",), advice)
        return svhn(folder / file)
    path = user_path(name)
    if not path.exists():
        known = ", ".join((*WITHOUT_FILES, *IN_FOLDER))
        raise InputError(f"data.ood must name {known} or the path of a folder or zip of images, got {name!r}")
    return image_tree(path, "")


def _mnist(name: str, its_class: str, root: str | None, zipped: str | None = None) -> ImageSet:
    """MNIST's test pictures, or those of a set that is packed like it; `zipped` is a zip of image files instead."""
    places = [f"{inside}t10k-images-idx3-ubyte{end}" for inside in ("", f"{its_class}/raw/") for end in ("", ".gz")]
    advice = f"get it with torchvision.datasets.{its_class}('<root>/{name}', train=False, download=True)"
    folder, file = _folder(name, root, [*([] if zipped is None else [zipped]), *places], advice)
    if file == zipped:
        return image_tree(folder / file, "")
    return idx_images(folder / file, folder / file.replace("images-idx3", "labels-idx1"))


def _folder(name: str, root: str | None, files: Sequence[str], advice: str) -> tuple[Path, str]:
    """The folder of a data set and the first of `files` that lies in it; an error says where it was looked for."""
    top = root or os.environ.get(FOLDER_VARIABLE)
    if not top:
        raise InputError(f"{name}: say where the data lies with data.root or {FOLDER_VARIABLE}; {advice}")
    folder = user_path(top) / name
    for file in files:
        if (folder / file).exists():
            return folder, file
    raise InputError(f"{name}: looked for {' or '.join(files)} in {folder} and found none; {advice}")

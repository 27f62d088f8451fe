"""Image sets that come packed in one file each: CIFAR-10's pickled batches, MNIST's idx files, SVHN's Matlab file.

What a file declares is compared with what such a set can hold before any of it is unpacked.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from nbsr_core.domains.vision.images import PixelSet
from nbsr_core.errors import InputError
from nbsr_core.files import MEGABYTE, open_file, read_bytes

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple(str(digit) for digit in range(10))
CIFAR_PIXELS = 3 * 32 * 32
LARGEST_BATCH = 200 * MEGABYTE
LARGEST_SET = 1000 * MEGABYTE  # unpacked


def cifar10_batches(folder: Path, train: bool) -> PixelSet:
    """CIFAR-10 from the pickled batches that torchvision downloads (`cifar-10-batches-py`)."""
    files = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    parts, labels = [], []
    for file in files:
        pixels, numbers = _batch(folder / file)
        parts.append(pixels.reshape(-1, 3, 32, 32))
        labels += numbers
    name = f"{folder.name}/{'train' if train else 'test'}"
    return PixelSet.dealt(name, CIFAR10, labels, torch.from_numpy(np.vstack(parts)))


def _batch(path: Path) -> tuple[np.ndarray, list[int]]:
    stream = io.BytesIO(read_bytes(path, LARGEST_BATCH))
    try:
        batch = _PlainUnpickler(stream, encoding="bytes").load()
        pixels, labels = batch[b"data"], batch[b"labels"]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # of any kind: a damaged pickle can fail anywhere
        raise InputError(f"{path} is not a batch of CIFAR-10 ({type(error).__name__}: {error})") from None
    whole = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 2
    if not whole or pixels.shape[1] != CIFAR_PIXELS or pixels.nbytes > LARGEST_BATCH or not isinstance(labels, list):
        raise InputError(
            f"{path} is not a batch of CIFAR-10: expected rows of {CIFAR_PIXELS} bytes and a list of labels"
        )
    return pixels, _checked_labels(labels, len(pixels), CIFAR10, path)


class _PlainUnpickler(pickle.Unpickler):
    """Arrays and plain values only: a data file must not be able to run code."""

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar"):
            return super().find_class(module, name)
        raise InputError(f"a data file that asks for {module}.{name} is not CIFAR-10")


def idx_images(images: Path, labels: Path) -> PixelSet:
    """MNIST's idx files, plain or gzipped: grey pictures, shown in three equal channels."""
    pixels = _idx(images, 3)
    numbers = _checked_labels(_idx(labels, 1).tolist(), len(pixels), DIGITS, labels)
    colour = torch.from_numpy(pixels).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    return PixelSet.dealt(images.name, DIGITS, numbers, colour)


def _idx(path: Path, dimensions: int) -> np.ndarray:
    head = 4 + 4 * dimensions
    with open_file(path) as packed:
        stream: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
        try:
            begin = stream.read(head)
            if len(begin) < head or begin[:3] != b"\x00\x00\x08" or begin[3] != dimensions:
                raise InputError(f"{path} is not an idx file of bytes with {dimensions} dimensions")
            shape = [int(length) for length in np.frombuffer(begin[4:], dtype=">u4")]
            size = math.prod(shape)
            if not 0 < size <= LARGEST_SET:
                raise InputError(f"{path} declares {' x '.join(map(str, shape))} values, expected 1 to {LARGEST_SET:,}")
            content = stream.read(size + 1)
        except InputError:
            raise
        except Exception as error:  # of any kind: what gzip makes of a damaged or truncated file
            raise InputError(f"{path} cannot be unpacked ({error or type(error).__name__})") from None
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content):,}"
        raise InputError(f"{path} declares {size:,} values and has {more}: is it cut off?")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()


def svhn(path: Path) -> PixelSet:
    """SVHN's cropped digits from the Matlab file that torchvision downloads (`test_32x32.mat`)."""
    from scipy.io import loadmat, whosmat

    with open_file(path):  # not a pipe, and there: scipy may open it
        try:
            declared = {name: shape for name, shape, _ in whosmat(path)}
            if math.prod(declared.get("X", ())) > LARGEST_SET or math.prod(declared.get("y", ())) > LARGEST_SET:
                raise InputError(f"{path} declares more than {LARGEST_SET:,} values")
            content = loadmat(path, variable_names=["X", "y"])
            pixels, labels = content["X"], content["y"]
            if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3 or not pixels.size:
                raise InputError(f"{path}: X must be pictures [H, W, 3, N] of bytes, got {pixels.dtype} {pixels.shape}")
            numbers = [int(label) % 10 for label in labels.ravel()]
        except InputError:
            raise
        except Exception as error:  # of any kind: a damaged file can fail anywhere
            raise InputError(f"{path} is not SVHN's Matlab file ({type(error).__name__}: {error})") from None
    numbers = _checked_labels(numbers, pixels.shape[3], DIGITS, path)
    return PixelSet.dealt(
        path.name, DIGITS, numbers, torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    )


def _checked_labels(labels: Sequence[object], rows: int, names: Sequence[str], path: Path) -> list[int]:
    """One label per picture, each of a class that there is."""
    if len(labels) != rows or not rows:
        raise InputError(f"{path}: expected one label per picture, got {len(labels):,} labels and {rows:,} pictures")
    numbers = [label for label in labels if isinstance(label, int) and 0 <= label < len(names)]
    if len(numbers) < rows:
        wrong = next(label for label in labels if not isinstance(label, int) or not 0 <= label < len(names))
        raise InputError(f"{path}: labels must be from 0 to {len(names) - 1}, got {str(wrong)[:40]}")
    return numbers

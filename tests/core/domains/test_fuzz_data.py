"""Data files of any content: each gives data or is refused with a message, in bounded time and memory."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from fuzzing import FEW, MANY, MEMORY, damaged, good_or_refused
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nbsr_core.domains.language import data as language
from nbsr_core.domains.medical import kaggle
from nbsr_core.domains.medical.knowledge_table import knowledge
from nbsr_core.domains.vision.image_files import FORMATS, image_tree
from nbsr_core.domains.vision.packed_images import cifar10_batches, idx_images, svhn


@cache
def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save(stream, kind)
    return stream.getvalue()


@cache
def archive(how: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as packed:
        for name in ("train/a/1.png", "train/b/2.png"):
            packed.writestr(name, picture("PNG"))
    return stream.getvalue()


@cache
def table() -> bytes:
    """A small one of the right shape: each disease once, with every other symptom."""
    stream, known = io.StringIO(), knowledge()
    writer = csv.writer(stream)
    writer.writerow([*known.symptoms, "prognosis"])
    for number, disease in enumerate(known.diseases):
        writer.writerow([*((number + place) % 2 for place in range(len(known.symptoms))), disease])
    return stream.getvalue().encode()


@cache
def idx(dimensions: int) -> bytes:
    shape = (4, 3, 3)[:dimensions]
    head = struct.pack(">HBB", 0, 8, dimensions) + b"".join(struct.pack(">I", length) for length in shape)
    return head + bytes(np.prod(shape))


@cache
def matlab() -> bytes:
    stream = io.BytesIO()
    arrays = {"X": np.zeros((4, 4, 3, 5), np.uint8), "y": np.ones((5, 1))}
    scipy.io.savemat(stream, arrays, do_compression=True)  # type: ignore[arg-type]  # the stubs know only file names
    return stream.getvalue()


def in_a_folder(read: Callable[[Path], object], **files: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for name, content in files.items():
            path = Path(folder) / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        good_or_refused(lambda: read(Path(folder)))


def read_picture(content: bytes) -> None:
    in_a_folder(lambda folder: image_tree(folder, "").decode([0], 8), a_dot_png=content)


def read_zip(content: bytes) -> None:
    def read(folder: Path) -> None:
        images = image_tree(folder / "tree.zip", "train")
        images.decode(range(len(images)), 8)

    in_a_folder(read, tree_dot_zip=content)


def read_table(training: bytes, testing: bytes) -> None:
    in_a_folder(
        lambda folder: kaggle.read(str(folder)), medical__Training_dot_csv=training, medical__Testing_dot_csv=testing
    )


def read_text(content: bytes) -> None:
    def read(folder: Path) -> None:
        text = str(folder / "t.txt")
        language.load(language.LanguageData(source="file", text=text, vocabulary=20, length=2), 0)

    in_a_folder(read, t_dot_txt=content)


def read_idx(images: bytes, labels: bytes) -> None:
    in_a_folder(lambda folder: idx_images(folder / "i.gz", folder / "l"), i_dot_gz=images, l=labels)


def read_matlab(content: bytes) -> None:
    in_a_folder(lambda folder: svhn(folder / "x.mat"), x_dot_mat=content)


def read_batch(content: bytes) -> None:
    in_a_folder(lambda folder: cifar10_batches(folder, False), test_batch=content)


ROWS = st.lists(
    st.lists(st.sampled_from(["0", "1", "", "Acne", "prognosis", "x,", '"', "\n", "\0"]), max_size=5), max_size=5
)
TABLES = st.one_of(
    st.binary(max_size=200),
    ROWS.map(lambda rows: "\n".join(",".join(row) for row in rows).encode()),
    damaged(table()),
    st.just(table()),
)
BATCH = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, protocol=2)
WORDS = ("the quick brown fox jumps over the lazy dog and runs through all these words again " * 40).encode()

READERS: dict[str, tuple[Callable[..., None], list[st.SearchStrategy[Any]]]] = {
    "pictures": (
        read_picture,
        [
            st.one_of(
                st.binary(max_size=200), st.sampled_from(sorted(FORMATS)).flatmap(lambda kind: damaged(picture(kind)))
            )
        ],
    ),
    "zips": (
        read_zip,
        [
            st.one_of(
                st.binary(max_size=100),
                st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]).flatmap(lambda how: damaged(archive(how))),
            )
        ],
    ),
    "tables": (read_table, [TABLES, TABLES]),
    "texts": (read_text, [st.one_of(st.binary(max_size=300), st.text().map(str.encode), damaged(WORDS))]),
    "idx": (
        read_idx,
        [
            st.one_of(damaged(gzip.compress(idx(3))), damaged(idx(3)).map(gzip.compress), st.binary(max_size=60)),
            st.one_of(damaged(idx(1)), st.just(idx(1)), st.binary(max_size=60)),
        ],
    ),
    "matlab": (read_matlab, [st.one_of(damaged(matlab()), st.binary(max_size=300))]),
    "batches": (read_batch, [st.one_of(damaged(BATCH), st.binary(max_size=300))]),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_file_gives_data_or_is_refused(kind: str) -> None:
    reader, strategies = READERS[kind]
    FEW(given(*strategies)(reader))()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", READERS)
def test_many_files_give_data_or_are_refused(kind: str) -> None:
    reader, strategies = READERS[kind]
    MANY(given(*strategies)(reader))()

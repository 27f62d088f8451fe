"""Data files and paths that are no files, lie about themselves, or would fill the memory."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from benchmarks.reliability.hostile.case import GOOD, SEARCH, Hostile, study

PIPE = "it is a pipe, a socket or a device, not a file"
TREE = "name: fine\ndomain: vision\nmodels: {flat: {}}\ndata: {source: tree, ood: []}\n"
ZIPPED = TREE.replace("tree", "tree.zip")
TEXT = "name: fine\ndomain: language\nmodels: {lm: {kind: nbsr}}\ndata: {source: file, text: t.txt}\n"
TABLES = "name: fine\ndomain: medical\nmodels: {mlp: {}}\ndata: {source: kaggle, root: .}\n"
MNIST = "name: fine\ndomain: vision\nmodels: {flat: {}}\ndata: {ood: [mnist], root: .}\n"
PLAN = "plan s.yaml"


def zipped(size: int = 9, content: bytes = b"picture") -> bytes:
    """Two small files with the names of pictures, and one of so many bytes."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("train/cat/a.png", "test/cat/a.png"):
            archive.writestr(name, content)
        with archive.open("train/cat/z.png", "w") as file:
            for _ in range(0, size, 1_000_000):
                file.write(bytes(min(size, 1_000_000)))
    return stream.getvalue()


def encrypted() -> bytes:
    """A zip in whose list of files every one is said to be encrypted."""
    content = bytearray(zipped())
    at = -1
    while (at := content.find(b"PK\x01\x02", at + 1)) >= 0:
        content[at + 8] |= 1
    return bytes(content)


def overlapping() -> bytes:
    """A zip whose hundred files are all the same piece of it."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("train/cat/a.png", os.urandom(5_000))
        (once,) = archive.infolist()
        for number in range(99):
            again = zipfile.ZipInfo(f"train/cat/{number}.png")
            for field in ("header_offset", "CRC", "compress_size", "file_size", "compress_type"):
                setattr(again, field, getattr(once, field))
            archive.filelist.append(again)
    return stream.getvalue()


def pipes(*names: str) -> Callable[[Path], None]:
    """Makes pipes that nobody writes to."""

    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(folder / name)

    return make


def name_in_latin_1(folder: Path) -> None:
    place = os.fsencode(folder / "tree" / "train") + b"/caf\xe9"
    os.makedirs(place)
    with open(place + b"/a.png", "wb") as file:
        file.write(b"picture")


LABELS = struct.pack(">HBBI", 0, 8, 1, 2) + b"\1\2"
IMAGES = gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2, 2, 2) + bytes(8))
BILLIONS = gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2**31, 28, 28) + bytes(8))


def mnist(name: str, images: bytes, says: str) -> Hostile:
    files: dict[str, str | bytes] = {
        "mnist/t10k-images-idx3-ubyte.gz": images,
        "mnist/t10k-labels-idx1-ubyte.gz": gzip.compress(LABELS),
    }
    return study(name, MNIST, says, PLAN, **files)


FILES: tuple[Hostile, ...] = (
    # What is no file, or has a name that is no text.
    Hostile("a study file that is a pipe", "validate pipe.yaml", f"cannot be read: {PIPE}", make=pipes("pipe.yaml")),
    Hostile("a folder with a pipe among its studies", "studies folder", PIPE, make=pipes("folder/s.yaml")),
    Hostile("a path that looks like markup", "validate 'a[/x]b[red].yaml'", "a[/x]b[red].yaml: no such file"),
    Hostile(
        "a picture that is a pipe",
        PLAN,
        f"f.png cannot be read: {PIPE}",
        {"s.yaml": TREE},
        make=pipes("tree/train/cat/f.png"),
    ),
    Hostile(
        "a zip that is a pipe", PLAN, f"tree.zip cannot be read: {PIPE}", {"s.yaml": ZIPPED}, make=pipes("tree.zip")
    ),
    Hostile("a text that is a pipe", PLAN, f"t.txt cannot be read: {PIPE}", {"s.yaml": TEXT}, make=pipes("t.txt")),
    Hostile(
        "tables that are pipes",
        PLAN,
        f"Training.csv cannot be read: {PIPE}",
        {"s.yaml": TABLES},
        make=pipes("medical/Training.csv", "medical/Testing.csv"),
    ),
    Hostile(
        "a class whose name is not UTF-8",
        PLAN,
        "the name 'train/caf\\udce9/a.png' in it is not UTF-8",
        {"s.yaml": TREE},
        make=name_in_latin_1,
    ),
    study("a data folder of nobody", TREE.replace("tree", "~nobody-of-that-name/x"), "there is no such user", PLAN),
    # Zips.
    study("an encrypted zip", ZIPPED, "is encrypted; unpack the zip", PLAN, **{"tree.zip": encrypted()}),
    study(
        "a zip that was cut off", ZIPPED, "neither a folder nor a zip of images", PLAN, **{"tree.zip": zipped()[:99]}
    ),
    study(
        "a small zip that unpacks to a lot",
        ZIPPED,
        "tree.zip: train/cat/z.png would unpack to 65 MB",
        PLAN,
        **{"tree.zip": zipped(65_000_000)},
    ),
    study("a zip whose files overlap", ZIPPED, "tree.zip: its files overlap", PLAN, **{"tree.zip": overlapping()}),
    # Tables, texts and packed sets.
    study(
        "a table in Latin-1",
        TABLES,
        "Training.csv is not UTF-8 text",
        PLAN,
        **{"medical/Training.csv": "fi\xe8vre,prognosis\n".encode("latin-1"), "medical/Testing.csv": b"x"},
    ),
    study("a text in Latin-1", TEXT, "t.txt is not UTF-8 text", PLAN, **{"t.txt": "d\xe9j\xe0 vu".encode("latin-1")}),
    mnist("a gzip that was cut off", IMAGES[:-12], "t10k-images-idx3-ubyte.gz cannot be unpacked"),
    mnist("a gzip that declares billions of pictures", BILLIONS, "declares 2147483648 x 28 x 28 values"),
    study(
        "pictures of a million pixels a side",
        TREE.replace("ood", "size: 1000000, ood"),
        "from 1 to 2048",
        "validate s.yaml",
    ),
    # Text that no database or file can hold, and an address that is more than a file.
    study(
        "a NUL character by its escape", GOOD + 'question: "a\\0b"\n', "question: has a character that cannot be stored"
    ),
    study("half a character", GOOD + 'question: "\\ud800"\n', "question: has a character that cannot be stored"),
    study(
        "a condition that nothing fulfils",
        SEARCH + "{training.epochs: {int: [1, 3], when: {oracle_dim: []}}}}\n",
        "when.oracle_dim: expected a value, or a list of at least one value",
    ),
    study(
        "a sqlite file with parameters",
        GOOD,
        "sqlite:///x.db: a sqlite file takes no parameters",
        "run s.yaml --tracking 'sqlite:///x.db?timeout=5'",
    ),
)

"""Image files in a folder or a zip, which may come from anywhere: broken, encrypted, or made to fill the memory.

Sizes that a file declares are looked at before any of it is unpacked, and only the formats that its name may stand for
are tried: others call programs, or unpack without limit.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from nbsr_core._extras import extra
from nbsr_core.domains.vision.images import ImageSet, dealt_out
from nbsr_core.errors import InputError
from nbsr_core.files import MEGABYTE, open_file, read_bytes, size

FORMATS = {"JPEG": (".jpg", ".jpeg"), "PNG": (".png",), "BMP": (".bmp",), "WEBP": (".webp",), "GIF": (".gif",)}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
LARGEST_FILE = 64 * MEGABYTE  # bytes, of one image
MOST_PIXELS = 64_000_000  # of one image
# LZMA takes as much memory as a file asks for.
PACKED_HOW = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
ENCRYPTED = 0x1


@dataclass(frozen=True, eq=False)
class FileSet(ImageSet):
    """Image files in a folder or a zip.

    Attributes:
        source: the folder, or the zip.
        files: path of each image inside it.
        checks: one checksum per file.
    """

    name: str
    class_names: Sequence[str]
    labels: Sequence[int]
    source: Path
    files: Sequence[str]
    checks: Sequence[str]

    @cached_property
    def _hash(self) -> str:
        lines = "\n".join(
            f"{file} {check} {label}" for file, check, label in zip(self.files, self.checks, self.labels, strict=True)
        )
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._hash

    def decode(self, rows: Sequence[int], size: int) -> UInt8[Tensor, "n 3 size size"]:
        pictures = np.empty((len(rows), size, size, 3), dtype=np.uint8)
        if self.source.is_dir():
            for place, row in enumerate(rows):
                path = self.source / self.files[row]
                pictures[place] = _decoded(read_bytes(path, LARGEST_FILE), size, str(path))
        else:
            with _archive(self.source) as archive:
                for place, row in enumerate(rows):
                    where = f"{self.source}: {self.files[row]}"
                    pictures[place] = _decoded(_unpacked(archive, self.files[row], where), size, where)
        return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def _decoded(content: bytes, size: int, where: str) -> np.ndarray:
    with extra("vision"):
        from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels: that is decided here
            picture = Image.open(io.BytesIO(content), formats=list(FORMATS))
        width, height = picture.size
        if width * height > MOST_PIXELS:
            raise InputError(f"{where} has {width:,} x {height:,} pixels, more than the {MOST_PIXELS:,} that are read")
        picture = picture.convert("RGB")
        if picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(picture)
    except InputError:
        raise
    except Exception as error:  # of any kind: a damaged image can fail anywhere in Pillow
        raise InputError(f"{where} is not an image that can be read ({_reason(error)})") from None


def image_tree(source: Path, part: str, class_names: Sequence[str] | None = None) -> FileSet:
    """The images under `<source>/<part>/<class>/...`, where `source` is a folder or a zip.

    `part` may be empty. Without class folders (or with `class_names` that no folder bears) a picture has label 0 of a
    single class, which is all that an out-of-distribution set needs.
    """
    prefix = f"{part}/" if part else ""
    inside = sorted(_listing(source, prefix))
    if not inside:
        raise InputError(f"{source} has no images under {prefix or 'it'!s} ({', '.join(SUFFIXES)})")
    folders = [file[len(prefix) :].split("/")[0] if "/" in file[len(prefix) :] else "" for file, _ in inside]
    names = list(class_names) if class_names is not None else sorted(set(folders))
    strangers = sorted(set(folders) - set(names))
    if strangers and class_names is not None:
        raise InputError(f"{source}/{part} must have the class folders {', '.join(names)}; it has {strangers[0]!r} too")
    number = {name: label for label, name in enumerate(names)}
    order = dealt_out([number[folder] for folder in folders], [file for file, _ in inside])
    return FileSet(
        f"{source.name}/{part}" if part else source.name,
        names,
        [number[folders[row]] for row in order],
        source,
        [inside[row][0] for row in order],
        [inside[row][1] for row in order],
    )


def _listing(source: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Every image file inside whose path begins like that, with a checksum of its content."""
    if source.is_dir():
        for folder, _, names in os.walk(source / prefix):
            for name in names:
                path = Path(folder) / name
                if path.suffix.lower() in SUFFIXES:
                    inside = _named_in_text(path.relative_to(source).as_posix(), source)
                    yield inside, hashlib.sha256(read_bytes(path, LARGEST_FILE)).hexdigest()[:16]
        return
    state = source.stat() if source.exists() else None
    for entry in _entries(source, state and (state.st_mtime_ns, state.st_size, state.st_ino)):
        inside = entry.filename
        if inside.startswith(prefix) and inside.lower().endswith(SUFFIXES):
            _check_entry(entry, f"{source}: {inside}")
            yield _named_in_text(inside, source), f"{entry.CRC:08x}{entry.file_size:x}"


@lru_cache(maxsize=4)
def _entries(source: Path, state: tuple[int, ...] | None) -> list[zipfile.ZipInfo]:
    """What a zip says it holds: read once as long as the file is as it was, since 60,000 pictures take a second."""
    with _archive(source) as archive:
        return archive.infolist()


def _named_in_text(inside: str, source: Path) -> str:
    try:
        inside.encode()
    except UnicodeEncodeError:
        raise InputError(f"{source}: the name {inside!r} in it is not UTF-8; rename it") from None
    return inside


@contextmanager
def _archive(source: Path) -> Iterator[zipfile.ZipFile]:
    with open_file(source) as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # of any kind: zipfile trusts what it reads
            raise InputError(f"{source} is neither a folder nor a zip of images ({_reason(error)})") from None
        with archive:
            packed = sum(entry.compress_size for entry in archive.infolist())
            if packed > os.fstat(file.fileno()).st_size:
                raise InputError(f"{source}: its files overlap, as in a zip that is made to fill memory and disks")
            yield archive


def _check_entry(entry: zipfile.ZipInfo, where: str) -> None:
    if entry.flag_bits & ENCRYPTED:
        raise InputError(f"{where} is encrypted; unpack the zip with its password and name the folder")
    if entry.compress_type not in PACKED_HOW:
        raise InputError(f"{where} is packed by a method that is not read here; pack it with plain zip")
    if entry.file_size > LARGEST_FILE:
        raise InputError(f"{where} would unpack to {size(entry.file_size)}; an image may have {size(LARGEST_FILE)}")


def _unpacked(archive: zipfile.ZipFile, file: str, where: str) -> bytes:
    """One file of a zip; no more of it than was declared is read, and its checksum must hold."""
    try:
        entry = archive.getinfo(file)
        _check_entry(entry, where)
        return archive.read(entry)
    except InputError:
        raise
    except Exception as error:  # of any kind: zipfile trusts what it reads
        raise InputError(f"{where} cannot be unpacked ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__

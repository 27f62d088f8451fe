"""Data files that are broken or mean harm: one clear error that names the file, no waiting, no memory filled."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from nbsr_core.domains.language.text import words_of
from nbsr_core.domains.medical import kaggle
from nbsr_core.domains.vision import image_files, packed_images
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.data import Source, VisionData
from nbsr_core.domains.vision.image_files import image_tree
from nbsr_core.domains.vision.packed_images import cifar10_batches, idx_images, svhn
from nbsr_core.errors import InputError
from nbsr_core.files import read_bytes, read_text, user_path


def png_of(width: int, height: int) -> bytes:
    """A PNG that declares a size and has nothing else."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def tree(folder: Path) -> Path:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            file = folder / part / name / "a.png"
            file.parent.mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(file)
    return folder


def packed(folder: Path, how: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", how) as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder))
    return path


class TestFiles:
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match=r"pipe cannot be read: it is a pipe"):
            read_bytes(tmp_path / "pipe", 10)

    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("/dev/zero", "it is a pipe, a socket or a device"),
            ("/", "Is a directory"),
            ("/no/such/file", "No such file"),
            ("a\0b", "null"),
            ("x" * 5000, "File name too long"),
        ],
    )
    def test_what_is_no_file_is_said(self, path: str, said: str) -> None:
        with pytest.raises(InputError, match=said):
            read_bytes(Path(path), 10)

    def test_no_more_is_read_than_such_a_file_may_have(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(bytes(11))
        with pytest.raises(InputError, match=r"is larger than"):
            read_bytes(tmp_path / "x", 10)
        assert read_bytes(tmp_path / "x", 11) == bytes(11)

    def test_text_is_utf8_with_or_without_a_mark(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes("\ufeffä".encode())
        assert read_text(tmp_path / "x", 10) == "ä"
        (tmp_path / "x").write_bytes("ä".encode("latin-1"))
        with pytest.raises(InputError, match=r"x is not UTF-8 text"):
            read_text(tmp_path / "x", 10)

    def test_a_home_of_nobody(self) -> None:
        with pytest.raises(InputError, match=r"~nobody-of-that-name/x: there is no such user"):
            user_path("~nobody-of-that-name/x")


class TestFolders:
    def test_a_class_whose_name_is_no_text(self, tmp_path: Path) -> None:
        tree(tmp_path / "tree")
        os.rename(tmp_path / "tree/train/cat", os.fsencode(tmp_path / "tree/train") + b"/caf\xe9")
        with pytest.raises(InputError, match=r"the name 'train/caf\\udce9/a.png' in it is not UTF-8"):
            image_tree(tmp_path / "tree", "train")

    def test_a_pipe_with_the_name_of_a_picture(self, tmp_path: Path) -> None:
        os.mkfifo(tree(tmp_path / "tree") / "train" / "cat" / "f.png")
        with pytest.raises(InputError, match=r"f.png cannot be read: it is a pipe"):
            image_tree(tmp_path / "tree", "train")

    def test_a_link_to_nowhere(self, tmp_path: Path) -> None:
        (tree(tmp_path / "tree") / "train" / "cat" / "f.png").symlink_to("nowhere")
        with pytest.raises(InputError, match=r"f.png cannot be read: No such file"):
            image_tree(tmp_path / "tree", "train")

    def test_a_folder_with_the_name_of_a_picture_is_a_class(self, tmp_path: Path) -> None:
        os.rename(tree(tmp_path / "tree") / "train" / "cat", tmp_path / "tree" / "train" / "cat.png")
        assert list(image_tree(tmp_path / "tree", "train").class_names) == ["cat.png", "dog"]

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (png_of(100_000, 100_000), "a.png"),
            (png_of(8_001, 8_000), "has 8,001 x 8,000 pixels"),
            (png_of(10_000, 10_000), "has 10,000 x 10,000 pixels"),
            (png_of(10, 10), "is not an image that can be read"),
            (b"", "is not an image that can be read"),
            (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not an image that can be read"),
            (b"GIF89a\xff\xff\xff\xff\x00", "is not an image that can be read|pixels"),
        ],
    )
    def test_pictures_that_are_none(self, content: bytes, said: str, tmp_path: Path) -> None:
        (tree(tmp_path / "tree") / "train" / "cat" / "a.png").write_bytes(content)
        images = image_tree(tmp_path / "tree", "train")
        with pytest.raises(InputError, match=said) as error:
            images.decode(range(2), 4)
        assert "a.png" in str(error.value)

    def test_a_picture_of_too_many_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(image_files, "LARGEST_FILE", 50)
        with pytest.raises(InputError, match=r"a.png is larger than"):
            image_tree(tree(tmp_path / "tree"), "train")

    @pytest.mark.parametrize("name", ["~nobody-of-that-name/tree", "nowhere", "a\0b"])
    def test_a_source_that_is_nowhere(self, name: str) -> None:
        with pytest.raises(InputError, match=r"no such user|must be digits, cifar10 or the path of an image tree"):
            Source(VisionData(source=name, ood=())).train  # noqa: B018
        with pytest.raises(InputError, match=r"no such user|must name patches"):
            Source(VisionData(ood=(name,))).ood  # noqa: B018


class TestZips:
    def test_a_file_that_unpacks_to_gigabytes(self, tmp_path: Path) -> None:
        path = packed(tree(tmp_path / "tree"))
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("train/cat/z.bmp", "w") as file:
            for _ in range(65):
                file.write(bytes(1_000_000))
        assert path.stat().st_size < 200_000
        with pytest.raises(InputError, match=r"tree.zip: train/cat/z.bmp would unpack to 65 MB"):
            image_tree(path, "train")

    def test_a_declared_size_that_is_a_lie_is_believed_while_reading(self, tmp_path: Path) -> None:
        path = tmp_path / "lie.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train/cat/z.bmp", bytes(5_000_000))
        content = path.read_bytes().replace(struct.pack("<I", 5_000_000), struct.pack("<I", 1_000))
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"z.bmp (cannot be unpacked|is not an image)"):
            image_tree(path, "train").decode([0], 4)

    def test_files_that_overlap(self, tmp_path: Path) -> None:
        path = tmp_path / "overlap.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("train/cat/a.png", os.urandom(5_000))
            once = archive.infolist()[0]
            for number in range(50):
                again = zipfile.ZipInfo(f"train/cat/{number}.png")
                for field in ("header_offset", "CRC", "compress_size", "file_size", "compress_type"):
                    setattr(again, field, getattr(once, field))
                archive.filelist.append(again)
        with pytest.raises(InputError, match=r"overlap.zip: its files overlap"):
            image_tree(path, "train")

    def test_an_encrypted_file(self, tmp_path: Path) -> None:
        path = packed(tree(tmp_path / "tree"))
        content = bytearray(path.read_bytes())
        at = content.index(b"PK\x01\x02")
        content[at + 8] |= 1
        path.write_bytes(bytes(content))
        with pytest.raises(InputError, match=r"is encrypted; unpack the zip with its password"):
            image_tree(path, "")

    def test_a_method_that_takes_any_memory(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"is packed by a method that is not read here"):
            image_tree(packed(tree(tmp_path / "tree"), zipfile.ZIP_LZMA), "train")

    @pytest.mark.parametrize("cut", [0, 10, 100, -1, -30])
    def test_a_zip_that_was_cut_off(self, cut: int, tmp_path: Path) -> None:
        path = packed(tree(tmp_path / "tree"))
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(InputError, match=r"tree.zip is neither a folder nor a zip of images"):
            image_tree(path, "train")

    def test_content_that_does_not_match_its_checksum(self, tmp_path: Path) -> None:
        path = packed(tree(tmp_path / "tree"), zipfile.ZIP_STORED)
        content = bytearray(path.read_bytes())
        content[60] ^= 0xFF
        path.write_bytes(bytes(content))
        with pytest.raises(InputError, match=r"test/cat/a.png (cannot be unpacked|is not)"):
            image_tree(path, "test").decode([0, 1], 4)

    def test_a_pipe_with_the_name_of_a_zip(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "tree.zip")
        with pytest.raises(InputError, match=r"tree.zip cannot be read: it is a pipe"):
            image_tree(tmp_path / "tree.zip", "train")


class TestPackedSets:
    def idx(
        self, folder: Path, shape: tuple[int, ...] = (3, 2, 2), labels: bytes = b"\x01\x02\x03"
    ) -> tuple[Path, Path]:
        images, numbers = folder / "images.gz", folder / "labels"
        head = struct.pack(">HBB", 0, 8, 3) + b"".join(struct.pack(">I", length) for length in shape)
        images.write_bytes(gzip.compress(head + bytes(12)))
        numbers.write_bytes(struct.pack(">HBBI", 0, 8, 1, len(labels)) + labels)
        return images, numbers

    def test_a_good_one(self, tmp_path: Path) -> None:
        assert len(idx_images(*self.idx(tmp_path))) == 3

    @pytest.mark.parametrize("shape", [(3, 2, 3), (2, 2, 2), (0, 2, 2), (2**32 - 1, 2**32 - 1, 2**32 - 1)])
    def test_idx_files_that_declare_something_else(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"images.gz declares"):
            idx_images(*self.idx(tmp_path, shape))

    @pytest.mark.parametrize(
        ("labels", "said"), [(b"\x01\x02", "2 labels and 3 pictures"), (b"\x01\x0a\x02", "0 to 9, got 10")]
    )
    def test_idx_labels_that_do_not_fit(self, labels: bytes, said: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=said):
            idx_images(*self.idx(tmp_path, labels=labels))

    def test_idx_files_that_were_cut_off(self, tmp_path: Path) -> None:
        images, numbers = self.idx(tmp_path)
        whole = images.read_bytes()
        for cut in (0, 3, 12, len(whole) - 9, len(whole) - 1):
            images.write_bytes(whole[:cut])
            with pytest.raises(InputError, match=r"images.gz"):
                idx_images(images, numbers)

    def test_a_gzip_that_unpacks_to_more_than_it_declares(self, tmp_path: Path) -> None:
        images, numbers = self.idx(tmp_path)
        head = gzip.decompress(images.read_bytes())[:16]
        images.write_bytes(gzip.compress(head + bytes(20_000_000)))
        with pytest.raises(InputError, match=r"declares 12 values and has more"):
            idx_images(images, numbers)

    @pytest.mark.parametrize(
        "batch",
        [
            b"",
            b"garbage",
            pickle.dumps([1, 2]),
            pickle.dumps({b"data": b"x", b"labels": [1]}),
            pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]}),
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}),
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 11]}),
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, "x"]}),
            pickle.dumps({b"data": np.zeros((2, 99), np.uint8), b"labels": [1, 2]}),
            pickle.dumps(os.system),
        ],
    )
    def test_batches_that_are_none(self, batch: bytes, tmp_path: Path) -> None:
        (tmp_path / "test_batch").write_bytes(batch)
        with pytest.raises(InputError, match=r"test_batch"):
            cifar10_batches(tmp_path, False)

    def test_a_matlab_file_that_declares_too_much(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "test_32x32.mat"
        scipy.io.savemat(path, {"X": np.zeros((4, 4, 3, 5), np.uint8), "y": np.ones((5, 1))}, do_compression=True)
        assert len(svhn(path)) == 5
        monkeypatch.setattr(packed_images, "LARGEST_SET", 100)
        with pytest.raises(InputError, match=r"declares more than 100 values"):
            svhn(path)

    @pytest.mark.parametrize(
        "content", [b"", b"garbage" * 100, {"X": np.zeros(3)}, {"y": np.zeros(3)}, {"X": "a", "y": 1}]
    )
    def test_matlab_files_that_are_none(self, content: bytes | dict[str, object], tmp_path: Path) -> None:
        path = tmp_path / "test_32x32.mat"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            scipy.io.savemat(path, content)
        with pytest.raises(InputError, match=r"test_32x32.mat"):
            svhn(path)

    def test_weights_that_are_none(self, tmp_path: Path) -> None:
        for content in (b"", b"weights", pickle.dumps({"a": os.system})):
            (tmp_path / "w.pt").write_bytes(content)
            with pytest.raises(InputError, match=r"w.pt is not a state dict that can be read"):
                BackboneOptions("small", weights=str(tmp_path / "w.pt")).build()
        torch.save([1, 2], tmp_path / "w.pt")
        with pytest.raises(InputError, match=r"w.pt holds a list, not a state dict"):
            BackboneOptions("small", weights=str(tmp_path / "w.pt")).build()


class TestTables:
    def test_a_pipe_for_a_table(self, tmp_path: Path) -> None:
        (tmp_path / "medical").mkdir()
        for name in ("Training.csv", "Testing.csv"):
            os.mkfifo(tmp_path / "medical" / name)
        with pytest.raises(InputError, match=r"Training.csv cannot be read: it is a pipe"):
            kaggle.read(str(tmp_path))

    def test_one_wide_field_does_not_widen_all_others(self, tmp_path: Path) -> None:
        """As an array of texts this would be 100,000 x 20 x 2,000 x 4 bytes: 16 GB."""
        (tmp_path / "medical").mkdir()
        names = ",".join([*(f"s{number}" for number in range(19)), "prognosis"])
        rows = [*(["0," * 19 + "Acne"] * 2000), "0," * 19 + "x" * 100_000]
        for name in ("Training.csv", "Testing.csv"):
            (tmp_path / "medical" / name).write_text("\n".join([names, *rows]))
        with pytest.raises(InputError, match=r"has 19 symptom columns"):
            kaggle.read(str(tmp_path))

    def test_what_a_message_quotes_is_short(self, tmp_path: Path) -> None:
        (tmp_path / "medical").mkdir()
        for name in ("Training.csv", "Testing.csv"):
            (tmp_path / "medical" / name).write_text(f"a,prognosis\n{'x' * 100_000},Acne\n")
        with pytest.raises(InputError, match=r"expected 0 or 1, got 'xxx") as error:
            kaggle.read(str(tmp_path))
        assert len(str(error.value)) < 500

    def test_a_pipe_for_a_text(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "t.txt")
        with pytest.raises(InputError, match=r"data.text: .*t.txt cannot be read: it is a pipe"):
            words_of(str(tmp_path / "t.txt"))
        with pytest.raises(InputError, match=r"data.text: .*no such user"):
            words_of("~nobody-of-that-name/t.txt")

"""Sets of images: folders, zips, idx, pickled batches; their order, their fingerprints, and what a missing one says."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nbsr_core.domains.vision.data import Source, VisionData
from nbsr_core.domains.vision.embedded import noise
from nbsr_core.domains.vision.image_files import image_tree
from nbsr_core.domains.vision.images import dealt_out
from nbsr_core.domains.vision.packed_images import CIFAR10, cifar10_batches, idx_images
from nbsr_core.errors import InputError


def write_tree(folder: Path, per_class: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """PNG files train/<class>/NN.png of random pixels; returns what was written, by path."""
    rng, written = np.random.default_rng(seed), {}
    for part in ("train", "test"):
        for name in ("cat", "dog", "emu"):
            for number in range(per_class):
                file = folder / part / name / f"{number:02d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(file)
                written[str(file.relative_to(folder))] = pixels
    return written


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder))
    return path


class TestOrder:
    @given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    def test_every_stretch_is_a_fair_sample(self, sizes: list[int]) -> None:
        labels = [label for label, size in enumerate(sizes) for _ in range(size)]
        order = dealt_out(labels, [str(row) for row in range(len(labels))])
        assert sorted(order) == list(range(len(labels)))
        for stop in range(1, len(labels) + 1):
            counts = Counter(labels[row] for row in order[:stop])
            for label, size in enumerate(sizes):
                assert abs(counts[label] - stop * size / len(labels)) <= len(sizes)

    def test_rows_of_a_class_are_shuffled(self) -> None:
        order = dealt_out([0] * 100, [str(row) for row in range(100)])
        assert order != sorted(order)
        assert order == dealt_out([0] * 100, [str(row) for row in range(100)])


class TestTree:
    def test_pixels_and_labels_are_those_of_the_files(self, tmp_path: Path) -> None:
        written = write_tree(tmp_path / "tree")
        images = image_tree(tmp_path / "tree", "train")
        pixels = images.decode(range(len(images)), 8)
        assert list(images.class_names) == ["cat", "dog", "emu"]
        for row, file in enumerate(images.files):
            assert np.array_equal(pixels[row].permute(1, 2, 0).numpy(), written[file])
            assert images.class_names[images.labels[row]] == Path(file).parent.name

    def test_a_zip_is_read_like_the_folder_in_it(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "tree")
        plain, packed = image_tree(tmp_path / "tree", "test"), image_tree(zipped(tmp_path / "tree"), "test")
        assert list(plain.labels) == list(packed.labels)
        assert torch.equal(plain.decode([3, 0, 7], 8), packed.decode([3, 0, 7], 8))

    def test_fingerprint_follows_the_content(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "a")
        write_tree(tmp_path / "b")
        first, second = image_tree(tmp_path / "a", "train"), image_tree(tmp_path / "b", "train")
        assert first.fingerprint == second.fingerprint
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "b" / "train" / "cat" / "00.png")
        assert image_tree(tmp_path / "b", "train").fingerprint != first.fingerprint

    def test_other_sizes_are_scaled(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "tree")
        assert image_tree(tmp_path / "tree", "train").decode([0, 1], 20).shape == (2, 3, 20, 20)

    def test_what_is_wrong_is_said(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "tree")
        with pytest.raises(InputError, match="class folders cat, dog; it has 'emu' too"):
            image_tree(tmp_path / "tree", "train", ["cat", "dog"])
        with pytest.raises(InputError, match="no images under valid/"):
            image_tree(tmp_path / "tree", "valid")
        (tmp_path / "tree" / "train" / "cat" / "00.png").write_bytes(b"no picture")
        images = image_tree(tmp_path / "tree", "train")
        with pytest.raises(InputError, match=r"cat/00\.png is not an image"):
            images.decode(range(len(images)), 8)
        (tmp_path / "broken.zip").write_bytes(b"no zip")
        with pytest.raises(InputError, match="neither a folder nor a zip"):
            image_tree(tmp_path / "broken.zip", "train")


class TestFiles:
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_idx(self, tmp_path: Path, end: str) -> None:
        pixels = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)
        contents = {
            "images": struct.pack(">BBBB3i", 0, 0, 8, 3, 5, 4, 4) + pixels.tobytes(),
            "labels": struct.pack(">BBBBi", 0, 0, 8, 1, 5) + bytes([4, 1, 1, 0, 2]),
        }
        for name, content in contents.items():
            (tmp_path / f"{name}{end}").write_bytes(gzip.compress(content) if end else content)
        images = idx_images(tmp_path / f"images{end}", tmp_path / f"labels{end}")
        found = {(label, images.pixels[row, 0].sum().item()) for row, label in enumerate(images.labels)}
        assert found == {(label, int(pixels[row].sum())) for row, label in enumerate([4, 1, 1, 0, 2])}
        assert torch.equal(images.pixels[:, 0], images.pixels[:, 2])
        with pytest.raises(InputError, match="not an idx file"):
            idx_images(tmp_path / f"labels{end}", tmp_path / f"labels{end}")

    def test_pickled_batches_as_torchvision_downloads_them(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        data = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        batch = {b"data": data, b"labels": [row % 10 for row in range(20)]}
        (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
        images = cifar10_batches(tmp_path, train=False)
        assert Counter(images.labels) == dict.fromkeys(range(10), 2)
        rows = {bytes(row) for row in images.pixels.flatten(1).numpy()}
        assert rows == {bytes(row) for row in data}

    def test_a_data_file_runs_no_code(self, tmp_path: Path) -> None:
        class Malicious:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return os.system, (f"touch {tmp_path / 'harm'}",)

        (tmp_path / "test_batch").write_bytes(pickle.dumps(Malicious()))
        with pytest.raises(InputError, match="is not CIFAR-10"):
            cifar10_batches(tmp_path, train=False)
        assert not (tmp_path / "harm").exists()


class TestNoise:
    def test_every_value_is_as_likely_or_gaussian_and_cut_off(self) -> None:
        images = noise()
        labels = torch.tensor(images.labels)
        uniform, gaussian = (images.pixels[labels == label].flatten() for label in (0, 1))
        counts = uniform.bincount(minlength=256).double()
        assert float((counts / counts.mean() - 1).abs().max()) < 0.05
        assert float(uniform.double().std()) == pytest.approx(255 / 12**0.5, rel=0.01)
        # A standard normal lies beyond half its spread with a chance of 0.3085 on either side.
        for end in (0, 255):
            assert float((gaussian == end).double().mean()) == pytest.approx(0.309, abs=0.005)

    def test_it_is_the_same_for_everybody(self) -> None:
        assert noise().fingerprint == noise().fingerprint

    def test_any_few_are_of_both_kinds(self) -> None:
        assert Counter(noise().labels[:10]) == {0: 5, 1: 5}


class TestMissing:
    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (VisionData(source="cifar10", ood=()), r"looked for cifar-10-batches-py.* in .*cifar10 .*CIFAR10\("),
            (VisionData(ood=("mnist",)), r"looked for t10k-images.* in .*mnist .*torchvision\.datasets\.MNIST"),
            (VisionData(ood=("svhn",)), r"looked for test_32x32\.mat in .*svhn .*torchvision\.datasets\.SVHN"),
            (VisionData(source="nowhere", ood=()), "digits, cifar10 or the path of an image tree, got 'nowhere'"),
            (VisionData(ood=("fashion",)), r"looked for fashion\.zip or .* in .*fashion .*torchvision.*FashionMNIST"),
            (VisionData(ood=("nowhere",)), "patches, digits, noise, .*, svhn or the path .* got 'nowhere'"),
        ],
        ids=["cifar10", "mnist", "svhn", "source", "fashion", "ood"],
    )
    def test_says_where_it_looked_and_how_to_get_it(
        self, data: VisionData, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NBSR_DATA", str(tmp_path))
        with pytest.raises(InputError, match=said):
            _ = Source(data).sets

    @pytest.mark.parametrize("ood", [("digits", "elsewhere/digits.zip"), ("mine/test",)])
    def test_figures_must_not_mix_two_sets(self, ood: tuple[str, ...]) -> None:
        with pytest.raises(InputError, match=f"sets of different names, none of them 'test', got .*{ood[-1]}"):
            VisionData(ood=ood)

    def test_without_a_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NBSR_DATA", raising=False)
        with pytest.raises(InputError, match=r"data\.root or NBSR_DATA"):
            _ = Source(VisionData(source="cifar10")).train


@pytest.mark.skipif(
    not Path(os.environ.get("NBSR_DATA", "/nowhere"), "cifar10").exists(), reason="NBSR_DATA has no cifar10"
)
def test_the_real_cifar10() -> None:
    source = Source(VisionData(source="cifar10", ood=()))
    assert (len(source.train), len(source.test)) == (50_000, 10_000)
    assert tuple(source.train.class_names) == CIFAR10
    assert Counter(source.train.labels[:1000]) == dict.fromkeys(range(10), 100)
    share = source.train.decode(range(2000), 32).float().div(255)
    # What the original pictures have over all 50,000, as everybody normalises them.
    assert torch.allclose(share.mean((0, 2, 3)), torch.tensor([0.4914, 0.4822, 0.4465]), atol=0.015)
    assert torch.allclose(share.std((0, 2, 3)), torch.tensor([0.2470, 0.2435, 0.2616]), atol=0.015)


@pytest.mark.skipif(
    not Path(os.environ.get("NBSR_DATA", "/nowhere"), "fashion").exists(), reason="NBSR_DATA has no fashion"
)
def test_the_real_fashion_mnist() -> None:
    (images,) = Source(VisionData(ood=("fashion",))).ood.values()
    assert Counter(images.labels) == dict.fromkeys(range(10), 500)
    pixels = images.decode(range(50), 32)
    assert torch.equal(pixels[:, 0], pixels[:, 1])
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    assert float((pixels == 0).double().mean()) > 0.2, "clothes on black"

"""Which pictures a seed takes: other ones to learn from and to validate on, the same ones to be judged on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.domains.domain import find_domain
from nbsr_core.domains.vision.data import OracleOptions, Source, VisionData, load
from nbsr_core.domains.vision.images import PixelSet, png
from nbsr_core.domains.vision.models import taxonomy
from nbsr_core.domains.vision.packed_images import CIFAR10
from nbsr_core.domains.vision.selection import known_classes, select
from nbsr_core.errors import InputError

FEATURES = VisionData(oracle=OracleOptions("small", "none", 16))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSR_CACHE", str(tmp_path / "cache"))


def pictures(sizes: list[int]) -> PixelSet:
    """A set with so many pictures of each class."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    blank = torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8)
    return PixelSet.dealt("blank", [f"class {label}" for label in range(len(sizes))], labels, blank)


class TestSelection:
    sizes = st.lists(st.integers(1, 40), min_size=2, max_size=5).filter(lambda sizes: sum(sizes) > 10)

    @given(sizes, st.floats(0.05, 0.5), st.integers(0, 1000))
    def test_training_pictures_are_dealt_between_learning_and_validation(
        self, sizes: list[int], valid: float, seed: int
    ) -> None:
        images = pictures(sizes)
        chosen = select(images, images, seed, valid=valid)
        assert sorted([*chosen.train.tolist(), *chosen.valid.tolist()]) == list(range(len(images)))
        held_out = Counter(images.labels[row] for row in chosen.valid.tolist())
        for label, size in enumerate(sizes):
            assert abs(held_out[label] - len(chosen.valid) * size / len(images)) <= len(sizes)

    @given(sizes, st.integers(1, 60), st.integers(0, 20))
    def test_a_subset_is_a_stretch_and_the_next_seeds_goes_on_behind_it(
        self, sizes: list[int], subset: int, seed: int
    ) -> None:
        images = pictures(sizes)
        taken = [learned_from(images, subset, number) for number in (seed, seed + 1)]
        assert [len(rows) for rows in taken] == [min(subset, len(images))] * 2
        if 2 * subset <= len(images):
            assert not taken[0] & taken[1]
        counts = Counter(images.labels[row] for row in taken[0])
        for label, size in enumerate(sizes):
            assert abs(counts[label] - len(taken[0]) * size / len(images)) <= 2 * len(sizes)

    def test_all_pictures_are_taken_by_some_seed(self) -> None:
        images = pictures([30, 30])
        assert set().union(*(learned_from(images, 25, seed) for seed in range(3))) == set(range(60))

    def test_models_of_all_seeds_are_judged_on_the_same_pictures(self) -> None:
        images = pictures([30, 30])
        for subset, judged in ((None, 60), (50, 10)):
            rows = [select(images, images, seed, subset=subset).test for seed in range(3)]
            assert all(torch.equal(one, torch.arange(judged)) for one in rows)


def learned_from(images: PixelSet, subset: int, seed: int) -> set[int]:
    chosen = select(images, images, seed, subset=subset)
    return {*chosen.train.tolist(), *chosen.valid.tolist()}


class TestSeeds:
    def test_validate_on_other_pictures_and_are_tested_on_the_same(self) -> None:
        first, again, other = (load(VisionData(), seed) for seed in (0, 0, 1))
        assert torch.equal(first.valid.x, again.valid.x)
        assert not torch.equal(first.valid.x, other.valid.x)
        assert torch.equal(first.test.x, other.test.x)
        assert torch.equal(first.ood["patches"], other.ood["patches"])
        for one in (first, other):
            counts = one.valid.y.bincount()
            assert int(counts.max() - counts.min()) <= 2, "every class has its share"

    def test_do_not_change_the_fingerprint(self) -> None:
        domain = find_domain("vision")
        assert {domain.load(FEATURES, seed).fingerprint() for seed in (0, 7)} == {domain.fingerprint(FEATURES)}

    def test_share_what_was_computed(self, tmp_path: Path) -> None:
        load(FEATURES, 0)
        before = stamps(tmp_path)
        assert before
        second = load(FEATURES, 1)
        assert stamps(tmp_path) == before
        source = Source(FEATURES)
        rows = source.selection(1).train
        assert torch.equal(second.train.x, source.tables(source.train)[0].read(torch.arange(len(source.train)))[rows])

    def test_find_all_that_they_need_prepared(self, tmp_path: Path) -> None:
        domain, data = find_domain("vision"), replace(FEATURES, subset=100)
        for work in domain.prepare(data, [0, 3]):
            work.run()
        before = stamps(tmp_path)
        for seed in (0, 3):
            assert len(domain.load(data, seed).train) == 90
        assert {file for file in stamps(tmp_path) if file.suffix == ".npz"} <= before.keys()
        assert all(work.done for work in domain.prepare(data, [3]))

    def test_show_the_picture_that_was_asked_for(self) -> None:
        domain, data = find_domain("vision"), VisionData(subset=200)
        for seed in (0, 2):
            assert domain.portrait(data, seed, 5) == png(domain.load(data, seed).test.x[5])


class TestKnownClasses:
    @given(TestSelection.sizes.filter(lambda sizes: len(sizes) > 2), st.integers(0, 100), st.data())
    def test_the_rest_of_the_test_pictures_are_unknown(self, sizes: list[int], seed: int, data: st.DataObject) -> None:
        images = pictures(sizes)
        known = data.draw(st.integers(2, len(sizes) - 1))
        chosen = select(images, images, seed, known=known)
        labels, classes = torch.tensor(images.labels), set(chosen.classes.tolist())
        assert len(classes) == known
        assert sorted([*chosen.test.tolist(), *chosen.unknown.tolist()]) == list(range(len(images)))
        assert not classes & set(labels[chosen.unknown].tolist())
        for rows in (chosen.train, chosen.valid, chosen.test):
            assert torch.equal(chosen.classes[chosen.labels(images, rows)], labels[rows])

    def test_a_number_stands_for_other_classes_with_every_seed(self) -> None:
        drawn = [tuple(known_classes(CIFAR10, 6, seed)) for seed in range(200)]
        assert drawn[:5] == [tuple(known_classes(CIFAR10, 6, seed)) for seed in range(5)]
        assert len(set(drawn[:5])) == 5
        counts = Counter(label for classes in drawn for label in classes)
        # Binomial: 120 of 200 expected, with a spread of 7.
        assert all(abs(counts[label] - 120) < 30 for label in range(10))

    def test_names_stand_for_themselves(self) -> None:
        for seed in range(3):
            splits = load(VisionData(known=("8", "3", "5"), ood=()), seed)
            assert splits.class_names == ["3", "5", "8"]
            assert sorted(splits.train.y.unique().tolist()) == [0, 1, 2]
            assert len(splits.test) + len(splits.ood["unknown_classes"]) == 360

    def test_with_a_subset_each_part_has_its_number(self) -> None:
        splits = load(VisionData(known=6, subset=100), 3)
        assert (len(splits.train), len(splits.valid), len(splits.test)) == (90, 10, 20)
        assert {name: len(x) for name, x in splits.ood.items()} == {"unknown_classes": 20, "patches": 20}
        assert "100 training and 20 test pictures of 6 of 10 classes" in splits.source

    def test_a_picture_is_shown_as_the_seed_counts_them(self) -> None:
        domain, data = find_domain("vision"), VisionData(known=6)
        shown = [domain.portrait(data, seed, 40) for seed in (0, 1)]
        assert shown == [png(domain.load(data, seed).test.x[40]) for seed in (0, 1)]
        assert shown[0] != shown[1]

    def test_all_of_them_is_another_study(self) -> None:
        domain, data = find_domain("vision"), VisionData(known=6)
        fingerprints = {domain.fingerprint(replace(data, known=known)) for known in (None, 6, ("1", "2"))}
        assert len(fingerprints) == 3
        assert domain.preview(data).signature.class_names == domain.load(data, 0).class_names

    @given(st.sets(st.sampled_from(CIFAR10), min_size=2))
    def test_a_taxonomy_keeps_what_is_known(self, known: set[str]) -> None:
        graph, whole = taxonomy(sorted(known)), taxonomy(CIFAR10)
        assert graph is not None
        assert whole is not None
        expected = {node.name: [name for name in node.classes if name in known] for node in whole.nodes}
        assert {node.name: list(node.classes) for node in graph.nodes} == {
            name: classes for name, classes in expected.items() if classes
        }

    @pytest.mark.parametrize(
        ("known", "said"),
        [
            (1, "known must be at least 2 classes, got 1"),
            (("1",), "known must name at least 2 classes, each once, got 1"),
            (("1", "1"), "each once, got 1, 1"),
            (10, r"data\.known must be below 10, the number of classes, got 10"),
            (("1", "cat"), r"data\.known must be some of the classes 0, 1, .*, 9, got 1, cat"),
            (tuple("0123456789"), r"data\.known must be some of the classes"),
        ],
    )
    def test_what_cannot_be_known_is_said(self, known: int | tuple[str, ...], said: str) -> None:
        with pytest.raises(InputError, match=said):
            find_domain("vision").preview(VisionData(known=known))


def stamps(folder: Path) -> dict[Path, int]:
    """When each file of the cache was written."""
    return {file: file.stat().st_mtime_ns for file in (folder / "cache").rglob("*") if file.is_file()}

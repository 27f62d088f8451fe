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
from nbsr_core.domains.vision.images import dealt_out, png
from nbsr_core.domains.vision.selection import select

FEATURES = VisionData(oracle=OracleOptions("small", "none", 16))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSR_CACHE", str(tmp_path / "cache"))


def labels_of(sizes: list[int]) -> list[int]:
    """Labels of a set with so many pictures of each class, in the order in which sets have them."""
    plain = [label for label, size in enumerate(sizes) for _ in range(size)]
    return [plain[row] for row in dealt_out(plain, [str(row) for row in range(len(plain))])]


class TestSelection:
    sizes = st.lists(st.integers(1, 40), min_size=2, max_size=5).filter(lambda sizes: sum(sizes) > 10)

    @given(sizes, st.floats(0.05, 0.5), st.integers(0, 1000))
    def test_training_pictures_are_dealt_between_learning_and_validation(
        self, sizes: list[int], valid: float, seed: int
    ) -> None:
        labels = labels_of(sizes)
        chosen = select(labels, [], None, valid, seed)
        assert sorted([*chosen.train.tolist(), *chosen.valid.tolist()]) == list(range(len(labels)))
        held_out = Counter(labels[row] for row in chosen.valid.tolist())
        for label, size in enumerate(sizes):
            assert abs(held_out[label] - len(chosen.valid) * size / len(labels)) <= len(sizes)

    @given(sizes, st.integers(1, 60), st.integers(0, 20))
    def test_a_subset_is_a_stretch_and_the_next_seeds_goes_on_behind_it(
        self, sizes: list[int], subset: int, seed: int
    ) -> None:
        labels = labels_of(sizes)
        taken = [self.learned_from(labels, subset, number) for number in (seed, seed + 1)]
        assert [len(rows) for rows in taken] == [min(subset, len(labels))] * 2
        if 2 * subset <= len(labels):
            assert not taken[0] & taken[1]
        counts = Counter(labels[row] for row in taken[0])
        for label, size in enumerate(sizes):
            assert abs(counts[label] - len(taken[0]) * size / len(labels)) <= 2 * len(sizes)

    def test_all_pictures_are_taken_by_some_seed(self) -> None:
        labels = labels_of([30, 30])
        assert set().union(*(self.learned_from(labels, 25, seed) for seed in range(3))) == set(range(60))

    def test_models_of_all_seeds_are_judged_on_the_same_pictures(self) -> None:
        labels = labels_of([30, 30])
        for subset, judged in ((None, 60), (50, 10)):
            rows = [select(labels, labels, subset, 0.1, seed).test for seed in range(3)]
            assert all(torch.equal(one, torch.arange(judged)) for one in rows)

    @staticmethod
    def learned_from(labels: list[int], subset: int, seed: int) -> set[int]:
        chosen = select(labels, [], subset, 0.2, seed)
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


def stamps(folder: Path) -> dict[Path, int]:
    """When each file of the cache was written."""
    return {file: file.stat().st_mtime_ns for file in (folder / "cache").rglob("*") if file.is_file()}

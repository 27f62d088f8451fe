"""Medical data: the embedded table, the Kaggle files (made up here in their format, or real), noise and ceiling."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nbsr_core.domains import triage
from nbsr_core.domains.medical import (
    MedicalData,
    SymptomProfiles,
    bayes_posterior,
    flip,
    graph,
    knowledge,
    load,
    systems,
)
from nbsr_core.errors import InputError

SMALL = MedicalData(train_patients=300, valid_patients=200, test_patients=100, draws=3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def patterns(x: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.tolist()}


class TestKnowledge:
    def test_size_and_use_of_every_symptom(self) -> None:
        table = knowledge()
        themes = list(table.theme_of.values())
        background = table.chance.min()
        assert table.chance.shape == (len(set(table.diseases)), len(set(table.symptoms))) == (41, 132)
        assert [themes.count(theme) for theme in dict.fromkeys(themes)] == [12, 24, 24, 24, 24, 24]
        assert bool(((table.chance > background).any(0)).all())
        assert len(patterns(table.chance)) == 41
        assert systems() == ("Hepatic", "Respiratory", "Dermatological", "Cardio/Neuro")

    def test_diseases_can_be_told_apart_but_not_always(self) -> None:
        patients = knowledge().sample(20_000, generator())
        probs = bayes_posterior(patients.x, SymptomProfiles.of_diseases(knowledge().chance), noise=0.0)
        assert 0.93 < (probs.argmax(1) == patients.y).double().mean() < 0.995

    def test_patients_follow_the_table(self) -> None:
        table = knowledge()
        patients = table.sample(60_000, generator(1))
        for k in range(41):
            own = patients.x[patients.y == k].double()
            assert abs(len(own) - 60_000 / 41) < 5.5 * (60_000 / 41) ** 0.5
            deviation = (table.chance[k] * (1 - table.chance[k]) / len(own)).sqrt()
            assert bool(((own.mean(0) - table.chance[k]).abs() < 6 * deviation).all())

    def test_symptoms_are_independent_given_the_disease(self) -> None:
        table = knowledge()
        only = torch.zeros(41)
        only[3] = 1.0
        patients = table.sample(40_000, generator(2), prior=only)
        assert bool((patients.y == 3).all())
        shown = patients.x[:, table.chance[3] > 0.1]
        correlation = torch.corrcoef(shown.T) - torch.eye(shown.shape[1])
        assert correlation.abs().max() < 6 / 40_000**0.5

    @pytest.mark.parametrize("prior", [torch.ones(40), torch.zeros(41), -torch.ones(41)])
    def test_a_wrong_prior_is_refused(self, prior: Tensor) -> None:
        with pytest.raises(InputError, match="prior"):
            knowledge().sample(5, generator(), prior=prior)


class TestNoise:
    @given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.0, 0.02, 0.05, 0.3, 0.5]))
    def test_each_symptom_flips_at_the_rate(self, seed: int, rate: float) -> None:
        x = (torch.rand(400, 132, generator=generator(seed + 1)) < 0.1).float()
        noisy = flip(x, rate, generator(seed))
        changed = noisy != x
        assert bool(torch.isin(noisy, torch.tensor([0.0, 1.0])).all())
        assert abs(changed.double().mean() - rate) <= 6 * (rate * (1 - rate) / x.numel()) ** 0.5
        assert torch.equal(flip(noisy, rate, generator(seed)), x), "the same flips again undo the first"

    def test_zeros_and_ones_flip_alike(self) -> None:
        ones = torch.ones(2000, 132)
        share = (flip(ones, 0.05, generator()) == 0).double().mean()
        share_of_zeros = (flip(1 - ones, 0.05, generator(1)) == 1).double().mean()
        assert share == pytest.approx(0.05, abs=0.003) == share_of_zeros


class TestCeiling:
    @staticmethod
    def by_enumeration(x: Tensor, profiles: SymptomProfiles, noise: float) -> Tensor:
        """Sums over every clean row that the patient may have had before the flips."""
        joint = torch.zeros(len(x), profiles.num_diseases, dtype=torch.float64)
        for r, clean in itertools.product(range(len(profiles.chance)), itertools.product([0.0, 1.0], repeat=4)):
            for n, seen in enumerate(x.tolist()):
                likelihood = float(profiles.weight[r])
                for p, z, s in zip(profiles.chance[r].tolist(), clean, seen, strict=True):
                    likelihood *= (p if z else 1 - p) * (noise if z != s else 1 - noise)
                joint[n, profiles.disease[r]] += likelihood
        return joint / joint.sum(1, keepdim=True)

    @settings(max_examples=15)
    @given(seed=st.integers(0, 1000), noise=st.sampled_from([0.01, 0.05, 0.3, 0.5]))
    def test_equals_the_sum_over_all_clean_rows(self, seed: int, noise: float) -> None:
        chances = torch.rand(5, 4, generator=generator(seed), dtype=torch.float64)
        weight = torch.rand(5, generator=generator(seed + 1), dtype=torch.float64)
        profiles = SymptomProfiles(chances, torch.tensor([0, 2, 2, 1, 0]), weight / weight.sum(), 3)
        x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
        torch.testing.assert_close(bayes_posterior(x, profiles, noise), self.by_enumeration(x, profiles, noise))

    def test_rows_of_a_file_are_weighted_by_frequency(self) -> None:
        x = torch.tensor([[1.0, 0, 0, 1], [1.0, 0, 0, 1], [1.0, 0, 0, 1], [0.0, 1, 0, 1], [1.0, 0, 0, 1]])
        profiles = SymptomProfiles.of_rows(x, torch.tensor([0, 0, 0, 1, 1]), num_diseases=2)
        assert len(profiles.chance) == 3
        assert bayes_posterior(x[:1], profiles, 0.0)[0].tolist() == pytest.approx([0.75, 0.25])
        torch.testing.assert_close(bayes_posterior(x, profiles, 0.1), self.by_enumeration(x, profiles, 0.1))

    def test_without_noise_an_unknown_row_goes_to_the_nearest_profile(self) -> None:
        known = torch.tensor([[1.0, 1, 0, 0], [0.0, 0, 1, 1]])
        profiles = SymptomProfiles.of_rows(known, torch.tensor([0, 1]), num_diseases=2)
        probs = bayes_posterior(torch.tensor([[1.0, 0, 0, 0], [1.0, 1, 1, 1]]), profiles, 0.0)
        assert probs[:, 0].tolist() == pytest.approx([1.0, 0.5])

    def test_no_disease_is_lost_in_large_inputs(self) -> None:
        patients = knowledge().sample(9000, generator())
        profiles = SymptomProfiles.of_diseases(knowledge().chance)
        probs = bayes_posterior(patients.x, profiles, 0.05)
        torch.testing.assert_close(probs.sum(1), torch.ones(9000, dtype=torch.float64))
        torch.testing.assert_close(probs[4090:4100], bayes_posterior(patients.x[4090:4100], profiles, 0.05))

    def test_wrong_number_of_symptoms(self) -> None:
        with pytest.raises(InputError, match="132 symptoms, got 131"):
            bayes_posterior(torch.zeros(2, 131), SymptomProfiles.of_diseases(knowledge().chance), 0.05)


@pytest.mark.usefixtures("without_shape_checks")
class TestOptions:
    @pytest.mark.parametrize(
        ("options", "key"),
        [
            ({"source": "web"}, "source"),
            ({"noise": 0.7}, "noise"),
            ({"noise": -0.1}, "noise"),
            ({"noise": float("nan")}, "noise"),
            ({"noise": "5%"}, "noise"),
            ({"noise_scheme": "often"}, "noise_scheme"),
            ({"split": "random"}, "split"),
            ({"draws": -1}, "draws"),
            ({"draws": 2.5}, "draws"),
            ({"train_patients": 0}, "train_patients"),
            ({"test_patients": True}, "test_patients"),
            ({"root": "somewhere"}, "root"),
            ({"root": 3, "source": "kaggle"}, "root"),
            ({"held_out": 0.5}, "held_out"),
            ({"held_out": float("nan")}, "held_out"),
            ({"held_out": 0, "split": "distinct"}, "held_out"),
        ],
    )
    def test_errors_name_the_key(self, options: dict[str, object], key: str) -> None:
        with pytest.raises(InputError, match=rf"^{key} "):
            MedicalData(**options)  # type: ignore[arg-type]

    def test_noise_may_be_written_as_a_whole_number(self) -> None:
        assert MedicalData(noise=0).noise == 0.0

    def test_wrong_seed(self) -> None:
        with pytest.raises(InputError, match="seed"):
            load(SMALL, -1)


class TestEmbedded:
    def test_says_that_it_is_synthetic(self) -> None:
        splits = load(SMALL, 0)
        assert splits.synthetic
        assert "synthetic patients from the embedded knowledge table" in splits.source
        assert splits.num_classes == 41
        assert len(splits.feature_names) == splits.train.x.shape[1] == 132

    def test_sizes(self) -> None:
        splits = load(SMALL, 0)
        sizes = [len(s) for s in (splits.train, splits.valid, splits.test, splits.extra["noise_draws"])]
        assert sizes == [300, 4000, 100, 300], "validation rows get noise draws until they are 4,000"
        assert torch.equal(splits.extra["noise_draws"].y, splits.test.y.repeat(3))
        assert load(replace(SMALL, draws=0), 0).extra == {}

    def test_the_seed_decides(self) -> None:
        first, again, other = load(SMALL, 5), load(SMALL, 5), load(SMALL, 6)
        assert first.fingerprint() == again.fingerprint() != other.fingerprint()
        for part in ("train", "valid", "test"):
            assert not torch.equal(getattr(first, part).x, getattr(other, part).x)

    def test_one_option_changes_only_its_own_part(self) -> None:
        base, more_draws = load(SMALL, 0), load(replace(SMALL, draws=7), 0)
        for part in ("train", "valid", "test"):
            assert torch.equal(getattr(base, part).x, getattr(more_draws, part).x)
        assert torch.equal(base.extra["noise_draws"].x, more_draws.extra["noise_draws"].x[:300])
        assert torch.equal(base.test.x, load(replace(SMALL, noise_scheme="fresh", train_patients=50), 0).test.x)

    def test_fixed_noise_is_in_the_rows_and_fresh_noise_in_the_augmentation(self) -> None:
        fixed, fresh = load(SMALL, 0), load(replace(SMALL, noise_scheme="fresh"), 0)
        assert (fixed.train.x != fresh.train.x).double().mean() == pytest.approx(0.05, abs=0.007)
        assert fixed.augment is None
        augment = pickle.loads(pickle.dumps(load(replace(SMALL, noise_scheme="fresh", noise=0.2), 0).augment))
        epochs = generator()
        one, two = augment(fresh.train.x, epochs), augment(fresh.train.x, epochs)
        assert (one != fresh.train.x).double().mean() == pytest.approx(0.2, abs=0.013)
        assert not torch.equal(one, two)

    def test_test_rows_and_their_draws_carry_noise(self) -> None:
        clean, noisy = load(replace(SMALL, noise=0.0), 0), load(SMALL, 0)
        assert torch.equal(clean.test.y, noisy.test.y)
        draws = noisy.extra["noise_draws"].x.view(3, 100, 132)
        for x in (noisy.test.x, *draws):
            assert (x != clean.test.x).double().mean() == pytest.approx(0.05, abs=0.012)
        assert torch.equal(clean.extra["noise_draws"].x, clean.test.x.repeat(3, 1))

    def test_distinct_leaves_out_patients_that_were_drawn_before(self) -> None:
        crowded = replace(SMALL, train_patients=4000, test_patients=2000, noise=0.0)
        plain, distinct = load(crowded, 1), load(replace(crowded, split="distinct"), 1)
        train, valid, test = (patterns(split.x) for split in (distinct.train, distinct.valid, distinct.test))
        assert not train & valid
        assert not (train | valid) & test
        assert torch.equal(plain.train.x, distinct.train.x)
        before = patterns(plain.train.x) | patterns(plain.valid.x)
        kept = [row for row in plain.test.x.tolist() if tuple(row) not in before]
        assert distinct.test.x.tolist() == kept
        assert 0 < len(kept) < len(plain.test), "some were drawn before, most were not"

    def test_the_ceiling_knows_table_and_noise(self) -> None:
        splits = load(MedicalData(draws=0, test_patients=4000), 0)

        def log_loss(noise: float) -> float:
            probs = bayes_posterior(splits.test.x, splits.profiles, noise)
            return -probs.gather(1, splits.test.y[:, None]).log().mean().item()

        probs = bayes_posterior(splits.test.x, splits.profiles, splits.noise)
        assert 0.93 < (probs.argmax(1) == splits.test.y).double().mean() < 0.97
        assert log_loss(splits.noise) < min(log_loss(0.0), log_loss(0.02), log_loss(0.1)), "it minimises the loss"


# The Kaggle format, made up ---------------------------------------------------------------------------------------

LABELS = ["Diabetes ", "Osteoarthristis", "Common Cold", "Acne"]
NAMES = ["Diabetes", "Common cold", "Acne", "Osteoarthritis"]
COLUMNS = ["itching", "skin_rash", "fluid_overload", "dischromic _patches", *(f"sign_{i}" for i in range(127))]
COLUMNS.insert(40, "fluid_overload.1")
Rows = list[list[str]]


def made_up_rows() -> tuple[Rows, Rows]:
    """Of each disease a full row (six symptoms, 5 times) and six rows that lack one of them (twice each)."""
    training: Rows = [[*COLUMNS, "prognosis", ""]]
    testing: Rows = [[*COLUMNS, "prognosis"]]
    for k, label in enumerate(LABELS):
        own = range(10 * k, 10 * k + 6)
        lacking = [None] * 5 + [f for f in own for _ in range(2)]
        rows = [["1" if f in own and f != out else "0" for f in range(132)] for out in lacking]
        training += [[*row, label, ""] for row in rows]
        testing.append([*rows[0], label])
    return training, testing


def write(folder: Path, training: Rows, testing: Rows) -> MedicalData:
    (folder / "medical").mkdir()
    for name, rows in (("Training.csv", training), ("Testing.csv", testing)):
        (folder / "medical" / name).write_text("".join(",".join(row) + "\n" for row in rows))
    return MedicalData(source="kaggle", root=str(folder), draws=2)


class TestKaggleFormat:
    def test_oddities_are_cleaned(self, tmp_path: Path) -> None:
        splits = load(write(tmp_path, *made_up_rows()), 0)
        assert list(splits.class_names) == NAMES
        assert len(splits.feature_names) == len(set(splits.feature_names)) == 132
        assert list(splits.feature_names[:4]) == ["itching", "skin rash", "fluid overload", "dischromic patches"]
        assert splits.feature_names[40] == "fluid overload (2)"
        assert not splits.synthetic
        assert "kaushil268" in splits.source

    def test_values_and_labels(self, tmp_path: Path) -> None:
        splits = load(replace(write(tmp_path, *made_up_rows()), noise=0.0), 0)
        assert len(splits.train) + len(splits.valid) == 17 * 4
        assert len(splits.valid) == 3 * 4
        for k, name in enumerate(NAMES):
            start = 10 * ["Diabetes", "Osteoarthritis", "Common cold", "Acne"].index(name)
            full = torch.zeros(132)
            full[start : start + 6] = 1
            assert torch.equal(splits.test.x[splits.test.y == k], full[None])
            rows = splits.train.x[splits.train.y == k]
            assert bool((rows <= full).all())
            assert bool((rows.sum(1) >= 5).all())

    @pytest.mark.parametrize("header", ["fluid_overload", "fluid_overload.1"])
    def test_columns_are_matched_by_name(self, tmp_path: Path, header: str) -> None:
        training, testing = made_up_rows()
        training[0][40] = header
        testing = [[row[132], *reversed(row[:132])] for row in testing]
        (tmp_path / "plain").mkdir()
        (tmp_path / "moved").mkdir()
        plain = load(write(tmp_path / "plain", *made_up_rows()), 0)
        moved = load(write(tmp_path / "moved", training, testing), 0)
        assert plain.fingerprint() == moved.fingerprint()
        assert plain.feature_names == moved.feature_names

    def test_the_environment_names_the_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = write(tmp_path, *made_up_rows())
        monkeypatch.setenv("NBSR_DATA", str(tmp_path))
        assert load(options, 0).fingerprint() == load(replace(options, root=None), 0).fingerprint()
        assert load(SMALL, 0).synthetic, "files that are there do not replace the embedded table"

    def test_validation_rows_get_enough_draws(self, tmp_path: Path) -> None:
        splits = load(write(tmp_path, *made_up_rows()), 0)
        assert len(splits.valid) >= 4000
        assert len(splits.extra["noise_draws"]) == 8

    def test_without_a_held_out_part_all_rows_train_and_validation_has_other_noise(self, tmp_path: Path) -> None:
        options = replace(write(tmp_path, *made_up_rows()), held_out=0.0, noise_scheme="fixed")
        clean, noisy = load(replace(options, noise=0.0), 0), load(options, 0)
        assert len(clean.train) == len(clean.valid) == len(noisy.train) == 17 * 4
        assert torch.equal(clean.train.x, clean.valid.x)
        first_draw = noisy.valid.x[: 17 * 4]
        both, either = (noisy.train.x != clean.train.x), (first_draw != clean.train.x)
        # Flipped in both: 0.05 squared, of 68 x 132 symptoms.
        assert (both & either).double().mean() == pytest.approx(0.0025, abs=0.002)

    def test_triage_trains_on_all_rows_too_and_chooses_thresholds_under_other_noise(self, tmp_path: Path) -> None:
        options = replace(write(tmp_path, *made_up_rows()), held_out=0.0)
        patients, bought = load(options, 0), triage.load(triage.TriageData(**asdict(options)), 0)
        assert torch.equal(bought.train.x, patients.train.x)
        assert torch.equal(bought.valid.x, patients.valid.x)
        assert len(bought.train) == 17 * 4
        assert len(bought.valid) >= 4000
        assert not torch.equal(bought.valid.x[: 17 * 4], bought.train.x)

    @pytest.mark.parametrize("seed", range(5))
    def test_distinct_shares_no_row(self, tmp_path: Path, seed: int) -> None:
        options = replace(write(tmp_path, *made_up_rows()), split="distinct", noise=0.0)
        splits = load(options, seed)
        parts = [patterns(split.x) for split in (splits.train, splits.valid, splits.test)]
        assert [len(part) for part in parts] == [20, 4, 4], "7 distinct rows of each disease: 5, 1 and 1"
        assert len(set.union(*parts)) == 28
        assert splits.train.y.bincount().tolist() == [17] * 4
        assert splits.test.y.bincount().tolist() == splits.valid.y.bincount().tolist() == [1] * 4
        assert bool((bayes_posterior(splits.test.x, splits.profiles, 0.0).argmax(1) == splits.test.y).all())

    def test_distinct_splits_differ_by_seed(self, tmp_path: Path) -> None:
        options = replace(write(tmp_path, *made_up_rows()), split="distinct", noise=0.0)
        assert len({load(options, seed).fingerprint() for seed in range(4)}) == 4
        assert load(options, 1).fingerprint() == load(options, 1).fingerprint()

    def test_graph_has_the_diseases_where_they_belong(self, tmp_path: Path) -> None:
        splits = load(write(tmp_path, *made_up_rows()), 0)
        built = graph(splits)
        assert [built.name(i) for i in built.levels[1]] == list(systems())
        owner = built.admissible(4, list(splits.class_names))
        for name, system in zip(NAMES, systems(), strict=True):
            assert owner[:, NAMES.index(name)].nonzero()[0].tolist() == sorted(
                [0, built.index(system), built.index(f"{system}-Leaf")]
            )


def drop_column(rows: Rows, name: str) -> None:
    place = rows[0].index(name)
    for row in rows:
        del row[place]


def put(rows: Rows, line: int, column: int, value: str) -> None:
    rows[line - 1][column] = value


def drop_a_symptom(train: Rows, test: Rows) -> None:
    drop_column(train, "sign_7")
    drop_column(test, "sign_7")


class TestKaggleErrors:
    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda train, _: drop_column(train, "itching"), r"Training\.csv lacks the column 'itching'"),
            (lambda _, test: drop_column(test, "sign_7"), r"Testing\.csv lacks the column 'sign_7'"),
            (drop_a_symptom, r"131 symptom columns .* expected 132"),
            (lambda train, _: drop_column(train, "prognosis"), r"Training\.csv lacks the column 'prognosis'"),
            (lambda train, _: put(train, 6, 1, "2"), r"Training\.csv, line 6, column 'skin_rash': .* 0 or 1, got '2'"),
            (lambda _, test: put(test, 2, 0, ""), r"Testing\.csv, line 2, column 'itching': .* got ''"),
            (lambda train, _: put(train, 9, 132, "  "), r"Training\.csv, line 9, column 'prognosis'"),
            (lambda train, _: put(train, 4, 133, "x"), r"Training\.csv, line 4, column 'unnamed 134': .* nothing"),
            (lambda _, test: put(test, 2, 132, "Plague"), r"Training\.csv has no row with the disease 'Plague'"),
            (lambda _, test: test.pop(), r"Testing\.csv has no row with the disease 'Acne'.*cut off"),
            (lambda train, _: train[-1].__delitem__(slice(50, None)), r"Training\.csv, line 69: .* got 50.*cut off"),
            (lambda train, _: train.clear(), r"Training\.csv is empty"),
            (lambda _, test: test.__delitem__(slice(1, None)), r"Testing\.csv is empty"),
        ],
    )
    def test_names_file_and_column(self, tmp_path: Path, spoil: Callable[[Rows, Rows], object], message: str) -> None:
        training, testing = made_up_rows()
        spoil(training, testing)
        with pytest.raises(InputError, match=message):
            load(write(tmp_path, training, testing), 0)

    def test_no_text(self, tmp_path: Path) -> None:
        options = write(tmp_path, *made_up_rows())
        (tmp_path / "medical" / "Testing.csv").write_bytes(b"PK\x03\x04\xff\xfe\x00")
        with pytest.raises(InputError, match=r"Testing\.csv is not UTF-8 text"):
            load(options, 0)

    def test_too_few_rows_to_split(self, tmp_path: Path) -> None:
        training, testing = made_up_rows()
        training = [row for i, row in enumerate(training) if not (row[132] == "Acne" and i < 67)]
        options = write(tmp_path, training, testing)
        with pytest.raises(InputError, match="'Acne' has 2 rows, too few to be cut into 3"):
            load(replace(options, split="distinct"), 0)

    def test_equal_symptoms_of_two_diseases_cannot_be_kept_apart(self, tmp_path: Path) -> None:
        training, testing = made_up_rows()
        training.append([*training[1][:132], "Acne", ""])
        options = write(tmp_path, training, testing)
        with pytest.raises(InputError, match="'Acne' and 'Diabetes' have equal symptoms"):
            load(replace(options, split="distinct"), 0)
        load(options, 0)

    def test_a_disease_of_no_system_has_no_place_in_the_graph(self, tmp_path: Path) -> None:
        training, testing = ([[c.replace("Acne", "Plague") for c in row] for row in rows] for rows in made_up_rows())
        splits = load(write(tmp_path, training, testing), 0)
        assert splits.class_names[-1] == "Plague"
        with pytest.raises(InputError, match="'Plague'"):
            graph(splits)

    def test_absent_files_say_what_to_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NBSR_DATA", raising=False)
        with pytest.raises(InputError, match="neither `root` nor the environment variable NBSR_DATA") as nowhere:
            load(MedicalData(source="kaggle"), 0)
        with pytest.raises(InputError, match=r"medical.Training\.csv and .*medical.Testing\.csv.*`root`") as empty:
            load(MedicalData(source="kaggle", root=str(tmp_path)), 0)
        options = write(tmp_path, *made_up_rows())
        (tmp_path / "medical" / "Testing.csv").unlink()
        monkeypatch.setenv("NBSR_DATA", str(tmp_path))
        with pytest.raises(InputError, match=r"did not find \S*Testing\.csv;.*variable NBSR_DATA") as partial:
            load(replace(options, root=None), 0)
        for error in (nowhere, empty, partial):
            assert "kaushil268/disease-prediction-using-machine-learning" in str(error.value)
            assert "source: embedded" in str(error.value)


# The real files ---------------------------------------------------------------------------------------------------

has_files = (Path(os.environ.get("NBSR_DATA", "")) / "medical" / "Training.csv").is_file()


@pytest.mark.skipif(not has_files, reason="needs the Kaggle files in the folder medical/ of NBSR_DATA")
class TestRealFiles:
    def test_the_paper_split(self) -> None:
        splits = load(MedicalData(source="kaggle"), 0)
        assert (len(splits.train), len(splits.valid), len(splits.test)) == (3936, 4920, 42)
        assert set(splits.class_names) == set(knowledge().diseases), "each of the file's 41 diseases has a system"
        assert len(splits.extra["noise_draws"]) == 2100
        assert len(splits.profiles.chance) == 304
        assert len(load(MedicalData(source="kaggle", held_out=0.0), 0).train) == 4920, "the paper's own training set"

    def test_the_ceiling_is_where_it_should_be(self) -> None:
        splits = load(MedicalData(source="kaggle", draws=100), 0)
        draws = splits.extra["noise_draws"]
        hits = bayes_posterior(draws.x, splits.profiles, 0.05).argmax(1) == draws.y
        assert hits.double().mean() == pytest.approx(0.988, abs=0.004)
        assert hits.view(100, 42)[:, :41].double().mean() > 0.995, "the rows that are in Training.csv"

    def test_distinct(self) -> None:
        splits = load(MedicalData(source="kaggle", split="distinct", noise=0.0), 0)
        parts = [patterns(split.x) for split in (splits.train, splits.valid, splits.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 305
        assert splits.train.y.bincount().tolist() == [120] * 41
        assert all(len(split.y.unique()) == 41 for split in (splits.train, splits.valid, splits.test))

"""Cells become numbers by what training rows say, and go back to the words of the table."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from nbsr_core.domains.table.cells import category_of, day_of, number_of, text_of
from nbsr_core.domains.table.encoding import Encoding, fit
from nbsr_core.domains.table.kinds import look_at
from nbsr_core.domains.table.options import MISSING

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)


def cells(*texts: str) -> np.ndarray:
    return np.array(texts, dtype=object)


def fitted(name: str, texts: list[str], **options: object) -> Encoding:
    column = cells(*texts)
    return fit([look_at(name, column, MISSING)], {name: column}, MISSING, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (float("nan"), ""),
        (pd.NA, ""),
        (pd.NaT, ""),
        (np.datetime64("NaT"), ""),
        (3.0, "3"),
        (np.float32(0.5), "0.5"),
        (np.int64(-7), "-7"),
        (True, "true"),
        (np.bool_(False), "false"),
        (" red ", "red"),
        (b"red", "red"),
        (Decimal("1.50"), "1.5"),
        (date(2024, 2, 29), "2024-02-29"),
        (pd.Timestamp("2024-02-29 10:00"), "2024-02-29T10:00:00"),
        (np.datetime64("2024-02-29"), "2024-02-29"),
        (time(8, 30), "08:30:00"),
        (timedelta(minutes=1.5), "90"),
        (pd.Timedelta("1h"), "3600"),
        (np.timedelta64(2_500_000_000, "ns"), "2.5"),
        (np.timedelta64("NaT"), ""),
    ],
)
def test_a_value_of_any_kind_is_the_text_that_a_file_would_hold(value: object, text: str) -> None:
    assert text_of(value) == text


@given(FINITE)
def test_numbers_survive_being_text(value: float) -> None:
    assert number_of(text_of(value)) == value


@given(st.integers(-(10**15), 10**15))
def test_a_whole_number_is_one_category_however_it_is_written(value: int) -> None:
    assert category_of(str(value)) == category_of(f"{value}.0") == category_of(text_of(float(value))) == str(value)
    assert category_of("007") == "007"


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)))
def test_dates_are_days_since_1970_in_every_format(moment: datetime) -> None:
    days = pd.Timestamp(moment.date()).to_datetime64().astype("datetime64[D]").astype(int)
    for pattern in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d"):
        assert day_of(moment.strftime(pattern).rjust(10, "0"), pattern) == days
    assert day_of(moment.isoformat(), "ISO") == pytest.approx(days, abs=1)


def test_a_zone_is_counted() -> None:
    assert day_of("1970-01-02T01:00:00+01:00", "ISO") == 1.0


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=31, unique=True))
def test_the_quantile_scaling_gives_the_normal_deviates_of_the_ranks(values: list[float]) -> None:
    texts = [text_of(value) for value in values]
    encoding = fit([look_at("v", cells(*texts), MISSING, None, "numeric")], {"v": cells(*texts)}, MISSING)
    features, notes = encoding.encode({"v": texts})
    expected = norm.ppf((rankdata(values) - 0.5) / len(values))
    np.testing.assert_allclose(features[:, 0], expected, atol=1e-5)
    assert not any(notes)


def test_the_standard_scaling_gives_deviations_from_the_mean() -> None:
    values = np.random.default_rng(0).normal(50, 9, 300)
    texts = [repr(float(value)) for value in values]
    features, _ = fitted("v", texts, scaling="standard").encode({"v": texts})
    np.testing.assert_allclose(features[:, 0], (values - values.mean()) / values.std(), rtol=1e-4, atol=1e-6)


@given(
    st.lists(FINITE, min_size=1, max_size=60), st.lists(FINITE, max_size=5), st.sampled_from(["quantile", "standard"])
)
def test_no_number_however_large_makes_a_feature_that_is_none(
    known: list[float], new: list[float], scaling: str
) -> None:
    texts = [text_of(value) for value in known]
    encoding = fit(
        [look_at("v", cells(*texts), MISSING, None, "numeric")],
        {"v": cells(*texts)},
        MISSING,
        scaling=scaling,  # type: ignore[arg-type]
    )
    features, _ = encoding.encode({"v": [*texts, *map(text_of, new), "", "1e308", "-1e308"]})
    assert np.isfinite(features).all()
    assert np.abs(features).max() <= 10


def test_a_gap_has_an_indicator_and_the_middle_value_if_training_rows_have_gaps() -> None:
    encoding = fitted("age", ["10", "20", "", "30", "?"])
    assert encoding.feature_names == ["age", "age is missing"]
    features, notes = encoding.encode({"age": ["20", "", "NA", "old"]})
    np.testing.assert_allclose(features, [[0, 0], [0, 1], [0, 1], [0, 1]], atol=1e-6)
    assert notes == ["", "", "", "age is 'old', not a number: taken as missing"]


def test_a_gap_that_no_training_row_has_is_said() -> None:
    encoding = fitted("age", ["10", "20", "30"])
    features, notes = encoding.encode({"age": [""]})
    np.testing.assert_allclose(features, [[0]], atol=1e-6)
    assert notes == ["age is missing, which no training row's was"]


def test_rare_categories_are_one_and_unknown_ones_join_them() -> None:
    texts = ["red"] * 9 + ["blue"] * 6 + ["mauve"] * 2 + ["teal"]
    encoding = fitted("colour", texts, rare=5)
    assert encoding.feature_names == ["colour = blue", "colour = red", "colour = (other)"]
    features, notes = encoding.encode({"colour": ["red", "mauve", "pink", ""]})
    np.testing.assert_array_equal(features, [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]])
    assert notes[0] == ""
    assert "'pink', a category that is rare or unknown" in notes[2]
    assert "missing" in notes[3]
    assert [encoding.readings(row)[0] for row in features[:2]] == ["red", "(other)"]


def test_at_most_so_many_categories_are_kept() -> None:
    texts = [f"c{number}" for number in range(10) for _ in range(20 - number)]
    assert fitted("c", texts, most_categories=3).feature_names == ["c = c0", "c = c1", "c = c2", "c = (other)"]


def test_an_unknown_category_is_no_category_where_none_is_rare() -> None:
    features, notes = fitted("colour", ["red", "blue"] * 5).encode({"colour": ["pink"]})
    np.testing.assert_array_equal(features, [[0, 0]])
    assert notes == ["colour is 'pink', an unknown category"]


def test_truth_values_are_0_and_1_however_they_are_written() -> None:
    encoding = fitted("smoker", ["Yes", "no", "NO", "yes", "no"])
    features, _ = encoding.encode({"smoker": ["YES", "no", "maybe"]})
    np.testing.assert_array_equal(features[:, 0], [1, 0, 0])
    assert [encoding.readings(row)[0] for row in features[:2]] == ["yes", "no"]


@given(st.lists(st.tuples(FINITE, st.sampled_from(["a", "b", "", "c d"]), st.sampled_from(["yes", "no"])), min_size=8))
def test_an_encoding_is_the_same_after_a_trip_through_json(rows: list[tuple[float, str, str]]) -> None:
    columns = {
        "x": cells(*(text_of(row[0]) for row in rows)),
        "c": cells(*(row[1] for row in rows)),
        "t": cells("yes", "no", *(row[2] for row in rows[2:])),
    }
    kinds = {"x": "numeric", "c": "categorical", "t": "boolean"}
    looks = [look_at(name, columns[name], ("NA",), None, kind) for name, kind in kinds.items()]  # type: ignore[arg-type]
    encoding = fit(looks, columns, ("NA",), side=("x",))
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert again == encoding
    assert [column.name for column in again.columns][-1] == "x"
    assert again.side == again.columns[-1].stop - again.columns[-1].start
    as_lists = {name: column.tolist() for name, column in columns.items()}
    np.testing.assert_array_equal(again.encode(as_lists)[0], encoding.encode(as_lists)[0])


def test_columns_and_their_features_lie_side_by_side() -> None:
    columns = {"a": cells("1", "", "3"), "b": cells("x", "y", "x"), "c": cells("yes", "no", "no")}
    encoding = fit([look_at(name, column, MISSING) for name, column in columns.items()], columns, MISSING, rare=1)
    assert [(column.name, column.start, column.stop) for column in encoding.columns] == [
        ("a", 0, 2),
        ("b", 2, 4),
        ("c", 4, 5),
    ]
    assert len(encoding.feature_names) == encoding.width == 5


def test_dates_read_back_as_dates() -> None:
    texts = [f"{day:02d}.03.2021" for day in range(1, 29)]
    encoding = fitted("day", texts)
    features, _ = encoding.encode({"day": ["15.03.2021", "nonsense"]})
    assert encoding.readings(features[0]) == ["15.03.2021"]
    assert encoding.columns[0].kind == "date"


@given(st.lists(st.integers(-(10**6), 10**6), min_size=25, max_size=60, unique=True), st.sampled_from([1, 10, 1000]))
def test_numbers_read_back_as_they_stand_in_the_file(whole: list[int], divisor: int) -> None:
    numbers = [float(f"{number / divisor:.4g}") for number in whole]
    column = cells(*map(repr, numbers))
    encoding = fit([look_at("x", column, MISSING, choice="numeric")], {"x": column}, MISSING)
    features, _ = encoding.encode({"x": column.tolist()})
    spread = max(numbers) - min(numbers)
    for row, number in zip(features, numbers, strict=True):
        word = encoding.readings(row)[0]
        assert float(word) == pytest.approx(number, abs=1e-4 * spread)
        assert "e+0" not in word, "an amount is no power of ten"

"""Names of figures: what is built is read again, and a comparison's short names lead back to the stored ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.metrics import names
from nbsr_core.metrics.names import CEILING, FAST, TEST, TO_THE_END, FigureName, Line, parse

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda word: word not in (TEST, FAST, CEILING))
PLAIN = WORDS.filter(lambda word: not word.startswith(("depth", "valid", "model")))
SETS = st.one_of(st.just(TEST), PLAIN, st.tuples(PLAIN, PLAIN).map("/".join))
USES = st.one_of(st.sampled_from([TO_THE_END, FAST]), st.integers(1, 99).map(names.at_depth))
LINES: list[Line] = ["test", "fast", "ceiling"]


@given(st.builds(FigureName, PLAIN, st.one_of(SETS, st.just("valid")), USES, st.booleans()))
def test_a_name_that_is_built_is_read_again(name: FigureName) -> None:
    assert parse(str(name)) == name


@given(st.lists(st.one_of(WORDS, st.sampled_from([TEST, FAST, CEILING, "depth2"])), min_size=1, max_size=5))
def test_a_name_that_is_read_is_built_again_whoever_made_it(parts: list[str]) -> None:
    name = "/".join(parts)
    assert str(parse(name)) == name


@given(PLAIN, SETS, st.sampled_from(LINES))
def test_what_a_comparison_calls_a_figure_leads_back_to_it(figure: str, data: str, line: Line) -> None:
    stored = str(FigureName(figure, data, FAST if line == "fast" else TO_THE_END, line == "ceiling"))
    compared = names.in_comparison(stored, line)
    assert compared is not None
    assert names.stored_name(compared, line) == stored
    assert [other for other in LINES if names.in_comparison(stored, other) is not None] == [line]


@pytest.mark.parametrize(
    ("name", "line", "compared"),
    [
        ("test/accuracy", "test", "accuracy"),
        ("test/accuracy", "fast", None),
        ("fast/accuracy", "fast", "accuracy"),
        ("noise/accuracy", "test", "noise/accuracy"),
        ("noise/fast/accuracy", "fast", "noise/accuracy"),
        ("noise/fast/accuracy", "test", None),
        ("ood/letters/auroc_precision", "test", "ood/letters/auroc_precision"),
        ("depth2/accuracy", "test", "depth2/accuracy"),
        ("noise/depth2/accuracy", "test", "noise/depth2/accuracy"),
        ("depth2/accuracy", "fast", None),
        ("test/chosen_peak_1/ece", "test", "test/chosen_peak_1/ece"),
        ("ceiling/test/accuracy", "ceiling", "accuracy"),
        ("ceiling/noise/accuracy", "ceiling", "noise/accuracy"),
        ("ceiling/test/accuracy", "test", None),
        ("valid/accuracy", "test", None),
        ("valid/fast/accuracy", "fast", None),
        ("model/parameters", "test", None),
        ("test/accuracy", "ceiling", None),
    ],
)
def test_names_in_a_comparison(name: str, line: Line, compared: str | None) -> None:
    assert names.in_comparison(name, line) == compared


def test_the_names_that_are_stored_for_good() -> None:
    """Results, studies and MLflow hold these: they may not change."""
    assert (names.ETA, names.PARAMETERS) == ("fast/eta", "model/parameters")
    assert (names.test("accuracy"), names.fast("ece")) == ("test/accuracy", "fast/ece")
    assert names.place("valid", FAST) == "valid/fast"
    assert names.place("noise", names.at_depth(2)) == "noise/depth2"
    assert names.place(use=names.at_depth("*")) == "depth*"
    assert names.place(of_ceiling=True) == "ceiling/test"
    assert names.named("ood/letters", ["auroc"]) == {"ood/letters/auroc"}

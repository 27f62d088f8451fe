"""Demands are met or missed by what was measured, and the page says by how much."""

from __future__ import annotations

import pytest
from kept_answers import flags, results
from nbsr_platform.report.level import demands
from nbsr_platform.report.markdown_page import markdown

PAIRS = [("nbsr deep", "mlp")]


def said(nbsr: list[int], mlp: list[int]) -> dict[str, str]:
    """The demands on a model that is wrong so often of 2,000 samples, seed by seed, beside a flat network."""
    study = results({"nbsr": [flags(n, 2000) for n in nbsr], "mlp": [flags(n, 2000) for n in mlp]})
    return {demand.gap.figure: demand.text for demand in demands(study, PAIRS)}


@pytest.mark.parametrize(
    ("nbsr", "mlp", "accuracy", "nll"),
    [
        ([50, 51, 52], [60, 61, 62], "met", "met"),
        ([61, 62, 63], [60, 61, 62], "met", "missed by 0.0"),  # one of 2,000 is within the margin of accuracy
        ([50, 80, 50], [60, 60, 61], "met by the mean, not by all of the interval", "met by the mean"),
        ([80, 50, 80], [60, 60, 60], "missed by 0.4 points; the interval reaches the demand", "missed by 0.0"),
        ([80, 81, 82], [60, 61, 62], "missed by 0.9 points", "missed by 0.0"),
    ],
)
def test_a_demand_is_met_by_mean_and_interval_or_says_how_far_off_it_is(
    nbsr: list[int], mlp: list[int], accuracy: str, nll: str
) -> None:
    found = said(nbsr, mlp)
    assert found["accuracy"] == accuracy
    assert found["nll"].startswith(nll)


def test_a_page_has_the_demands_of_pairs_that_it_knows_and_no_others() -> None:
    study = results({"nbsr": [flags(n) for n in (20, 21, 22)], "mlp": [flags(n) for n in (20, 21, 22)]})
    text = markdown([study], "t", made_by="m", pairs=[("nbsr deep", "mlp"), ("nbsr deep", "xgboost")])
    assert "| nbsr deep | mlp | accuracy | at most 0.1 points below | +0.00 points (95% +0.00 to +0.00) | met |" in text
    assert "| nbsr deep | mlp | NLL | not above | +0.0000 (95% +0.0000 to +0.0000) | met |" in text
    assert "xgboost" not in text
    assert "At least level?" not in markdown([study], "t", made_by="m")

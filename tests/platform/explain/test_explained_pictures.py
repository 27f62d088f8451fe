"""`nbsr explain` for pictures: what drove a belief is attributed to pixels, or to a frozen backbone's features."""

from __future__ import annotations

import pytest
import torch
from nbsr_platform.execution.worker import run_trial
from nbsr_platform.explain.explain import explain
from nbsr_platform.explain.explanation import Explanation
from nbsr_platform.explain.walk_svg import draw_walk
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid
from walk_pictures import texts

from nbsr_core.evaluation.attribution import varied


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    home = Home(tmp_path_factory.mktemp("pictures") / "home")
    study = Study.from_dict(
        {
            "name": "digits",
            "domain": "vision",
            "data": {"source": "digits", "size": 16},
            "training": {"epochs": 1},
            "evaluation": {"audits": 3},
            "models": {"nbsr": {"backbone": {"name": "small"}}},
        }
    )
    (trial,) = grid(study, data_fingerprint(study))
    (*_, result) = run_trial(trial, "cpu")
    assert isinstance(result, TrialResult)
    assert all(audit["features"] for audit in result.audits), "the report's walks have features too"
    ResultStore(home.trials).save(result)
    found = explain(home, trial.key, 0)
    assert isinstance(found, Explanation)
    return found


def test_pixels_have_an_influence_and_are_called_pixels(told: Explanation) -> None:
    assert told.inputs == "pixels"
    assert told.features
    assert all(feature.name.split()[0] in ("red", "green", "blue") for feature in told.features)
    assert "(pixels × gradient, all experts of the walk together)" in told.text()
    assert "no attribution" not in told.text()
    assert any("pixels × gradient" in text for text, *_ in texts(draw_walk(told)))


def test_tokens_are_not_varied_and_bytes_are() -> None:
    assert varied(torch.arange(3)) is None
    floats = torch.rand(2, 3)
    assert varied(floats) is floats
    bytes_as_numbers = varied(torch.tensor([3, 255], dtype=torch.uint8))
    assert bytes_as_numbers is not None
    assert bytes_as_numbers.tolist() == [3.0, 255.0]


def test_where_nothing_is_attributed_the_reason_is_said(told: Explanation) -> None:
    from dataclasses import replace

    assert "cannot be varied a little" in replace(told, features=(), inputs=None).text()
    assert "small changes of the pixels change nothing" in replace(told, features=()).text()

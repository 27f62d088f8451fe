"""The reference of study files has every key that a file may have, and says of each what it is for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import study_reference
from nbsr_platform.study.study import COLLECTION_KEYS, KEYS
from study_reference import SECTIONS, TOP, Key, keys_of, options_of_models

from nbsr_core.learning.config import TrainingConfig
from nbsr_core.options.conditions import counts_when

REFERENCE = study_reference.reference()


def test_every_key_at_the_top_of_a_file_is_explained() -> None:
    assert set(TOP) == {*KEYS, *COLLECTION_KEYS}


@pytest.mark.parametrize("options", [*SECTIONS.values(), *options_of_models()], ids=lambda kind: kind.__qualname__)
def test_every_option_says_what_it_is_for(options: type) -> None:
    assert [key.name for key in keys_of(options) if not key.meaning] == []


def test_every_shipped_kind_of_data_and_model_is_there() -> None:
    for line in (
        "| `epochs` | a whole number | `40` | passes over the training split |",
        "#### medical: `xgboost`",
        "#### triage: `planner`, `greedy`, `gdfs`, `dime`, `fixed_order`, `cheap_first`, `random`, `oracle_peeking`",
        "| `root` | text or null | `null` |",
        "| `graph` | [graph](#graph-options) | its defaults |",
        "| `router` | [router](#router-options) | `{hidden: [32]}` |",
    ):
        assert line in REFERENCE, line


@dataclass(frozen=True)
class Base:
    """Something.

    Attributes:
        size: how large; None
            for any.
    """

    size: int | None = None


@dataclass(frozen=True)
class Mine(Base):
    """Something more.

    Attributes:
        mode: which way.
    """

    mode: str = field(default="a|b", metadata=counts_when("size is set", lambda mine: mine.size is not None))
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=3))


def test_a_key_has_type_default_meaning_and_condition() -> None:
    assert keys_of(Mine) == [
        Key("size", "a whole number or null", "`null`", "how large; `null` for any", ""),
        Key("mode", "text", "`a\\|b`", "which way", "size is set"),
        Key("training", "[training config](#training)", "`{epochs: 3}`", "How to train", ""),
    ]

"""The names of figures are known before a model is trained, and are those that it really gets."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from nbsr_platform.study.options import from_plain

from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.learning import TrainingConfig
from nbsr_core.learning.learners import Execution

PATIENTS = {"draws": 1, "train_patients": 200, "valid_patients": 100, "test_patients": 100}
MAPS = {"task": "tmaze", "train": 20, "valid": 20, "test": 20}
DENSE = {"density": {"enabled": True}}
SMALL: dict[str, Any] = {"backbone": {"name": "small", "size": 16}}
STAGED: dict[str, Any] = {"backbone": {"name": "small", "size": 16, "stages": ["5", "11"]}}
# May be missing for good reasons: no exit is worth it, nobody answers, the graph has no owners of classes, or
# multiply-adds cannot be counted (trees, texts).
AT_TIMES = (
    "fast/eta*",
    "*/accuracy_answered",
    "*/error_answered",
    "*/controlled_doubt",
    "*/controlled_error",
    "*/routing_agreement",
    "test/leaf_agreement",
    "*/mean_depth",
    "*/mean_macs",
)
FEW_ROWS = {"source": "cube", "train_rows": 60, "valid_rows": 40, "test_rows": 40}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("iris", "nbsr", {}, {}),
    ("iris", "mlp", {}, {}),
    ("medical", "nbsr", PATIENTS, {}),
    ("medical", "xgboost", {**PATIENTS, "draws": 0}, {"n_estimators": 2}),
    ("medical", "early_exit", PATIENTS, {}),
    ("medical", "soft_tree", PATIENTS, {}),
    ("triage", "ar_nbsr", PATIENTS, {}),
    ("triage", "greedy", PATIENTS, {"policy_after": 0}),
    ("acquisition", "gdfs", {**FEW_ROWS, "budgets": [2.0, 3.0]}, {"policy_after": 0}),
    ("language", "nbsr", {"train": 100, "test": 20}, {}),
    ("language", "moe", {"train": 100, "test": 20}, {}),
    ("navigation", "nbsr", {"train": 20, "valid": 20, "test": 20}, {}),
    ("navigation", "nbsr_mem", MAPS, {}),
    ("navigation", "cnn", MAPS, {}),
    ("vision", "nbsr", {"subset": 300, "size": 8}, {**SMALL, **DENSE}),
    ("vision", "moe", {"subset": 300, "size": 8}, SMALL),
    ("vision", "early_exit", {"subset": 300, "size": 8}, STAGED),
    ("vision", "nbsr", {"subset": 300, "size": 8, "known": 6}, STAGED),
]
# Judged with the threshold that is chosen on the validation split, and without abstention, too.
ANSWERING = [("iris", "nbsr"), ("iris", "mlp"), ("language", "nbsr"), ("vision", "nbsr"), ("triage", "ar_nbsr")]


def among(name: str, known: set[str] | tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in known)


@pytest.mark.parametrize(
    ("domain", "kind", "data", "options", "max_vacuity"),
    [
        *((*case, 0.5) for case in CASES),
        *((*case, other) for case in CASES if case[:2] in ANSWERING for other in (None, 1.0)),
    ],
)
def test_declared_figures_are_those_of_a_trial(
    domain: str, kind: str, data: dict[str, Any], options: dict[str, Any], max_vacuity: float | None
) -> None:
    found = find_domain(domain)
    which: Any = from_plain(found.data, data)
    judged = EvaluationOptions(max_vacuity=max_vacuity, audits=0)
    preview, splits = found.preview(which), found.load(which, 0)
    assert preview.sets == tuple(splits.extra)
    assert preview.signature == Signature.of(splits)
    torch.manual_seed(0)
    learner = found.models[kind].build(from_plain(found.models[kind].options, options), preview.signature)
    declared, of_epochs = found.figures(which, preview.sets, learner, judged), learner.epoch_figures
    assert declared is not None
    assert of_epochs is not None
    *_, record = learner.train(splits, TrainingConfig(epochs=2), 0, Execution())
    assert {name for name in record.flat() if not among(name, of_epochs)} <= {
        *("train/learning_rate", "train/temperature", "train/samples_per_second")
    }
    assert of_epochs <= record.flat().keys()
    given = found.judge(learner, splits, judged).metrics
    assert {name for name in given if not among(name, declared)} == set()
    plain = {name for name in declared if "*" not in name and not among(name, AT_TIMES)}
    assert plain - given.keys() == set(), "nothing is promised that is not there"

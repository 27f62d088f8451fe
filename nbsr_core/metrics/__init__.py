"""Figures of predictions, and how sure they are: the same predictions give the same figures everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.metrics.checks import PROBABILITY_FLOOR, SUM_TOLERANCE, checked_labels
    from nbsr_core.metrics.classification import (
        OF_CLASSIFICATION,
        ReliabilityDiagram,
        accuracy,
        adaptive_ece,
        brier,
        classification_metrics,
        confusion,
        ece,
        nll,
        reliability,
    )
    from nbsr_core.metrics.intervals import (
        LEAST_SEEDS,
        Interval,
        bootstrap_interval,
        few_seeds,
        figure_interval,
        mean_interval,
        seed_interval,
        share_interval,
    )
    from nbsr_core.metrics.ranking import RiskCoverage, auroc, fpr95, risk_coverage

__all__ = [
    "LEAST_SEEDS",
    "OF_CLASSIFICATION",
    "PROBABILITY_FLOOR",
    "SUM_TOLERANCE",
    "Interval",
    "ReliabilityDiagram",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "auroc",
    "bootstrap_interval",
    "brier",
    "checked_labels",
    "classification_metrics",
    "confusion",
    "ece",
    "few_seeds",
    "figure_interval",
    "fpr95",
    "mean_interval",
    "nll",
    "reliability",
    "risk_coverage",
    "seed_interval",
    "share_interval",
]

__getattr__ = on_first_use(
    __name__,
    {
        "LEAST_SEEDS": "intervals",
        "OF_CLASSIFICATION": "classification",
        "PROBABILITY_FLOOR": "checks",
        "SUM_TOLERANCE": "checks",
        "Interval": "intervals",
        "ReliabilityDiagram": "classification",
        "RiskCoverage": "ranking",
        "accuracy": "classification",
        "adaptive_ece": "classification",
        "auroc": "ranking",
        "bootstrap_interval": "intervals",
        "brier": "classification",
        "checked_labels": "checks",
        "classification_metrics": "classification",
        "confusion": "classification",
        "ece": "classification",
        "few_seeds": "intervals",
        "figure_interval": "intervals",
        "fpr95": "ranking",
        "mean_interval": "intervals",
        "nll": "classification",
        "reliability": "classification",
        "risk_coverage": "ranking",
        "seed_interval": "intervals",
        "share_interval": "intervals",
    },
)

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
    from nbsr_core.metrics.conformal import OF_CONFORMAL, ConformalSets, conformal_sets
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
    from nbsr_core.metrics.ranking import OF_RANKING, RiskCoverage, auroc, fpr95, ranking_metrics, risk_coverage
    from nbsr_core.metrics.risk_control import OF_RISK_CONTROL, RiskControl, control_risk

__all__ = [
    "LEAST_SEEDS",
    "OF_CLASSIFICATION",
    "OF_CONFORMAL",
    "OF_RANKING",
    "OF_RISK_CONTROL",
    "PROBABILITY_FLOOR",
    "SUM_TOLERANCE",
    "ConformalSets",
    "Interval",
    "ReliabilityDiagram",
    "RiskControl",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "auroc",
    "bootstrap_interval",
    "brier",
    "checked_labels",
    "classification_metrics",
    "conformal_sets",
    "confusion",
    "control_risk",
    "ece",
    "few_seeds",
    "figure_interval",
    "fpr95",
    "mean_interval",
    "nll",
    "ranking_metrics",
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
        "OF_CONFORMAL": "conformal",
        "OF_RANKING": "ranking",
        "OF_RISK_CONTROL": "risk_control",
        "PROBABILITY_FLOOR": "checks",
        "SUM_TOLERANCE": "checks",
        "ConformalSets": "conformal",
        "Interval": "intervals",
        "ReliabilityDiagram": "classification",
        "RiskControl": "risk_control",
        "RiskCoverage": "ranking",
        "accuracy": "classification",
        "adaptive_ece": "classification",
        "auroc": "ranking",
        "bootstrap_interval": "intervals",
        "brier": "classification",
        "checked_labels": "checks",
        "classification_metrics": "classification",
        "conformal_sets": "conformal",
        "confusion": "classification",
        "control_risk": "risk_control",
        "ece": "classification",
        "few_seeds": "intervals",
        "figure_interval": "intervals",
        "fpr95": "ranking",
        "mean_interval": "intervals",
        "nll": "classification",
        "ranking_metrics": "ranking",
        "reliability": "classification",
        "risk_coverage": "ranking",
        "seed_interval": "intervals",
        "share_interval": "intervals",
    },
)

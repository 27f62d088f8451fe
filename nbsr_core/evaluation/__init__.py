"""What is known of a trained model: figures, tables, attributions and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.evaluation.attribution import Attribution, attribute
    from nbsr_core.evaluation.evaluation import Evaluation, evaluate_classification

__all__ = ["Attribution", "Evaluation", "attribute", "evaluate_classification"]

__getattr__ = on_first_use(
    __name__,
    {
        "Attribution": "attribution",
        "Evaluation": "evaluation",
        "attribute": "attribution",
        "evaluate_classification": "evaluation",
    },
)

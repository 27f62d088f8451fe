"""Models for tables: NBSR with a recipe that needs no tuning to be useful, and everything to compare it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.domains.references import TABULAR_REFERENCES
from nbsr_core.domains.tabular import MLP, XGBOOST, GraphOptions, NbsrOptions, build_nbsr
from nbsr_core.errors import InputError
from nbsr_core.options.specs import EvidenceKind, ExpertSpec, ObjectiveWeights, RouterSpec

if TYPE_CHECKING:  # imported where models are built: options are checked without torch
    from nbsr_core.learning.learners import NbsrLearner

BUDGET = 1000.0
"""Most evidence of the generalist for one class: what it says can be outweighed by the specialists."""


@dataclass(frozen=True)
class TableNbsrOptions(NbsrOptions):
    """NBSR for tables: a generalist that sees every row, then a group of classes, then a part of that group.

    Groups are learned by default; `graph.shape: taxonomy` takes those that `data.taxonomy` or `data.hierarchy` says.
    """

    graph: GraphOptions = field(default_factory=lambda: GraphOptions(shape="learned", generalist=True))
    experts: ExpertSpec | tuple[ExpertSpec, ...] = field(
        default_factory=lambda: (ExpertSpec(activation="exp", bound=BUDGET), ExpertSpec(activation="exp"))
    )
    router: RouterSpec = field(default_factory=lambda: RouterSpec(belief="log"))
    evidence: EvidenceKind = "relative"
    objective: ObjectiveWeights = field(default_factory=lambda: ObjectiveWeights(every_depth=0.3, concept=0.1))


def build(options: NbsrOptions, signature: Signature) -> NbsrLearner:
    """NBSR on the table's taxonomy, or on another graph of the study's choice."""
    from nbsr_core.domains.table.data import TAXONOMY, encoding_in
    from nbsr_core.graph.decision_graph import DecisionGraph

    given = signature.structure.get(TAXONOMY)
    if given is None and options.graph.shape == "taxonomy":
        raise InputError("graph.shape: the table has no taxonomy; give data.taxonomy or data.hierarchy, or say learned")
    taxonomy = None if given is None else DecisionGraph.taxonomy(given)
    return build_nbsr(options, signature, taxonomy, side=encoding_in(signature.structure).side)


MODELS = {
    "nbsr": ModelKind("nbsr", TableNbsrOptions, build),
    "mlp": MLP,
    "xgboost": XGBOOST,
    **TABULAR_REFERENCES,
}

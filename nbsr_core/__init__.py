"""Neural Bayesian Sequential Routing: belief, graph, walk, trace. Knows nothing of Ray, MLflow or a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core import metrics
    from nbsr_core.belief import calibration, dirichlet
    from nbsr_core.belief.density import DensityFactor
    from nbsr_core.errors import GraphError, InputError, NbsrError, NotFittedError
    from nbsr_core.evaluation.attribution import Attribution, attribute
    from nbsr_core.graph.decision_graph import DecisionGraph
    from nbsr_core.learning import objectives
    from nbsr_core.learning.objectives import Objective
    from nbsr_core.model.acquisition import AcquisitionTrace, Panels
    from nbsr_core.model.autoregressive import AutoregressiveNBSR
    from nbsr_core.model.experts import ExpertSpec
    from nbsr_core.model.network import NBSR
    from nbsr_core.model.routers import RouterSpec
    from nbsr_core.model.stages import Stages
    from nbsr_core.options.specs import TemperatureSchedule
    from nbsr_core.trace.audit import AuditStep, AuditTrail
    from nbsr_core.trace.belief_trace import BeliefTrace
    from nbsr_core.trace.exits import Prediction, is_vacuous
    from nbsr_core.trace.frontier import Frontier

__all__ = [
    "NBSR",
    "AcquisitionTrace",
    "Attribution",
    "AuditStep",
    "AuditTrail",
    "AutoregressiveNBSR",
    "BeliefTrace",
    "DecisionGraph",
    "DensityFactor",
    "ExpertSpec",
    "Frontier",
    "GraphError",
    "InputError",
    "NbsrError",
    "NotFittedError",
    "Objective",
    "Panels",
    "Prediction",
    "RouterSpec",
    "Stages",
    "TemperatureSchedule",
    "attribute",
    "calibration",
    "dirichlet",
    "is_vacuous",
    "metrics",
    "objectives",
]

__getattr__ = on_first_use(
    __name__,
    {
        "NBSR": "model.network",
        "AcquisitionTrace": "model.acquisition",
        "Attribution": "evaluation.attribution",
        "AuditStep": "trace.audit",
        "AuditTrail": "trace.audit",
        "AutoregressiveNBSR": "model.autoregressive",
        "BeliefTrace": "trace.belief_trace",
        "DecisionGraph": "graph.decision_graph",
        "DensityFactor": "belief.density",
        "ExpertSpec": "options.specs",
        "Frontier": "trace.frontier",
        "GraphError": "errors",
        "InputError": "errors",
        "NbsrError": "errors",
        "NotFittedError": "errors",
        "Objective": "learning.objectives",
        "Panels": "model.acquisition",
        "Prediction": "trace.exits",
        "RouterSpec": "options.specs",
        "Stages": "model.stages",
        "TemperatureSchedule": "options.specs",
        "attribute": "evaluation.attribution",
        "calibration": "belief.calibration",
        "dirichlet": "belief.dirichlet",
        "is_vacuous": "trace.exits",
        "metrics": "metrics",
        "objectives": "learning.objectives",
    },
)

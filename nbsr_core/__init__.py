"""Neural Bayesian Sequential Routing: belief, graph, walk, trace. Knows nothing of Ray, MLflow or a command line."""

from nbsr_core import calibration, dirichlet, metrics, objectives
from nbsr_core.acquisition import AcquisitionTrace, Panels
from nbsr_core.attribution import Attribution, attribute
from nbsr_core.audit import AuditStep, AuditTrail
from nbsr_core.autoregressive import AutoregressiveNBSR
from nbsr_core.density import DensityFactor
from nbsr_core.errors import GraphError, InputError, NbsrError, NotFittedError
from nbsr_core.exits import Prediction, is_vacuous
from nbsr_core.experts import ExpertSpec
from nbsr_core.frontier import Frontier
from nbsr_core.graph import DecisionGraph
from nbsr_core.network import NBSR
from nbsr_core.objectives import Objective
from nbsr_core.routers import RouterSpec
from nbsr_core.routing import TemperatureSchedule
from nbsr_core.trace import BeliefTrace

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
    "TemperatureSchedule",
    "attribute",
    "calibration",
    "dirichlet",
    "is_vacuous",
    "metrics",
    "objectives",
]

"""What is read off a walk: beliefs by depth, exits, frontiers and audit trails."""

from nbsr_core.trace.audit import AuditStep, AuditTrail
from nbsr_core.trace.belief_trace import BeliefTrace, Step
from nbsr_core.trace.exits import Prediction, is_vacuous
from nbsr_core.trace.frontier import Frontier

__all__ = ["AuditStep", "AuditTrail", "BeliefTrace", "Frontier", "Prediction", "Step", "is_vacuous"]

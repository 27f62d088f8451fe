"""The decision graph: which expert may follow which."""

from nbsr_core.graph.decision_graph import DecisionGraph, Node

__all__ = ["DecisionGraph", "Node"]

"""Small models that tests share."""

from __future__ import annotations

import torch
from torch import nn

import nbsr_core as nbsr

FEATURES, ORACLE = 6, 8


def make_model(graph: nbsr.DecisionGraph, num_classes: int = 5, seed: int = 0, **options: object) -> nbsr.NBSR:
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(FEATURES, ORACLE), nn.ReLU())
    return nbsr.NBSR(backbone, graph, num_classes, ORACLE, **options)  # type: ignore[arg-type]


GRAPHS = {
    "tree": nbsr.DecisionGraph.uniform(depth=3, width=3),
    "layered": nbsr.DecisionGraph.layered([4, 4]),
    "chain": nbsr.DecisionGraph.chain(2),
    "uneven": nbsr.DecisionGraph.taxonomy(
        {
            "Animal": {"Pets": ["cat", "dog"], "Wild": {"Birds": ["bird"], "Deer": ["deer"]}},
            "Vehicle": ["truck"],
        }
    ),
    "generalist": nbsr.DecisionGraph.uniform(depth=2, width=[4, 2]).with_generalist(),
}

"""Whatever a domain reads, a study chooses the graph that it walks and the budget of each level."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tables import table

from nbsr_core.domains.domain import SHIPPED, Signature, find_domain
from nbsr_core.domains.tabular import GraphOptions
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.errors import InputError
from nbsr_core.graph.decision_graph import GENERALIST
from nbsr_core.learning.learners import NbsrLearner
from nbsr_core.model.network import NBSR
from nbsr_core.options.specs import ExpertSpec, ObjectiveWeights

WALKING = [
    (domain, name)
    for domain in SHIPPED
    for name, kind in find_domain(domain).models.items()
    if any(item.name == "graph" for item in fields(kind.options))
]
GROUPS = {"Mammal": {"Pet": ["cat", "dog"]}, "Bird": {"Winged": ["bird"]}}
BUDGETS = (ExpertSpec(activation="sigmoid", bound=5.0), ExpertSpec(activation="exp"))


@cache
def signature_of(domain: str) -> Signature:
    found = find_domain(domain)
    if domain == "table":
        with TemporaryDirectory() as folder:
            return found.preview(table(Path(folder), taxonomy=GROUPS)).signature
    return found.preview(found.data()).signature


def built(domain: str, name: str, **changed: Any) -> tuple[Any, NBSR]:
    """A learner with these options, and its walk."""
    kind = find_domain(domain).models[name]
    if domain == "vision":
        changed["backbone"] = BackboneOptions(name="small")
    learner: Any = kind.build(replace(kind.options(), **changed), signature_of(domain))
    assert isinstance(learner, NbsrLearner)
    return learner, learner.model


def test_all_domains_with_a_graph_are_here() -> None:
    assert {domain for domain, _ in WALKING} == {"medical", "language", "navigation", "vision", "table"}


@pytest.mark.parametrize(("domain", "name"), WALKING)
def test_a_generalist_with_a_budget_can_lead_the_domains_own_graph(domain: str, name: str) -> None:
    own = GraphOptions()
    plain_learner, plain = built(domain, name, graph=own)
    learner, walk = built(domain, name, graph=GraphOptions(generalist=True), experts=BUDGETS)
    assert walk.graph == plain.graph.with_generalist()
    assert [spec.bound for spec in walk.expert_specs[1:]] == [5.0, *[None] * plain.graph.num_experts]
    assert learner.admissible[walk.graph.index(GENERALIST)].all()
    assert (learner.admissible[2:] == plain_learner.admissible[1:]).all()
    assert "bands" in learner.ignores or domain != "language", "the grammar keeps its own taxonomy"


@pytest.mark.parametrize(("domain", "name"), WALKING)
def test_a_regular_graph_owns_no_class_and_so_has_no_concept_loss(domain: str, name: str) -> None:
    regular = GraphOptions("uniform", depth=2, width=3, generalist=True)
    learner, walk = built(domain, name, graph=regular, objective=ObjectiveWeights())
    assert [len(level) for level in walk.graph.levels] == [1, 1, 3, 9]
    assert learner.admissible is None
    with pytest.raises(InputError, match=r"concept needs graph\.shape: taxonomy"):
        built(domain, name, graph=regular, objective=ObjectiveWeights(concept=0.1))

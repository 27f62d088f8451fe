"""The rows that reports are drawn from agree with the figures that they stand for."""

from __future__ import annotations

import pytest
import torch

from nbsr_core import metrics
from nbsr_core.evaluation.walk_tables import (
    audit_walks,
    belief_rows,
    edge_rows,
    entropy_rows,
    frontier_rows,
    raw_reliability_rows,
    reliability_rows,
    risk_coverage_rows,
    separation_rows,
    usage_rows,
)
from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.model.network import NBSR
from nbsr_core.trace.belief_trace import BeliefTrace

K, N = 5, 90


@pytest.fixture
def model() -> NBSR:
    made = NBSR(torch.nn.Linear(3, 8), DecisionGraph.layered([3, 2]), num_classes=K, oracle_dim=8)
    x, y = torch.randn(60, 3), torch.randint(K, (60,))
    made.eval()
    made.calibrate(made(x).detach(), y)
    return made


@pytest.fixture
def splits() -> Splits:
    def split(count: int) -> Split:
        return Split(torch.randn(count, 3), torch.randint(K, (count,)))

    return Splits(split(40), split(40), split(N), list("abcde"), ["height", "width", "age"], "made up", True)


@pytest.fixture
def trace(model: NBSR, splits: Splits) -> BeliefTrace:
    walked: BeliefTrace = model(splits.test.x)
    return walked.detach()


def test_the_frontier_has_the_calibration_error_of_every_threshold(trace: BeliefTrace, splits: Splits) -> None:
    rows = frontier_rows(trace, splits.test.y, None)
    assert len(rows) > 20
    for row in rows[::7]:
        eta = row["eta"]
        assert isinstance(eta, float)
        assert row["ece"] == pytest.approx(metrics.ece(trace.exit(eta).probs, splits.test.y), abs=1e-6)


def test_before_calibration_means_the_belief_as_it_is(trace: BeliefTrace, splits: Splits) -> None:
    rows, y = raw_reliability_rows(trace, splits.test.y), splits.test.y
    raw = trace.beliefs[2] / trace.beliefs[2].sum(-1, keepdim=True)
    assert [row for row in rows if row["depth"] == 2] == reliability_rows(raw, y, 2)
    assert rows != [row for depth in (1, 2) for row in reliability_rows(trace.probabilities(depth), y, depth)]
    plain = BeliefTrace(trace.graph, trace.prior, trace.beliefs, trace.steps)
    assert raw_reliability_rows(plain, y) == []


def test_a_thinned_curve_keeps_its_ends() -> None:
    confidence, correct = torch.rand(5000), torch.rand(5000) < 0.8
    rows = risk_coverage_rows("confidence", confidence, correct)
    assert len(rows) == 100
    assert rows[0]["coverage"] == 1 / 5000
    assert rows[-1]["coverage"] == 1.0
    assert rows[-1]["risk"] == pytest.approx(float((~correct).double().mean()))


def test_most_samples_lie_within_the_band(trace: BeliefTrace) -> None:
    for row in belief_rows(trace)[1:]:
        depth, low, high = row["depth"], row["precision_low"], row["precision_high"]
        assert isinstance(depth, int)
        assert isinstance(low, float)
        assert isinstance(high, float)
        inside = (trace.precision[depth] >= low) & (trace.precision[depth] <= high)
        assert 0.88 <= float(inside.double().mean()) <= 0.98


def test_histograms_share_their_bins_and_add_up(trace: BeliefTrace, model: NBSR) -> None:
    far = model(100 * torch.randn(30, 3)).detach()
    rows = entropy_rows({"test": trace, "far": far})
    for name in ("test", "far"):
        assert sum(float(row["share"] or 0) for row in rows if row["set"] == name) == pytest.approx(1)
    width = {round(float(row["high"] or 0) - float(row["low"] or 0), 4) for row in rows}
    assert max(width) - min(width) < 1e-3
    (row,) = separation_rows({"test": trace, "far": far})
    assert row["set"] == "far"
    assert row["entropy_auroc"] == metrics.auroc(-trace.entropy[-1].double(), -far.entropy[-1].double())


def test_edges_carry_what_nodes_receive(trace: BeliefTrace) -> None:
    usage = {row["node"]: row["share"] for row in usage_rows(trace)}
    edges = edge_rows(trace)
    assert len(edges) == 3 + 3 * 2
    for node, share in usage.items():
        if node != trace.graph.nodes[0].name:
            assert sum(float(edge["share"] or 0) for edge in edges if edge["child"] == node) == pytest.approx(share)


def test_audits_show_right_wrong_and_abstained_walks(model: NBSR, trace: BeliefTrace, splits: Splits) -> None:
    middle = float(trace.exit(None).vacuity.median())
    audits = audit_walks(model, trace, splits.test.y, splits, count=21, eta=None, max_vacuity=middle)
    verdicts = [audit["verdict"] for audit in audits]
    assert len(audits) == len({audit["sample"] for audit in audits}) == 21
    assert verdicts.count("abstained") >= 7
    assert verdicts.count("wrong") >= 7
    full = trace.exit(None, middle)
    for audit in audits:
        index = audit["sample"]
        assert (audit["verdict"] == "abstained") == bool(full.abstained[index])
        assert audit["predicted"] == splits.class_names[int(full.label[index])]
        step = audit["steps"][-1]
        assert max(step["belief"], key=step["belief"].get) == audit["predicted"]
        assert all(name.split(" ")[0] in splits.feature_names for name in (f["name"] for f in audit["features"]))


def test_where_nobody_may_abstain_the_least_sure_are_shown(model: NBSR, trace: BeliefTrace, splits: Splits) -> None:
    audits = audit_walks(model, trace, splits.test.y, splits, count=9, eta=None, max_vacuity=None)
    least = int(trace.exit(None).vacuity.argmax())
    assert least in [audit["sample"] for audit in audits]
    assert audit_walks(model, trace, splits.test.y, splits, count=0, eta=None, max_vacuity=None) == []

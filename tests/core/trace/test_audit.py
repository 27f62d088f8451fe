"""An audit that a reader can add up with a pencil, calibrated or not, and numbers on a scale that means something."""

from __future__ import annotations

import re

import pytest
import torch

import nbsr_core as nbsr
from nbsr_core.trace.audit import AuditTrail
from nbsr_core.trace.visit import nats

NAMES = ["cat", "dog", "bird", "deer", "truck", "ship", "plane"]


def walked(temperatures: list[float] | None) -> AuditTrail:
    torch.manual_seed(0)
    graph = nbsr.DecisionGraph.uniform(depth=2, width=2)
    model = nbsr.NBSR(torch.nn.Linear(4, 8), graph, num_classes=len(NAMES), oracle_dim=8).eval()
    if temperatures is not None:
        model.calibration.temperature.copy_(torch.tensor(temperatures))
        model.calibration.fitted.fill_(True)
    with torch.no_grad():
        trail: AuditTrail = model(10 * torch.randn(3, 4)).audit(1, NAMES)
    return trail


@pytest.mark.parametrize("temperatures", [None, [0.3, 0.4]])
@pytest.mark.parametrize("top", [1, 3, 7, 20])
def test_every_step_adds_up_to_what_is_said(temperatures: list[float] | None, top: int) -> None:
    trail = walked(temperatures)
    belief = trail.prior
    for step in trail.steps:
        torch.testing.assert_close(step.before, belief)
        belief = belief + step.evidence
        assert step.temperature == (None if temperatures is None else pytest.approx(temperatures[step.depth - 1]))
        entries = step.ledger(NAMES, top)
        assert step.precision == pytest.approx(float(belief.sum()))
        assert sum(entry.alpha for entry in entries) == pytest.approx(step.precision)
        assert sum(entry.expected for entry in entries) == pytest.approx(1)
        assert sum(entry.calibrated for entry in entries) == pytest.approx(1)
        for entry in entries:
            assert entry.before + entry.evidence == pytest.approx(entry.alpha)
            assert entry.alpha / step.precision == pytest.approx(entry.expected)
        mean = (belief / belief.sum()).double()
        power = mean ** (1 / (step.temperature or 1.0))
        said = dict(zip(NAMES, (power / power.sum()).tolist(), strict=True))
        for entry in entries:
            if entry.name in said:
                assert entry.calibrated == pytest.approx(said[entry.name], rel=1e-4)


def test_the_text_names_the_temperature_and_both_probabilities() -> None:
    trail = walked([0.3, 0.4])
    text = trail.render(top=2)
    assert [float(value) for value in re.findall(r"T = (\S+)", text)] == [0.3, 0.4]
    last = trail.steps[-1]
    first = last.ledger(NAMES, 2)[0]
    line = next(line for line in text.splitlines()[::-1] if line.split()[:1] == [first.name])
    assert line.split()[1:] == [
        f"{first.before:.2f}",
        f"+{first.evidence:.2f}",
        f"{first.alpha:.2f}",
        f"{first.expected:.1%}",
        f"{first.calibrated:.1%}",
    ]
    assert first.expected != pytest.approx(first.calibrated, abs=0.01)
    assert "T = " not in walked(None).render()


def test_an_entropy_that_says_nothing_is_called_off_the_chart() -> None:
    assert nats(-4.5e8, 41) == "off the chart (below −50 nats per class)"
    assert nats(float("-inf"), 3) == "off the chart (below −50 nats per class)"
    assert nats(-12.3, 3) == "−12.3 (−4.1 nats per class)"
    trail = walked([0.05, 0.05])
    for step in trail.steps:
        assert abs(step.belief_shift) < 1000, "the shift is that of the evidence, whatever the temperature"
        assert "e+" not in step.measures
    assert any("off the chart" in step.measures for step in trail.steps)
    assert "e+" not in trail.render()

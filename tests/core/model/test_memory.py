"""NBSR-Mem: what it remembers, what reaches what through time, and what an unknown frame does to the belief."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nbsr_core as nbsr
from nbsr_core.model.memory import FrameMemory, MemoryClassifier, NBSRMem

FRAME, FEATURES, MEMORY, K = 6, 8, 10, 4


def model(
    memory: int | None = MEMORY, routing: str = "softmax", density: bool = False, judged: str = "frame"
) -> NBSRMem:
    frames = FrameMemory(nn.Linear(FRAME, FEATURES), nn.ReLU(), FEATURES, memory)
    graph = nbsr.DecisionGraph.uniform(depth=2, width=2)
    walk = nbsr.NBSR(nn.Identity(), graph, K, frames.oracle_dim, routing=routing)  # type: ignore[arg-type]
    size = FRAME if judged == "frame" else FEATURES
    factor = nbsr.DensityFactor(size) if density else None
    return NBSRMem(frames, walk, factor, judged)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", [MEMORY, None])
def test_stepping_through_an_episode_is_seeing_it_whole(memory: int | None) -> None:
    net, x = model(memory).eval(), torch.randn(3, 5, FRAME)
    whole = net(x).exit(-2.0, 0.9)
    state = None
    for t in range(5):
        said, state = net.step(x[:, t], state, eta=-2.0, max_vacuity=0.9)
        rows = torch.arange(3) * 5 + t
        torch.testing.assert_close(said.alpha, whole.alpha[rows])
        assert said.depth.equal(whole.depth[rows])
        assert said.abstained.equal(whole.abstained[rows])


def test_padding_after_an_episode_changes_nothing() -> None:
    net, x = model().eval(), torch.randn(2, 5, FRAME)
    seen = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    x[1, 3:] = 1e6
    padded = net(x, seen).probabilities()
    torch.testing.assert_close(padded[:5], net(x[:1]).probabilities())
    torch.testing.assert_close(padded[5:], net(x[1:, :3]).probabilities())
    classifier = MemoryClassifier(net.frames, K)
    torch.testing.assert_close(classifier(x, seen)[5:], classifier(x[1:, :3]))


@pytest.mark.parametrize("routing", ["softmax", "gumbel"])
def test_the_last_step_teaches_the_first_frame_and_never_the_other_way_round(routing: str) -> None:
    net = model(routing=routing).train()
    x = torch.randn(2, 4, FRAME, requires_grad=True)
    (late,) = torch.autograd.grad(net(x).beliefs[-1][3].sum(), x, retain_graph=False)
    assert float(late[0, 0].abs().sum()) > 0
    assert float(late[1].abs().sum()) == 0
    (early,) = torch.autograd.grad(net(x).beliefs[-1][0].sum(), x)
    assert float(early[0, 0].abs().sum()) > 0
    assert float(early[0, 1:].abs().sum()) == 0


def test_without_memory_only_the_frame_counts() -> None:
    net, x = model(None).eval(), torch.randn(1, 4, FRAME)
    other = torch.cat([torch.randn(1, 3, FRAME), x[:, 3:]], dim=1)
    assert net(x).probabilities()[3].equal(net(other).probabilities()[3])
    remembering = model().eval()
    assert not remembering(x).probabilities()[3].equal(remembering(other).probabilities()[3])


@pytest.mark.parametrize("judged", ["frame", "features"])
def test_an_unknown_frame_leaves_the_prior_and_only_at_its_step(judged: str) -> None:
    net = model(density=True, judged=judged).eval()
    known = torch.randn(500, FRAME)
    net.fit_density(known, torch.zeros(500, dtype=torch.int64))
    x = torch.randn(1, 3, FRAME) * 0.1
    x[0, 1] = 40.0
    trace = net(x).detach()
    vacuity = trace.exit(None).vacuity
    assert trace.density is not None
    assert float(trace.density[1]) < 1e-6
    assert float(vacuity[1]) > 0.999
    assert float(vacuity[[0, 2]].max()) < 0.9
    said, _ = net.step(x[:, 1], None, max_vacuity=0.95)
    assert bool(said.abstained[0])


def test_the_paper_weight_decay_finds_the_backbone() -> None:
    net = model()
    assert list(net.backbone.parameters()) == list(net.frames.backbone.parameters())
    net.set_temperature(0.3)
    assert net.walk.tau == 0.3


def test_parts_that_do_not_fit_are_refused() -> None:
    frames = FrameMemory(nn.Linear(FRAME, FEATURES), nn.ReLU(), FEATURES, MEMORY)
    graph = nbsr.DecisionGraph.uniform(depth=1, width=2)
    with pytest.raises(nbsr.InputError, match="oracle_dim 10 like the memory, got 7"):
        NBSRMem(frames, nbsr.NBSR(nn.Identity(), graph, K, 7))
    inside = nbsr.NBSR(nn.Identity(), graph, K, MEMORY, density=nbsr.DensityFactor(MEMORY))
    with pytest.raises(nbsr.InputError, match="judges frames"):
        NBSRMem(frames, inside)
    with pytest.raises(nbsr.InputError, match="must return 8 features, got 5"):
        FrameMemory(nn.Linear(FRAME, 5), nn.ReLU(), FEATURES, None)(torch.randn(1, 1, FRAME))
    with pytest.raises(nbsr.InputError, match="at least one of each"):
        frames(torch.randn(0, 3, FRAME))


def test_closeness_from_outside_scales_evidence() -> None:
    walk = nbsr.NBSR(nn.Identity(), nbsr.DecisionGraph.uniform(depth=2, width=2), K, MEMORY).eval()
    h = torch.randn(5, MEMORY)
    half = torch.full((5,), 0.5)

    def gained(closeness: Tensor | None) -> Tensor:
        evidence: Tensor = walk(h, closeness=closeness).steps[0].evidence
        return evidence

    torch.testing.assert_close(gained(half), gained(None) / 2)
    torch.testing.assert_close(walk.predict(h, closeness=half).alpha, walk(h, closeness=half).alpha[-1])
    for wrong in (torch.zeros(5), torch.full((5,), 1.5)):
        with pytest.raises(nbsr.InputError, match=r"closeness must be 5 numbers in \(0, 1\]"):
            walk(h, closeness=wrong)

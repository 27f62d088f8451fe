"""Workers that share batches learn what one worker alone would have learned, however unequal the shares are."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from nbsr_core.learning import TensorBatches
from nbsr_core.learning.learners import ShardedBatches


def gradients(model: torch.nn.Linear, terms: dict[str, torch.Tensor]) -> torch.Tensor:
    found = torch.autograd.grad(terms["loss"], list(model.parameters()))
    return torch.cat([part.flatten() for part in found])


@given(rows=st.integers(1, 23), batch=st.integers(1, 9), world=st.integers(1, 5), seed=st.integers(0, 1000))
def test_the_mean_of_the_workers_gradients_is_that_of_the_whole_batch(
    rows: int, batch: int, world: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 3, generator=generator).double(), torch.randint(0, 4, (rows,), generator=generator)
    model = torch.nn.Linear(3, 4).double()
    whole = TensorBatches(x, y, batch)
    workers = [ShardedBatches(whole, rank, world) for rank in range(world)]
    shares = zip(whole.epoch(seed, 0), *(worker.epoch(seed, 0) for worker in workers), strict=True)
    for (all_x, all_y), *parts in shares:
        expected = gradients(model, {"loss": F.cross_entropy(model(all_x), all_y)})
        found = [
            gradients(model, worker.weigh({"loss": F.cross_entropy(model(part_x), part_y)}))
            for worker, (part_x, part_y) in zip(workers, parts, strict=True)
        ]
        assert torch.allclose(torch.stack(found).mean(0), expected, atol=1e-12)


def test_weighing_changes_the_gradient_and_not_the_figure() -> None:
    worker = ShardedBatches(TensorBatches(torch.randn(3, 2), torch.zeros(3).long(), 3), 0, 2)
    next(iter(worker.epoch(0, 0)))
    assert worker.weight == 2 * 2 / 3
    value = torch.tensor(5.0, requires_grad=True)
    weighed = worker.weigh({"loss": value * 2, "nll": value})
    assert float(weighed["loss"].detach()) == 10.0
    assert weighed["nll"] is value
    (slope,) = torch.autograd.grad(weighed["loss"], value)
    assert float(slope) == torch.tensor(2 * 4 / 3)

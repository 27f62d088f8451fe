"""Banks of linear maps: however rows are laid out, each goes through the map of its own slot, and no other learns."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nbsr_core.kernels import layout as layout_module
from nbsr_core.kernels.banks import StackedLinear, stacked_network
from nbsr_core.kernels.layout import Layout

WAYS: dict[str, dict[str, Any]] = {
    "wide": {"MACS_PER_PLACING": 10**12},
    "padded": {"MACS_PER_PLACING": 0, "MACS_PER_CALL": 10**12},
    "segmented": {"MACS_PER_PLACING": 0, "MACS_PER_CALL": 0},
}
"""What calls and arithmetic are said to cost decides the way through a bank; all must give the same."""


def laid_out(slots: Tensor, num_slots: int, way: str) -> Layout:
    with patch.multiple(layout_module, **WAYS[way]):
        return Layout.of(slots, num_slots, 1)


def row_by_row(bank: StackedLinear, x: Tensor, slots: Tensor) -> Tensor:
    """Each row through `weight[slot] @ row + bias[slot]`, one after another."""
    rows = [
        bank.weight[slot] @ row + (0.0 if bank.bias is None else bank.bias[slot])
        for row, slot in zip(x, slots.tolist(), strict=True)
    ]
    return torch.stack(rows) if rows else x.new_zeros(0, bank.weight.shape[1])


def in_given_order(bank: StackedLinear, x: Tensor, layout: Layout) -> Tensor:
    """The bank's answer with rows back in the order of `x`, as a walk would do it."""
    if layout.order is None:
        return bank(x, layout)  # type: ignore[no-any-return]
    answer: Tensor = bank(x[layout.order], layout)
    return answer[torch.argsort(layout.order)]


@st.composite
def banks(draw: st.DrawFn, min_rows: int = 0) -> tuple[StackedLinear, Tensor, Tensor]:
    """A float64 bank, rows, and the slot of each row; some slots may stay without rows."""
    num_slots, inputs, outputs = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    slots = draw(st.lists(st.integers(0, num_slots - 1), min_size=min_rows, max_size=12))
    torch.manual_seed(draw(st.integers(0, 1000)))
    bank = StackedLinear(num_slots, inputs, outputs, bias=draw(st.booleans())).double()
    x = torch.randn(len(slots), inputs, dtype=torch.float64, requires_grad=True)
    return bank, x, torch.tensor(slots, dtype=torch.int64)


@pytest.mark.parametrize("way", WAYS)
@given(case=banks())
def test_every_way_equals_row_by_row_in_values_and_gradients(
    way: str, case: tuple[StackedLinear, Tensor, Tensor]
) -> None:
    bank, x, slots = case
    layout = laid_out(slots, bank.weight.shape[0], way)
    answer, expected = in_given_order(bank, x, layout), row_by_row(bank, x, slots)
    torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)
    if len(slots) == 0:
        return
    weights = torch.randn_like(expected)
    inputs = [x, *bank.parameters()]
    grads = torch.autograd.grad((answer * weights).sum(), inputs)
    expected_grads = torch.autograd.grad((expected * weights).sum(), inputs)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-12, atol=1e-12)
    unvisited = sorted(set(range(bank.weight.shape[0])) - set(slots.tolist()))
    for grad in grads[1:]:
        assert (grad[unvisited] == 0).all(), "a slot that nobody visits must not move at all"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_pass_gradcheck(way: str, bias: bool) -> None:
    bank = StackedLinear(4, 3, 2, bias=bias).double()
    slots = torch.tensor([2, 0, 2, 3, 0, 2])
    layout = laid_out(slots, 4, way)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in bank.named_parameters()]

    def answer(x: Tensor, *values: Tensor) -> Tensor:
        result = torch.func.functional_call(bank, dict(zip(names, values, strict=True)), (x, layout))
        assert isinstance(result, Tensor)
        return result

    assert torch.autograd.gradcheck(answer, (x, *bank.parameters()))


@pytest.mark.parametrize("way", WAYS)
def test_zero_rows_pass_forward_and_backward(way: str) -> None:
    bank = StackedLinear(4, 3, 2)
    x = torch.zeros(0, 3, requires_grad=True)
    answer = in_given_order(bank, x, laid_out(torch.zeros(0, dtype=torch.int64), 4, way))
    assert answer.shape == (0, 2)
    answer.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 3)
    for parameter in bank.parameters():
        assert parameter.grad is not None
        assert (parameter.grad == 0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("frozen", ["weight", "bias", "x"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_does(way: str, frozen: str) -> None:
    bank = StackedLinear(3, 4, 2)
    slots = torch.tensor([1, 0, 2, 1])
    x = torch.randn(4, 4, requires_grad=frozen != "x")
    if frozen != "x":
        getattr(bank, frozen).requires_grad_(False)
    in_given_order(bank, x, laid_out(slots, 3, way)).sum().backward()
    got = {"x": x.grad, "weight": bank.weight.grad, "bias": bank.bias.grad if bank.bias is not None else None}
    assert {name for name, grad in got.items() if grad is None} == {frozen}


@given(slots=st.lists(st.integers(0, 30), max_size=60), way=st.sampled_from(list(WAYS)))
def test_a_layout_that_moves_rows_sorts_them_stably(slots: list[int], way: str) -> None:
    layout = laid_out(torch.tensor(slots, dtype=torch.int64), 31, way)
    if layout.order is not None:
        assert layout.order.tolist() == sorted(range(len(slots)), key=lambda row: slots[row])


def test_large_batches_are_sorted_stably_too() -> None:
    slots = torch.randint(31, (5000,))
    order = laid_out(slots, 31, "segmented").order
    assert order is not None
    assert order.tolist() == sorted(range(5000), key=slots.tolist().__getitem__)


def test_every_kind_of_layout_is_among_the_tested_ways() -> None:
    slots = torch.tensor([2, 0, 2, 3, 0, 2])
    wide, padded, segmented = (laid_out(slots, 4, way) for way in WAYS)
    assert wide.own is not None
    assert padded.place is not None
    assert segmented.order is not None


def test_size_decides_the_way() -> None:
    """Small batches are not sorted, larger ones are: one product for each of few slots, tables for many."""
    slots = torch.arange(4096) % 4
    assert Layout.of(slots[:64], 4, 5_000).own is not None
    assert Layout.of(slots, 4, 5_000).own is None
    lopsided = torch.where(torch.arange(4096) < 4000, 0, slots)
    assert Layout.of(lopsided, 4, 5_000).order is not None
    assert Layout.of(torch.arange(4096) % 64, 64, 5_000).place is not None


@pytest.mark.parametrize("way", WAYS)
def test_one_crowded_slot_among_lonely_ones(way: str) -> None:
    slots = torch.cat([torch.full((50,), 7), torch.arange(20)])
    bank, x = StackedLinear(25, 3, 2).double(), torch.randn(70, 3, dtype=torch.float64)
    answer = in_given_order(bank, x, laid_out(slots, 25, way))
    torch.testing.assert_close(answer, row_by_row(bank, x, slots), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_slot_numbers_beyond_16_bits_do_not_wrap_around(way: str) -> None:
    slots = torch.tensor([69_999, 0, 32_768, 65_536, 69_999])
    bank, x = StackedLinear(70_000, 1, 1, bias=False).double(), torch.ones(5, 1, dtype=torch.float64)
    answer = in_given_order(bank, x, laid_out(slots, 70_000, way))
    assert torch.equal(answer.flatten(), bank.weight.flatten()[slots])


@pytest.mark.parametrize("slots", [1, 3])
def test_a_single_layout_sends_all_rows_through_slot_0(slots: int) -> None:
    bank, x = StackedLinear(slots, 3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    expected = row_by_row(bank, x, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(bank(x, Layout.single(4)), expected, rtol=1e-12, atol=1e-12)


@given(case=banks(min_rows=1))
def test_every_slot_is_every_map_on_every_row(case: tuple[StackedLinear, Tensor, Tensor]) -> None:
    bank, x, _ = case
    answer = bank.every_slot(x)
    for slot in range(bank.weight.shape[0]):
        everyone = torch.full((len(x),), slot)
        torch.testing.assert_close(answer[:, slot], row_by_row(bank, x, everyone), rtol=1e-12, atol=1e-12)


@given(case=banks(), slot=st.integers(0, 5), to=st.integers(0, 2))
def test_a_map_can_be_copied_from_another_bank(case: tuple[StackedLinear, Tensor, Tensor], slot: int, to: int) -> None:
    source, x, _ = case
    slot = slot % source.weight.shape[0]
    _, outputs, inputs = source.weight.shape
    bank = StackedLinear(3, inputs, outputs, bias=source.bias is not None).double()
    before = bank.weight.detach().clone()
    bank.copy_slot(to, source, slot)
    torch.testing.assert_close(bank.every_slot(x)[:, to], source.every_slot(x)[:, slot], rtol=1e-12, atol=1e-12)
    others = [i for i in range(3) if i != to]
    assert torch.equal(bank.weight[others], before[others])
    with torch.no_grad():
        bank.weight.add_(1.0)
    assert not torch.equal(bank.weight[to], source.weight[slot]), "a copy, not a view"


def test_a_map_can_be_copied_with_some_of_its_outputs() -> None:
    source, bank, x = StackedLinear(2, 4, 5), StackedLinear(3, 4, 3), torch.randn(6, 4)
    bank.copy_slot(2, source, 1, [4, 0])
    torch.testing.assert_close(bank.every_slot(x)[:, 2, :2], source.every_slot(x)[:, 1, [4, 0]])


@pytest.mark.parametrize("way", WAYS)
def test_autocast_computes_in_bfloat16_and_learns_in_float32(way: str) -> None:
    bank = StackedLinear(3, 16, 5)
    slots, x = torch.tensor([2, 0, 0, 1, 2]), torch.randn(5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        answer = in_given_order(bank, x, laid_out(slots, 3, way))
    assert answer.dtype == torch.bfloat16
    torch.testing.assert_close(answer.float(), row_by_row(bank, x, slots), rtol=0.03, atol=0.03)
    answer.float().sum().backward()
    assert bank.weight.grad is not None
    assert bank.weight.grad.dtype == torch.float32


def test_fan_in_scales_the_initial_weights_like_one_layer_over_the_whole_input() -> None:
    part = StackedLinear(50, 4, 20, fan_in=100)
    assert float(part.weight.detach().abs().max()) <= 0.1
    assert float(part.weight.detach().abs().max()) > 0.099
    whole = StackedLinear(50, 4, 20)
    assert 0.495 < float(whole.weight.detach().abs().max()) <= 0.5


def test_a_bank_says_what_it_holds_and_what_it_costs() -> None:
    bank = StackedLinear(3, 16, 5, bias=False)
    assert bank.macs == 80
    assert repr(bank) == "StackedLinear(slots=3, in=16, out=5, bias=False)"


# --- small networks ---------------------------------------------------------------------------------------------------

SLOTS = torch.tensor([2, 0, 2, 3, 0, 2])


def two_layers(one_slot: bool = False) -> tuple[StackedLinear, StackedLinear, StackedLinear]:
    """Parts of a ReLU network: two for the inputs of the first layer, then the second layer."""
    slots = 1 if one_slot else 4
    first, beside = StackedLinear(slots, 3, 5), StackedLinear(slots, 2, 5, bias=False)
    return first.double(), beside.double(), StackedLinear(slots, 5, 2).double()


def spelled_out(
    parts: tuple[StackedLinear, StackedLinear, StackedLinear], x: Tensor, y: Tensor, slots: Tensor
) -> Tensor:
    first, beside, last = parts
    hidden = row_by_row(first, x, slots) + row_by_row(beside, y.expand(len(x), -1), slots)
    return row_by_row(last, hidden.clamp(min=0), slots)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["many slots", "one slot", "one slot and one row for all"])
def test_a_stacked_network_equals_row_by_row_in_values_and_gradients(kind: str, way: str) -> None:
    one = kind != "many slots"
    parts = two_layers(one)
    slots = torch.zeros_like(SLOTS) if one else SLOTS
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1 if "one row" in kind else 6, 2, dtype=torch.float64, requires_grad=True)
    layout = laid_out(slots, 1 if one else 4, way)
    order = torch.arange(6) if layout.order is None else layout.order
    first, beside, last = parts
    inputs = [(x[order], first), (y if len(y) == 1 else y[order], beside)]
    got = stacked_network(inputs, [last], layout)[torch.argsort(order)]
    expected = spelled_out(parts, x, y, slots)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    wanted = [x, y, *(parameter for part in parts for parameter in part.parameters())]
    for mine, theirs in zip(
        torch.autograd.grad(got.square().sum(), wanted),
        torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(stacked_network(inputs, [last], layout)[torch.argsort(order)], expected)


@pytest.mark.parametrize("way", WAYS)
def test_second_derivatives_are_right_too(way: str) -> None:
    first, _, last = two_layers()
    layout = laid_out(SLOTS, 4, way)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: stacked_network([(x, first)], [last], layout).square(), (x,))


@pytest.mark.parametrize("way", WAYS)
def test_maps_that_change_before_the_backward_pass_are_noticed(way: str) -> None:
    """As by any other layer: a gradient of weights that are gone would be silently wrong."""
    first, _, last = two_layers()
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    answer = stacked_network([(x, first)], [last], laid_out(SLOTS, 4, way))
    (before,) = torch.autograd.grad(answer.sum(), x, retain_graph=True)
    with torch.no_grad():
        last.weight.mul_(0.5)
    if way == "padded":  # tables of the visited maps are copies
        answer.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, before), "the gradient of what was computed"
        return
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        answer.sum().backward()

"""One level of a walk in compiled code: `level.h` on the tensors of its routers and experts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nbsr_core.kernels.banks import Bank
from nbsr_core.kernels.interface import Level
from nbsr_core.kernels.native.build import library
from nbsr_core.options.specs import RoutingMode

MOST_INPUTS, MOST_LAYERS = 3, 8  # as in level.h
ACTIVATIONS = ("softplus", "sigmoid", "exp")  # numbered as in activations.h

_Address, _Size = ctypes.c_void_p, ctypes.c_int64
_Addresses, _Layers = _Address * MOST_INPUTS, _Address * MOST_LAYERS


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, _Size) for name in ("slots", "inputs", "layers")),
        ("input_size", _Size * MOST_INPUTS),
        ("shared", _Size * MOST_INPUTS),
        ("size", _Size * MOST_LAYERS),
        ("x", _Addresses),
        ("first", _Addresses),
        *((name, _Layers) for name in ("weight", "bias", "value", "grad")),
        ("of_x", _Addresses),
        ("of_first", _Addresses),
        *((name, _Layers) for name in ("of_weight", "of_bias")),
    )


class _Evidence(ctypes.Structure):
    _fields_ = (("kind", _Size), *((name, ctypes.c_float) for name in ("limit", "smallest")))


class LevelCall(ctypes.Structure):
    """`Level` of level.h."""

    _fields_ = (
        *((name, _Size) for name in ("rows", "children")),
        ("tau", ctypes.c_double),
        ("activation", _Evidence),
        *((name, _Address) for name in ("position", "slot_of_node", "child_position", "missing", "exponential")),
        *((name, _Address) for name in ("relaxed", "evidence", "choice", "arrived")),
        ("router", _Network),
        ("expert", _Network),
        *((name, _Address) for name in ("of_evidence", "of_logits", "of_relaxed")),
        *((name, _Size) for name in ("taught", "asked")),
    )


class _Networks:
    """A bank as `level.h` wants it: sizes once, addresses at every call."""

    def __init__(self, bank: Bank) -> None:
        first, rest = bank.first(), bank.rest()
        self.maps = [stack._parameters for stack in (*first, *rest)]  # looked up there: a parameter may be replaced
        self.slots, self.inputs, self.layers = bank.slots, len(first), 1 + len(rest)
        self.input_sizes = [stack.weight.shape[2] for stack in first]
        self.sizes = [stack.weight.shape[1] for stack in (first[0], *rest)]

    def describe(self, network: _Network) -> None:
        network.slots, network.inputs, network.layers = self.slots, self.inputs, self.layers
        network.input_size[: self.inputs] = self.input_sizes
        network.size[: self.layers] = self.sizes

    def parameters(self) -> list[Tensor]:
        """Weights and biases, map by map: those of the inputs, then those of the other layers."""
        return [tensor for stack in self.maps for tensor in stack.values() if tensor is not None]

    def place(self, to: tuple[Any, Any, Any], tensors: Sequence[Tensor | None]) -> int:
        """Addresses of what belongs to each of `parameters`; how many tensors that took."""
        of_inputs, of_layers, biases = to
        taken = 0
        for index, stack in enumerate(self.maps):
            address = _at(tensors[taken])
            if index < self.inputs:
                of_inputs[index] = address
            else:
                of_layers[index - self.inputs + 1] = address
            taken += 1
            if stack.get("bias") is not None:
                biases[max(0, index - self.inputs + 1)] = _at(tensors[taken])
                taken += 1
        return taken


@dataclass(eq=False)
class LevelRun:
    """One call of compiled code: what it gave, and what its derivative needs.

    Attributes:
        call: how compiled code was called.
        kept: all tensors whose addresses are in there but evidence, logits and relaxed choice: a function of autograd
            that holds its own results is never freed.
    """

    evidence: Float[Tensor, "b K"]
    logits: Float[Tensor, "b children"]
    relaxed: Float[Tensor, "b children"] | None
    choice: Int[Tensor, " b"]
    arrived: Int[Tensor, " b"]
    call: LevelCall
    kept: list[Any]


class CompiledLevel:
    """A `Level` whose experts are of one kind, as compiled code wants it."""

    def __init__(self, level: Level) -> None:
        self.routers, (experts,) = level.routers, level.experts.banks
        self.expert = _Networks(experts)
        self.router = None if self.routers.bank is None else _Networks(self.routers.bank)
        spec = experts.spec
        call = LevelCall(children=self.routers.num_children)
        call.activation = _Evidence(ACTIVATIONS.index(spec.activation), spec.limit or 0.0, spec.smallest)
        self.expert.describe(call.expert)
        if self.router is not None:
            self.router.describe(call.router)
        self.template = bytes(call)  # plain, so that models can be copied and pickled
        self.last_call: tuple[tuple[int, ...], bytes] | None = None  # addresses, and what follows from them

    @staticmethod
    def of(level: Level) -> CompiledLevel:
        """The compiled form of a level, made at the first call."""
        if level.prepared is None:
            level.prepared = CompiledLevel(level)
        prepared: CompiledLevel = level.prepared
        return prepared

    def parameters(self) -> list[Tensor]:
        """What is learned here: the routers' part, then the experts'."""
        return [*(self.router.parameters() if self.router is not None else ()), *self.expert.parameters()]

    def addressed(self, parameters: Sequence[Tensor]) -> tuple[LevelCall, list[Any]]:
        """A call that knows where all parameters and tables are, and what must be held meanwhile."""
        parameters, routers = [tensor.contiguous() for tensor in parameters], self.routers
        tables = [routers.child_position, routers.slot_of_node, routers.missing]
        addresses = tuple([tensor.data_ptr() for tensor in (*parameters, *tables)])
        if self.last_call is None or self.last_call[0] != addresses:
            self.last_call = addresses, self._call_with(parameters)
        return LevelCall.from_buffer_copy(self.last_call[1]), [parameters, tables]

    def _call_with(self, parameters: Sequence[Tensor]) -> bytes:
        call, routers = LevelCall.from_buffer_copy(self.template), self.routers
        call.child_position, taken = _at(routers.child_position), 0
        if self.router is not None:
            network = call.router
            taken = self.router.place((network.first, network.weight, network.bias), parameters)
            if not routers.all_inner:
                call.slot_of_node = _at(routers.slot_of_node)
            if routers.uneven:
                call.missing = _at(routers.missing)
        network = call.expert
        self.expert.place((network.first, network.weight, network.bias), parameters[taken:])
        return bytes(call)

    def run(
        self,
        inputs: list[Tensor],
        parameters: Sequence[Tensor],
        position: Int[Tensor, " b"],
        mode: RoutingMode,
        tau: float,
    ) -> LevelRun:
        """One level down. `inputs` are h and whatever else the routers see."""
        inputs = [x.contiguous() for x in inputs]
        position = position.contiguous()
        h, batch = inputs[0], inputs[0].shape[0]
        call, kept = self.addressed(parameters)
        call.rows, call.tau = batch, tau
        call.position = _at(position) if self.routers.size > 1 else None
        kept += [inputs, position]
        relaxed = None
        if self.router is not None:
            network = call.router
            addresses, shared = network.x, network.shared
            for index, x in enumerate(inputs):
                addresses[index], shared[index] = x.data_ptr(), x.shape[0] != batch
            values = _values(self.router, h, network)
            logits = values[-1]
            if mode != "argmax":
                relaxed = torch.empty_like(logits)
                call.relaxed = _at(relaxed)
                if mode == "gumbel":
                    draws = torch.empty_like(logits).exponential_()
                    call.exponential = _at(draws)
                    kept.append(draws)
            kept.append(values[:-1])
        else:
            logits = h.new_zeros(batch, 1)
            relaxed = None if mode == "argmax" else h.new_ones(batch, 1)
        network = call.expert
        network.x[0] = h.data_ptr()
        values = _values(self.expert, h, network)
        evidence = torch.empty_like(values[-1])
        choice, arrived = position.new_empty(batch), position.new_empty(batch)
        call.evidence, call.choice, call.arrived = _at(evidence), _at(choice), _at(arrived)
        kept += [values, choice, arrived]
        compiled = library()
        assert compiled is not None, "chosen only where there is one"
        compiled.nbsr_level(ctypes.byref(call))
        return LevelRun(evidence, logits, relaxed, choice, arrived, call, kept)

    def differentiate(
        self,
        call: LevelCall,
        evidence: Tensor,
        relaxed: Tensor | None,
        inputs: Sequence[Tensor],
        wanted: Sequence[bool],
        parameters: Sequence[Tensor],
        of_evidence: Tensor | None,
        of_logits: Tensor | None,
        of_relaxed: Tensor | None,
        taught: bool,
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Gradients of inputs (where wanted) and parameters; None for what nothing reached.

        Evidence and relaxed choice are those that `run` gave, wherever autograd has kept them.
        """
        call = LevelCall.from_buffer_copy(call)
        call.evidence, call.relaxed = _at(evidence), _at(relaxed)
        given = [None if grad is None else grad.contiguous() for grad in (of_evidence, of_logits, of_relaxed)]
        call.of_evidence, call.of_logits, call.of_relaxed = map(_at, given)
        call.taught = taught and of_evidence is not None
        asked = self.router is not None and (of_logits is not None or of_relaxed is not None or bool(call.taught))
        call.asked = asked
        count = 0 if self.router is None else len(self.router.parameters())
        of_parameters: list[Tensor | None] = [
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            if (asked if index < count else of_evidence is not None)
            else None
            for index, tensor in enumerate(parameters)
        ]
        reached = [of_evidence is not None or asked, *[asked] * (len(inputs) - 1)]
        of_inputs = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if needed and there else None
            for x, needed, there in zip(inputs, wanted, reached, strict=True)
        ]
        if asked and self.router is not None:
            self.router.place((call.router.of_first, call.router.of_weight, call.router.of_bias), of_parameters)
            for index, of_x in enumerate(of_inputs):
                call.router.of_x[index] = _at(of_x)
        if of_evidence is not None:
            self.expert.place((call.expert.of_first, call.expert.of_weight, call.expert.of_bias), of_parameters[count:])
            call.expert.of_x[0] = _at(of_inputs[0])
        compiled = library()
        assert compiled is not None
        compiled.nbsr_level_gradient(ctypes.byref(call))
        return of_inputs, of_parameters


def _values(bank: _Networks, like: Tensor, network: _Network) -> list[Tensor]:
    """Room for what every layer gives."""
    rows, addresses = like.shape[0], network.value
    values = [like.new_empty(rows, size) for size in bank.sizes]
    for index, value in enumerate(values):
        addresses[index] = value.data_ptr()
    return values


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

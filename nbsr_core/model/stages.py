"""A backbone in stages: `h_1, h_2, ...`, so that whoever stops early leaves the rest of the backbone uncomputed.

The router that chooses a node of depth t and the expert there read `h_t`, the oracle of stage t; where there are fewer
stages than depths, the last one serves all deeper levels. So a walk that stops at depth t needs stages 1 to t and no
other. The paper's single oracle is the case of one stage: any module that is not `Stages` is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, fx, nn

from nbsr_core.errors import InputError
from nbsr_core.model._modules import ModulesOf

StageStep = Callable[[Tensor], tuple[Tensor, Float[Tensor, "b d"]]]
"""From what the stage before left behind (the input, for the first) to what the next one needs, and the oracle."""


class Stages(nn.Module):
    """Modules one after another, of which each one's output is wanted: feature maps as means over their places.

    Called like any module it gives the oracles of all stages, which is how training goes through it; `steps_of` goes
    through it one stage at a time.

    Args:
        stages: each takes what the one before it gives; of any width.

    Attributes:
        rows_at_once: rows whose feature maps are held at the same time where walks may stop; all of a chunk by default.

    Examples:
        >>> import torch, nbsr_core as nbsr
        >>> layers = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4), torch.nn.ReLU()]
        >>> stages = nbsr.Stages.cut(torch.nn.Sequential(*layers), ["1", "3"])
        >>> [h.shape[1] for h in stages(torch.randn(2, 6))]
        [8, 4]
        >>> graph = nbsr.DecisionGraph.uniform(depth=2, width=3)
        >>> model = nbsr.NBSR(stages, graph, num_classes=5, oracle_dim=[8, 4])
        >>> model.predict(torch.randn(2, 6), eta=-2.0).depth.shape
        torch.Size([2])
    """

    rows_at_once: int = sys.maxsize

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        if not stages:
            raise InputError("a backbone in stages needs at least one stage, got none")
        self.stages = ModulesOf[nn.Module](stages)

    @staticmethod
    def cut(network: nn.Module, ends: Sequence[str]) -> Stages:
        """A network in stages, see `cut`."""
        return Stages(cut(network, ends))

    def prepared(self, x: Tensor) -> Tensor:
        """What the first stage is given: the input as it is, unless a subclass has something to do before."""
        return x

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "b _"], ...]:
        """The oracles of all stages."""
        left, found = self.prepared(x), []
        for stage in self.stages:
            left = stage(left)
            found.append(pooled(left))
        return tuple(found)

    @property
    def steps(self) -> tuple[StageStep, ...]:
        """The stages one by one."""
        first, *rest = self.stages
        return (lambda x: _taken(first, self.prepared(x)), *(_step(stage) for stage in rest))


def steps_of(backbone: nn.Module) -> tuple[StageStep, ...]:
    """Any backbone stage by stage; one that has none is a stage by itself, with nothing after it."""
    return backbone.steps if isinstance(backbone, Stages) else (lambda x: (x, backbone(x)),)


def rows_at_once(backbone: nn.Module) -> int:
    """Rows that go through the stages together; a backbone without stages sees to that itself."""
    return backbone.rows_at_once if isinstance(backbone, Stages) else sys.maxsize


def pooled(features: Tensor) -> Float[Tensor, "b d"]:
    """Vectors as they are; feature maps [b, d, ...] as their means over all places."""
    return features if features.ndim <= 2 else features.flatten(2).mean(2)


def _step(stage: nn.Module) -> StageStep:
    return lambda left: _taken(stage, left)


def _taken(stage: nn.Module, left: Tensor) -> tuple[Tensor, Float[Tensor, "b d"]]:
    left = stage(left)
    return left, pooled(left)


def cut(network: nn.Module, ends: Sequence[str]) -> list[nn.Module]:
    """A network as modules that give, one after another, what it gives; each but the last ends at a named submodule.

    What follows the last of the names belongs to the last stage, so its oracle is the output of the network itself. It
    may pool or flatten, but has no weights: a layer that learns is part of a stage that is named.

    The forward of the network is recorded once (torch.fx), its submodules as they stand. So it must not branch on
    values, and nothing but the output of a named submodule may be used beyond it; what differs between training and use
    must be a submodule's affair.

    Args:
        network: `nn.Sequential`, or a module whose forward calls its submodules one after another (ResNets do).
        ends: names of submodules, as in `network.named_modules()`, in the order in which they are called. The weights
            stay theirs: stages share them with the network.
    """
    graph = _recorded(network, ends)
    nodes = list(graph.nodes)
    places = [_place(nodes, end) for end in ends]
    if places != sorted(set(places)):
        raise InputError(f"stages must be named once each and in the order in which they are called, got {list(ends)}")
    _check_rest(network, nodes[places[-1] + 1 :], ends[-1])
    borders = [0, *(place + 1 for place in places[:-1]), len(nodes)]
    return [_part(network, nodes, start, stop) for start, stop in pairwise(borders)]


class _Outline(fx.Tracer):
    """Records a forward down to the named submodules: all others stay whole, whatever happens inside them."""

    def __init__(self, ends: Sequence[str]) -> None:
        super().__init__()
        self.ends = tuple(ends)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(end.startswith(f"{module_qualified_name}.") for end in self.ends)


def _recorded(network: nn.Module, ends: Sequence[str]) -> fx.Graph:
    known = dict(network.named_modules())
    if not ends:
        raise InputError("stages must name at least one submodule, got none")
    for end in ends:
        if not end or end not in known:
            names = ", ".join(repr(name) for name, _ in network.named_children())
            raise InputError(f"stages: {type(network).__name__} has no submodule {end!r}; it has {names or 'none'}")
    try:
        return _Outline(ends).trace(network)
    except Exception as error:  # of any kind: the forward is somebody's own code
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"stages: the forward of {type(network).__name__} cannot be recorded ({reason}); it must call its "
            "submodules one after another, without branching on values"
        ) from None


def _place(nodes: Sequence[fx.Node], end: str) -> int:
    """Where in the record a submodule is called."""
    found = [place for place, node in enumerate(nodes) if node.op == "call_module" and node.target == end]
    if len(found) != 1:
        raise InputError(f"stages: {end!r} must be called once in the network's forward, got {len(found)} calls")
    return found[0]


def _check_rest(network: nn.Module, rest: Sequence[fx.Node], last: str) -> None:
    for node in rest:
        learns = node.op == "get_attr" or (
            node.op == "call_module" and any(True for _ in network.get_submodule(str(node.target)).parameters())
        )
        if learns:
            raise InputError(
                f"stages: {str(node.target)!r} comes after the last stage, {last!r}, and has weights: name it, or what "
                "it is part of, as the last stage"
            )


def _part(network: nn.Module, nodes: Sequence[fx.Node], start: int, stop: int) -> fx.GraphModule:
    """The recorded calls from `start` to `stop` as a module of their own, from one tensor to one tensor."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    if start:
        border = nodes[start - 1]
        copies[border] = graph.placeholder("left")
    for node in nodes[start:stop]:
        missing = [used for used in node.all_input_nodes if used not in copies]
        if missing:
            raise InputError(
                f"stages: {node.name!r} needs {missing[0].name!r} from before the stage that it is in; only the output "
                f"of {nodes[start - 1].target!r} is handed on"
            )
        if node.op == "output":
            break
        copies[node] = graph.node_copy(node, copies.__getitem__)
    last = nodes[stop - 1]
    graph.output(copies[last.all_input_nodes[0]] if last.op == "output" else copies[last])
    return fx.GraphModule(network, graph)

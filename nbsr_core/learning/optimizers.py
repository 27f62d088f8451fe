"""What moves the weights: Adam, or Muon on a backbone's matrices with gradient descent on all else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nbsr_core.errors import InputError
from nbsr_core.learning.config import TrainingConfig

# Short memories, as suits trainings of some hundred steps.
MUON_MOMENTUM = 0.6
DESCENT_MOMENTUM = 0.85

WITH_MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Group = dict[str, Any]


def make_optimizer(model: nn.Module, backbone: nn.Module | None, config: TrainingConfig) -> Optimizer:
    """The optimizer that `config` names, over all parameters of the model.

    Args:
        model: what is trained.
        backbone: the part of it that is decayed, and has the matrices that Muon turns; None where it has none.
        config: names, rates and decay.
    """
    if not list(model.parameters()):
        raise InputError(f"{type(model).__name__} has no parameters to train")
    if config.optimizer == "muon":
        return _muon(model, backbone, config)
    inside = {id(p) for p in (backbone or model).parameters()}
    decayed = [p for p in model.parameters() if config.decay_everything or id(p) in inside]
    others = [p for p in model.parameters() if not (config.decay_everything or id(p) in inside)]
    groups = _groups((decayed, {"weight_decay": config.weight_decay}), (others, {"weight_decay": 0.0}))
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.learning_rate, fused=True)


def _groups(*parts: tuple[list[nn.Parameter], Group]) -> list[Group]:
    """Groups with their settings; those without parameters are left out."""
    return [{"params": members, **settings} for members, settings in parts if members]


def _muon(model: nn.Module, backbone: nn.Module | None, config: TrainingConfig) -> MuonAndDescent:
    matrices = [] if backbone is None else matrices_of(backbone)
    if backbone is None or not matrices:
        raise InputError(
            f"training.optimizer: muon turns the layers of a `backbone`, and that of {type(model).__name__} has none; "
            "choose adam or adamw"
        )
    turned, inside = {id(p) for p in matrices}, {id(p) for p in backbone.parameters()}
    rest = [p for p in model.parameters() if id(p) not in turned]
    bias_rate = config.learning_rate if config.bias_rate is None else config.bias_rate
    groups = _groups(
        ([p for p in rest if id(p) not in inside], {"lr": config.learning_rate}),
        ([p for p in rest if id(p) in inside], {"lr": bias_rate}),
    )
    rest_decay = config.weight_decay if config.decay_everything else 0.0
    return MuonAndDescent(matrices, config.muon_rate, config.weight_decay, groups, rest_decay)


def matrices_of(module: nn.Module) -> list[Tensor]:
    """The weights of all linear and convolutional layers, each once."""
    found = {id(part.weight): part.weight for part in module.modules() if isinstance(part, WITH_MATRICES)}
    return list(found.values())


class MuonAndDescent(Optimizer):
    """Muon on some weights, gradient descent with Nesterov's momentum on the others, as one optimizer.

    torch's Muon takes matrices alone. A filter [out, in, k, k] is one of [out, in * k * k], but as a view only in one
    of the memory layouts that filters may have. So Muon has copies, which are filled before each step and read after
    it: a thousandth of the work of a step, the same bits in every layout, and a state that does not depend on it.

    Schedulers see the groups of both, those of gradient descent first; the state is that of both.

    Args:
        turned: weights for Muon, with two dimensions or more.
        rate: how far Muon turns them.
        decay: their weight decay, decoupled.
        groups: all other parameters, with their rates.
        rest_decay: weight decay of those, coupled.
    """

    def __init__(
        self,
        turned: Sequence[Tensor],
        rate: float,
        decay: float,
        groups: Sequence[Group],
        rest_decay: float = 0.0,
    ) -> None:
        self.turned = list(turned)
        self.matrices = [_as_matrix(weight.detach()).clone() for weight in self.turned]
        self.muon = torch.optim.Muon(self.matrices, lr=rate, weight_decay=decay, momentum=MUON_MOMENTUM)
        self.descent = (
            torch.optim.SGD(groups, momentum=DESCENT_MOMENTUM, nesterov=True, weight_decay=rest_decay)
            if groups
            else None
        )
        super().__init__([*self.turned, *(p for group in groups for p in group["params"])], {})
        self._show_groups()

    def _parts(self) -> dict[str, Optimizer]:
        return {**({} if self.descent is None else {"descent": self.descent}), "muon": self.muon}

    def _show_groups(self) -> None:
        """The very groups of both, so that whoever changes a rate changes it where it counts."""
        self.param_groups = [group for part in self._parts().values() for group in part.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight in (*self.turned, *self._moved()):
            if set_to_none or weight.grad is None:
                weight.grad = None
            else:
                weight.grad.zero_()

    def _moved(self) -> Iterable[Tensor]:
        return () if self.descent is None else (p for group in self.descent.param_groups for p in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise InputError("Muon makes its steps without a closure")
        for weight, matrix in zip(self.turned, self.matrices, strict=True):
            matrix.copy_(_as_matrix(weight))
            matrix.grad = None if weight.grad is None else _as_matrix(weight.grad).contiguous()
        for part in self._parts().values():
            part.step()
        for weight, matrix in zip(self.turned, self.matrices, strict=True):
            if matrix.grad is not None:
                weight.copy_(matrix.view(weight.shape))
            matrix.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state_dict[name])
        self._show_groups()


def _as_matrix(weight: Tensor) -> Tensor:
    return weight.flatten(1)

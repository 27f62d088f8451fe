"""`nn.ModuleList` that says in its type what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


class ModulesOf(nn.ModuleList, Generic[M]):
    """A list of modules of one kind."""

    if TYPE_CHECKING:

        def __getitem__(self, index: int) -> M: ...  # type: ignore[override]

        def __iter__(self) -> Iterator[M]: ...

"""Navigation: an agent that sees 5x5 cells, remembers, says why it goes where it goes, and halts before the unknown."""

from contextlib import suppress
from typing import TYPE_CHECKING

from nbsr_core._extras import MissingExtraError
from nbsr_core._lazy import on_first_use
from nbsr_core.domains.navigation.domain import Navigation

if TYPE_CHECKING:
    from nbsr_core.domains.navigation.environment import GridWorld

with suppress(MissingExtraError):  # studies need no gymnasium; whoever asks for the environment is told
    from nbsr_core.domains.navigation.environment import register

    register()

__all__ = ["GridWorld", "Navigation"]

__getattr__ = on_first_use(__name__, {"GridWorld": "environment"})

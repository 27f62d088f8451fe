"""Navigation: an agent that sees 5x5 cells, remembers, says why it goes where it goes, and halts before the unknown."""

from nbsr_core.domains.navigation.domain import Navigation
from nbsr_core.domains.navigation.environment import GridWorld, register

register()

__all__ = ["GridWorld", "Navigation"]

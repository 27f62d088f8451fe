"""The scenarios, each a small function that does one thing to a study and counts what is left of it."""

from benchmarks.reliability.scenarios.cluster import ON_A_CLUSTER
from benchmarks.reliability.scenarios.common import Scenario
from benchmarks.reliability.scenarios.endings import ENDINGS
from benchmarks.reliability.scenarios.machine import ON_ONE_MACHINE
from benchmarks.reliability.scenarios.sharing import SHARING

SCENARIOS: dict[str, Scenario] = {**ON_A_CLUSTER, **ON_ONE_MACHINE, **SHARING, **ENDINGS}

__all__ = ["SCENARIOS", "Scenario"]

"""Compiled levels for walks on a CPU; everything works without them, at about half the speed.

`build` compiles `step.c` with the machine's own C compiler when it is first needed, and keeps it. `level` calls it
on tensors, `step` differentiates. `NBSR_NATIVE=0` switches it off.
"""

from nbsr_core.native.build import availability, outlook
from nbsr_core.native.level import CompiledLevel
from nbsr_core.native.step import Siblings, run_compiled

__all__ = ["CompiledLevel", "Siblings", "availability", "outlook", "run_compiled"]

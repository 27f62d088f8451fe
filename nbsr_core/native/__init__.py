"""Compiled walks on a CPU; everything works without them, at about half the speed.

`build` compiles `walk.c` with the machine's own C compiler when it is first needed, and keeps it. `level` takes one
step in it and `step` differentiates that; `walk` goes all the way without derivatives; `rows` holds passes over a
batch. `NBSR_NATIVE=0` switches it off.
"""

from nbsr_core.native.build import availability, outlook
from nbsr_core.native.level import CompiledLevel
from nbsr_core.native.rows import ExitTest, calibrated_rows, distances, is_plain, marginals, screened
from nbsr_core.native.step import Siblings, run_compiled
from nbsr_core.native.walk import walk_compiled

__all__ = [
    "CompiledLevel",
    "ExitTest",
    "Siblings",
    "availability",
    "calibrated_rows",
    "distances",
    "is_plain",
    "marginals",
    "outlook",
    "run_compiled",
    "screened",
    "walk_compiled",
]

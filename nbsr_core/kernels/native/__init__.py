"""Compiled walks on a CPU; everything works without them, at about half the speed.

`build` compiles `walk.c` with the machine's own C compiler when it is first needed, and keeps it (`keeping`). `level`
runs one level in it and `derivative` shows that to autograd; `walk` goes all the way without derivatives; `rows` holds
passes over a batch; `backend` offers all this to the others. `NBSR_NATIVE=0` switches it off.
"""

from nbsr_core.kernels.native.backend import Compiled

__all__ = ["Compiled"]

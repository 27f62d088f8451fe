"""Inputs that are broken or mean harm, and what `nbsr` says to each: one clear message, exit code 2, nothing written.

One list for the test that tries them all and for the table in docs/reliability.md; one module for each kind of input.
"""

from benchmarks.reliability.hostile.case import OWNED, PASSWORD, Hostile
from benchmarks.reliability.hostile.files import FILES
from benchmarks.reliability.hostile.packing import PACKING
from benchmarks.reliability.hostile.rehearsed import REHEARSED
from benchmarks.reliability.hostile.stores import STORES
from benchmarks.reliability.hostile.studies import STUDIES
from benchmarks.reliability.hostile.trust import TRUST

HOSTILE: tuple[Hostile, ...] = (*STUDIES, *STORES, *TRUST, *FILES, *PACKING, *REHEARSED)

__all__ = ["HOSTILE", "OWNED", "PASSWORD", "Hostile"]

"""Inputs that are broken or mean harm, and what `nbsr` says to each: one clear message, exit code 2, nothing written.

One list for the test that tries them all and for the table in docs/reliability.md; one module for each kind of input.
"""

from benchmarks.reliability.hostile.case import OWNED, PASSWORD, Hostile
from benchmarks.reliability.hostile.packing import PACKING
from benchmarks.reliability.hostile.stores import STORES
from benchmarks.reliability.hostile.studies import STUDIES

HOSTILE: tuple[Hostile, ...] = (*STUDIES, *STORES, *PACKING)

__all__ = ["HOSTILE", "OWNED", "PASSWORD", "Hostile"]

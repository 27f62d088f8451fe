"""The study file: reading, checking, search spaces, variants and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.study.problems import StudyError
    from nbsr_platform.study.study import Collection, Study, load

__all__ = ["Collection", "Study", "StudyError", "load"]

__getattr__ = on_first_use(
    __name__,
    {
        "Collection": "study",
        "Study": "study",
        "StudyError": "problems",
        "load": "study",
    },
)

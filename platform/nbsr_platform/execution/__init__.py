"""Running a study: from what is missing to what is recorded, here or on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.execution.run_result import RunResult
    from nbsr_platform.execution.runner import run

__all__ = ["RunResult", "run"]

__getattr__ = on_first_use(__name__, {"RunResult": "run_result", "run": "runner"})

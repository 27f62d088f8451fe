"""Trained models for others to use: what MLflow loads, and how it is written there.

The scripts of models that were saved long ago import their names from here: they stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.serving.served_model import CONFIG, WEIGHTS, ModelConfig, ServedModel

__all__ = ["CONFIG", "WEIGHTS", "ModelConfig", "ServedModel"]

__getattr__ = on_first_use(__name__, dict.fromkeys(__all__, "served_model"))

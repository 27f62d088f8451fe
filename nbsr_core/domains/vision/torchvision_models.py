"""The only place that imports torchvision.

Registries carry a CUDA build of torchvision whose compiled operators do not load beside a CPU build of torch, and its
import dies of it. Its models are pure Python: where the operators cannot be loaded, their two schemas that the import
asks for are declared first, without an implementation that anybody here would call.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from nbsr_core._extras import extra

_declared: list[torch.library.Library] = []
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def torchvision(submodule: str) -> ModuleType:
    """`torchvision.<submodule>`, with or without its compiled operators."""
    with extra("vision"):
        try:
            return importlib.import_module(f"torchvision.{submodule}")
        except RuntimeError as error:
            if "torchvision::" not in str(error) or _declared:
                raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        _declared.append(library)
        return importlib.import_module(f"torchvision.{submodule}")

"""Where data and models come from: one folder for each domain, and the door through which every domain comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.domains.domain import Domain, ModelKind, Signature, find_domain
    from nbsr_core.learning.splits import Splits

__all__ = ["Domain", "ModelKind", "Signature", "Splits", "find_domain"]

__getattr__ = on_first_use(
    __name__,
    {
        "Domain": "domain",
        "ModelKind": "domain",
        "Signature": "domain",
        "Splits": "nbsr_core.learning.splits",
        "find_domain": "domain",
    },
)

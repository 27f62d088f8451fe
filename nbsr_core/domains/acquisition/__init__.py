"""Tables whose columns have prices: what to buy, in which order, and when it is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.domains.acquisition.data import AcquisitionData
    from nbsr_core.domains.acquisition.domain import Acquisition
    from nbsr_core.domains.acquisition.tables import load

__all__ = ["Acquisition", "AcquisitionData", "load"]

__getattr__ = on_first_use(__name__, {"Acquisition": "domain", "AcquisitionData": "data", "load": "tables"})

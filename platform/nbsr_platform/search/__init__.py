"""Searches: proposals from Optuna, where they are kept, and what is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_platform.search.feed import SearchFeed
    from nbsr_platform.search.proposals import Proposal
    from nbsr_platform.search.record import SearchRecord

__all__ = ["Proposal", "SearchFeed", "SearchRecord"]

__getattr__ = on_first_use(
    __name__,
    {
        "Proposal": "proposals",
        "SearchFeed": "feed",
        "SearchRecord": "record",
    },
)

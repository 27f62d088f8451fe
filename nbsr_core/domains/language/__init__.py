"""Language: next-token prediction over a grammar whose bound is known, and over real text."""

from nbsr_core.domains.language.domain import Language

__all__ = ["Language"]

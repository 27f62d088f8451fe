"""What can go wrong, said once and clearly.

Every error that a user can cause is an `NbsrError`. The message names what was given and what was expected, so that
it can be shown as it is; the builtin in the second base lets callers who know nothing of us catch it too.
"""

from __future__ import annotations


class NbsrError(Exception):
    """Root of all errors raised on purpose by NBSR."""


class InputError(NbsrError, ValueError):
    """A value, shape or dtype that the called function cannot work with."""


class GraphError(NbsrError, ValueError):
    """A decision graph that cannot be walked; the message names the node."""


class NotFittedError(NbsrError, RuntimeError):
    """Something that is learned from data was used before it saw any."""

"""Shapes in signatures are checked at run time under test: a wrong one fails here, not in somebody's study."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import config as shape_checks
from jaxtyping import install_import_hook

install_import_hook("nbsr_core", "beartype.beartype")

# A shell that runs this in the background has it ignore Ctrl-C, and all that it starts; the tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("nbsr", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nbsr")


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As users run it: the library itself has to notice what tests otherwise catch by annotation."""
    before = shape_checks.jaxtyping_disable
    shape_checks.update("jaxtyping_disable", True)
    yield
    shape_checks.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

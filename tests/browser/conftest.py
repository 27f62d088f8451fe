"""Browser tests are skipped where there is no browser; they share one, since starting it takes longer than a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("selenium", reason="needs selenium (pip install 'nbsr[dev]')")
from pages import Browser, chromium, missing


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with chromium() as found:
        yield found

"""A tracking store of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform.tracking.tracker import Tracker
from toys import store_uri


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return store_uri(tmp_path)


@pytest.fixture
def tracker(uri: str, tmp_path: Path) -> Tracker:
    return Tracker(uri, tmp_path / "artifacts")

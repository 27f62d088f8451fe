"""How a study gets its Ray."""

from __future__ import annotations

import pytest
import ray
from nbsr_platform.session import RayError, ray_session


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (None, "Ray does not start here: The current node timed out during startup."),
        ("10.0.0.1:6379", "cannot use the Ray cluster at '10.0.0.1:6379': The current node timed out during startup."),
    ],
)
def test_a_ray_that_does_not_start_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, address: str | None, says: str
) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RayError) as caught, ray_session(address):
        pass
    assert str(caught.value) == says

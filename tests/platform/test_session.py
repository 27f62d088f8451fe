"""How a study gets its Ray."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import ray
from nbsr_platform.session import RayError, ray_session

# In a process of its own: no other test's Ray is there then.
WHO_LISTENS = """
import json, os
import ray
from nbsr_platform.listeners import listeners
from nbsr_platform.session import ray_session

with ray_session(None, cpus=1):
    ray.get(ray.remote(lambda: None).remote())
    ours = [one for one in listeners() if os.getsid(one.pid) == os.getsid(0)]
    print(json.dumps([[one.service, one.address, one.reachable] for one in ours]))
"""


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


@pytest.mark.slow
def test_a_ray_of_our_own_is_heard_by_this_machine_only() -> None:
    command = [sys.executable, "-c", WHO_LISTENS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, start_new_session=True)
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout.splitlines()[-1])
    assert len(heard) >= 5, "its control store, its node, its agents and a worker"
    assert [one for one in heard if one[2]] == []

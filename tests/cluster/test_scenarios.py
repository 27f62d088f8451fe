"""A real cluster of two nodes on loopback. All scenarios: `python -m benchmarks.reliability`; here the quickest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbsr_platform.base.listeners import listeners

from benchmarks.reliability.bench import Bench
from benchmarks.reliability.cluster import LocalCluster
from benchmarks.reliability.scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and shutil.which("initdb") is None:
        pytest.skip("Postgres is not installed here")
    folder = tmp_path_factory.mktemp("cluster")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)  # Postgres runs as a user of its own where we are root, and must reach its folder
    found = Bench(folder, LocalCluster(folder / "cluster"))
    found.ready()
    yield found
    found.cluster.down()
    assert found.cluster.processes() == [], "it takes down what it started"


def test_nothing_of_it_can_be_reached_from_elsewhere(bench: Bench) -> None:
    ours = set(bench.cluster.processes())
    heard = [one for one in listeners() if one.pid in ours]
    assert {"Ray's dashboard and Jobs", "Ray Client", "Ray's own parts"} <= {one.service for one in heard}
    assert [one for one in heard if one.reachable] == []


def test_a_project_with_modules_called_like_installed_ones_runs(bench: Bench) -> None:
    """A `queue.py` at the top of what Ray unpacks kept a job pending for ever."""
    study = bench.study("hiding", trials=1)
    for name in ("queue", "json", "ray"):
        study.with_name(f"{name}.py").write_text("raise AssertionError('hides what is installed')\n")
    job = bench.cluster.submit(study, "--wait")
    try:
        said, _ = job.communicate(timeout=400)
    finally:
        job.kill()
    assert job.returncode == 0, said
    assert "1/1 trials" in said


def test_a_submission_without_the_token_is_refused(bench: Bench) -> None:
    outcome = SCENARIOS["no-token"](bench)
    assert outcome.good, outcome

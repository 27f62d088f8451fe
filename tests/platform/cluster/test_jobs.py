"""Submissions: what travels, under which id, and what happens to the second one. Real clusters are in tests/cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nbsr_platform.cluster.jobs import Cluster, ClusterError, entrypoint, submission_key
from nbsr_platform.study.study import Study, load

from nbsr_core.errors import InputError

STUDY = "name: flowers\ndomain: iris\nmodels: {mlp: {}}\n"


@dataclass
class Dashboard:
    """As much of Ray's job server as a submission meets: ids are given once, states are ours to set."""

    jobs: list[Any] = field(default_factory=list)
    quicker: bool = False

    def list_jobs(self) -> list[Any]:
        return list(self.jobs)

    def submit_job(self, *, submission_id: str, metadata: dict[str, str], **request: Any) -> str:
        if self.quicker:
            self.quicker = False
            self.submit_job(submission_id=submission_id, metadata=metadata, **request)
        if any(job.submission_id == submission_id for job in self.jobs):
            raise RuntimeError(f"Job with submission_id {submission_id} already exists")
        folder = Path(request["runtime_env"]["working_dir"])
        self.sent = {
            **request,
            "files": {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()},
        }
        self.jobs.append(
            SimpleNamespace(
                submission_id=submission_id,
                metadata=metadata,
                status=SimpleNamespace(value="RUNNING"),
                start_time=1000 * (len(self.jobs) + 1),
                end_time=None,
                message=None,
            )
        )
        return submission_id

    def end(self, state: str) -> None:
        self.jobs[-1].status = SimpleNamespace(value=state)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    file = tmp_path / "project" / "studies" / "flowers.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(STUDY)
    return tmp_path / "project"


@pytest.fixture
def cluster() -> tuple[Cluster, Dashboard]:
    found = object.__new__(Cluster)
    dashboard = Dashboard()
    found.url, found.client = "http://127.0.0.1:8265", dashboard
    return found, dashboard


def study(project: Path) -> Study:
    return Study.load(project / "studies" / "flowers.yaml")


def test_a_study_is_submitted_once(project: Path, cluster: tuple[Cluster, Dashboard]) -> None:
    place, dashboard = cluster
    first = place.submit(study(project))
    second = place.submit(study(project))
    assert (first.fresh, second.fresh) == (True, False)
    assert first.job.id == second.job.id == f"nbsr-flowers-{submission_key(study(project))}"
    assert {"project/flowers.yaml", "nbsr_core/graph/decision_graph.py", "nbsr_platform/cli/app.py"} <= dashboard.sent[
        "files"
    ]
    assert " ./project/flowers.yaml" in dashboard.sent["entrypoint"]
    dashboard.end("SUCCEEDED")
    third = place.submit(study(project))
    assert (third.fresh, third.job.state) == (False, "SUCCEEDED")
    assert place.submit(study(project), again=True).job.id == f"{first.job.id}-2"


@pytest.mark.parametrize("state", ["FAILED", "STOPPED"])
def test_one_that_failed_goes_on_under_a_new_id(project: Path, cluster: tuple[Cluster, Dashboard], state: str) -> None:
    place, dashboard = cluster
    ids = []
    for _ in range(3):
        submission = place.submit(study(project))
        assert submission.fresh
        ids.append(submission.job.id)
        dashboard.end(state)
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]
    assert place.job("flowers").id == ids[-1]


def test_of_two_at_once_one_starts_it_and_the_other_joins(project: Path, cluster: tuple[Cluster, Dashboard]) -> None:
    place, dashboard = cluster
    dashboard.quicker = True
    submission = place.submit(study(project))
    assert not submission.fresh
    assert len(dashboard.jobs) == 1


def test_where_it_runs_does_not_make_another_study_but_what_it_does_does(project: Path) -> None:
    file = project / "studies" / "flowers.yaml"
    assert submission_key(load(file, ["resources.cpus_per_worker=4"])) == submission_key(load(file))
    assert submission_key(load(file, ["seeds=2"])) != submission_key(load(file))


def test_the_command_survives_any_name() -> None:
    command = entrypoint("a study; rm -rf $HOME.yaml", ["name=x y"], "http://mlflow:5000", None)
    assert command.endswith("'./a study; rm -rf $HOME.yaml' --set 'name=x y' --tracking http://mlflow:5000")
    assert "${NBSR_HOME:-$HOME/.nbsr}" in command


@pytest.mark.parametrize("option", ["tracking_uri", "storage"])
def test_passwords_do_not_travel(project: Path, cluster: tuple[Cluster, Dashboard], option: str) -> None:
    place, dashboard = cluster
    options: dict[str, Any] = {option: "postgresql://nbsr:geheim@db/optuna"}
    with pytest.raises(InputError, match=r"readable for everybody") as error:
        place.submit(study(project), **options)
    assert "geheim" not in str(error.value)
    assert dashboard.jobs == []


@pytest.fixture
def not_ray() -> Iterator[str]:
    """Something that listens and hangs up."""
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "url",
    ["", "cluster", "ray://127.0.0.1:10001", "http://", "http://127.0.0.1:99999", "http://[::1", "http://a:b@h:1"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="--cluster") as error:
        Cluster(url)
    assert "a:b" not in str(error.value)


def test_nobody_there_is_said_at_once() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(ClusterError, match="refused"):
            Cluster(f"http://127.0.0.1:{probe.getsockname()[1]}")


def test_somebody_else_there_is_one_clear_error(not_ray: str) -> None:
    with pytest.raises(ClusterError, match=not_ray):
        Cluster(not_ray)


def test_an_unknown_job_lists_those_that_there_are(project: Path, cluster: tuple[Cluster, Dashboard]) -> None:
    place, _ = cluster
    with pytest.raises(InputError, match="has none"):
        place.job("flowers")
    known = place.submit(study(project)).job.id
    with pytest.raises(InputError, match=known):
        place.job("flower")

"""What would be asked of Ray, for GPUs and for CPUs, by one and the same study."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
import torch
from nbsr_platform import run
from nbsr_platform.execution.on_ray.placement import HEAD, for_preparation, placement
from nbsr_platform.study.sections import Resources
from nbsr_platform.study.study import Study

from nbsr_core.errors import InputError

PAPER = Path(__file__).parents[3] / "studies" / "vision" / "paper.yaml"
ONE_CPU, GPUS = {"CPU": 1.0}, {"CPU": 32.0, "GPU": 4.0}


def test_a_share_of_a_gpu_lets_several_trials_use_one() -> None:
    asked = placement(Resources(gpus_per_worker=0.25), {"CPU": 16.0, "GPU": 2.0})
    assert asked.per_trial == {"cpu": 1.0, "gpu": 0.25}
    assert (asked.concurrency, asked.device, asked.fits) == (8, "cuda", True)


def test_the_same_study_runs_where_there_are_no_gpus() -> None:
    asked = placement(Resources(gpus_per_worker=0.25), {"CPU": 4.0})
    assert asked.per_trial == {"cpu": 1.0}
    assert (asked.concurrency, asked.device, asked.team.backend) == (4, "cpu", "gloo")


def test_a_team_asks_for_its_workers_and_waits_on_the_head() -> None:
    resources = Resources(workers=4, cpus_per_worker=2, gpus_per_worker=1, retries=5)
    asked = placement(resources, {"CPU": 16.0, "GPU": 8.0})
    assert asked.per_trial == {HEAD: 0.001}, "who waits takes no CPU or GPU away from those who work"
    scaling = asked.team.scaling
    assert (scaling.num_workers, scaling.use_gpu, asked.team.backend) == (4, True, "nccl")
    assert scaling.resources_per_worker == {"CPU": 2.0, "GPU": 1.0}
    assert asked.concurrency == 2, "eight GPUs have room for two teams of four"
    bare = placement(resources, {"CPU": 16.0}).team
    assert (bare.scaling.use_gpu, bare.scaling.resources_per_worker, bare.backend) == (False, {"CPU": 2.0}, "gloo")


@pytest.mark.parametrize(
    ("resources", "cluster"),
    [
        (Resources(workers=3), {"CPU": 2.0}),
        (Resources(gpus_per_worker=4), {"CPU": 64.0, "GPU": 2.0}),
        (Resources(workers=2, gpus_per_worker=2), {"CPU": 64.0, "GPU": 3.0}),
    ],
)
def test_what_can_never_run_is_known_before(resources: Resources, cluster: dict[str, float]) -> None:
    assert not placement(resources, cluster).fits


def test_less_at_once_than_there_is_room_for() -> None:
    assert placement(Resources(concurrency=2), {"CPU": 8.0}).concurrency == 2
    assert placement(Resources(concurrency=20), {"CPU": 8.0}).concurrency == 8


@pytest.mark.parametrize("options", [{"gpus_per_worker": 1.5}, {"workers": 2, "gpus_per_worker": 0.5}])
def test_shares_that_ray_cannot_give_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="gpus_per_worker"):
        Resources(**options)  # type: ignore[arg-type]


def test_a_study_that_wants_none_gets_none() -> None:
    where = placement(Resources(gpus_per_worker=0), GPUS)
    assert (where.per_trial, where.device, where.team.backend) == ({"cpu": 1.0}, "cpu", "gloo")


@pytest.mark.parametrize(
    ("workers", "cluster", "gpus", "concurrency"),
    [
        (1, {"CPU": 8.0, "GPU": 1.0}, 1.0, 1),
        (1, GPUS, 1.0, 4),
        (4, GPUS, 1.0, 1),
        (1, {"CPU": 8.0}, 0.0, 8),
        (1, {"CPU": 8.0, "GPU": 0.0}, 0.0, 8),
        (2, {"CPU": 8.0, "GPU": 1.0}, 0.0, 4),
    ],
)
def test_gpus_are_used_by_default_where_there_are_enough(
    workers: int, cluster: dict[str, float], gpus: float, concurrency: int
) -> None:
    where = placement(Resources(workers=workers), cluster)
    assert (where.team.gpus_per_worker, where.concurrency, where.fits) == (gpus, concurrency, True)
    assert where.device == ("cuda" if gpus else "cpu")
    assert for_preparation(Resources(workers=workers), cluster)["num_gpus"] == gpus


def test_the_papers_study_on_a_gpu_cluster_as_it_is() -> None:
    study = Study.load(PAPER)
    where = placement(study.resources, GPUS)
    assert (where.fits, where.device, where.concurrency) == (True, "cuda", 2)
    assert where.per_trial == {HEAD: 0.001}  # the workers ask for themselves
    scaling = where.team.scaling
    assert (scaling.num_workers, scaling.use_gpu) == (2, True)
    assert scaling.resources_per_worker == {"CPU": 4.0, "GPU": 1.0}
    assert where.team.backend == "nccl"
    assert all(model.training.mixed_precision and model.training.compile for model in study.models.values())


def test_the_papers_study_on_cpus_by_changing_nothing() -> None:
    where = placement(Study.load(PAPER).resources, {"CPU": 8.0})
    assert (where.fits, where.device, where.team.backend) == (True, "cpu", "gloo")
    assert not where.team.scaling.use_gpu
    assert where.team.scaling.resources_per_worker == {"CPU": 4.0}


@pytest.mark.parametrize(
    ("gpus", "cluster", "asked"),
    [(0, GPUS, 0), (0.25, GPUS, 0.25), (2, GPUS, 1), (2, ONE_CPU, 0)],
)
def test_preparation_asks_for_one_gpu_at_most(gpus: float, cluster: dict[str, float], asked: float) -> None:
    resources = Resources(cpus_per_worker=3, gpus_per_worker=gpus)
    assert for_preparation(resources, cluster) == {"num_cpus": 3, "num_gpus": asked}


@pytest.mark.slow
def test_a_gpu_that_only_ray_knows_of_is_asked_for_and_the_trial_runs(tmp_path: Path) -> None:
    """Ray is told of a GPU that is not there: the trial takes it, and computes on what its worker really has."""
    ray.init("local", num_cpus=1, num_gpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        assert placement(Resources(), ray.cluster_resources()).per_trial == {"cpu": 1.0, "gpu": 1.0}
        study = {"name": "one", "domain": "iris", "models": {"mlp": {}}, "training": {"epochs": 1}}
        result = run(Study.from_dict(study), home=tmp_path)
    finally:
        ray.shutdown()
    ((_, found),) = result.parts[0].ended_trials.finished.values()
    assert (found.status, found.environment["device"]) == ("finished", "cpu") or torch.cuda.is_available()

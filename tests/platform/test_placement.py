"""What a study asks of Ray on machines that are not here: GPUs, several of them, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform.parts import Resources
from nbsr_platform.placement import HEAD, for_preparation, placement
from nbsr_platform.study import Study

PAPER = Path(__file__).parents[2] / "studies" / "vision" / "paper.yaml"
ONE_CPU, GPUS = {"CPU": 1.0}, {"CPU": 32.0, "GPU": 4.0}


def test_gpus_are_used_where_there_are_any() -> None:
    resources = Resources(gpus_per_worker=0.5)
    here, there = placement(resources, ONE_CPU), placement(resources, GPUS)
    assert (here.per_trial, here.device, here.concurrency) == ({"cpu": 1.0}, "cpu", 1)
    assert (there.per_trial, there.device, there.concurrency) == ({"cpu": 1.0, "gpu": 0.5}, "cuda", 8)
    assert (here.team.backend, there.team.backend) == ("gloo", "nccl")


def test_a_study_that_asks_for_none_gets_none() -> None:
    where = placement(Resources(), GPUS)
    assert (where.per_trial, where.device, where.team.backend) == ({"cpu": 1.0}, "cpu", "gloo")


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

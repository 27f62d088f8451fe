"""What a trial asks of Ray, and where its parts run: all that depends on CPUs, GPUs and nodes is decided here.

The same study file serves a laptop and a cluster: it says what a trial would use, and gets GPUs where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbsr_platform.study.sections import Resources

if TYPE_CHECKING:
    from ray import train
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# A resource that Ray gives to the head node of every cluster.
HEAD = "node:__internal_head__"


@dataclass(frozen=True)
class Team:
    """The workers of one trial."""

    workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    retries: int

    @property
    def scaling(self) -> train.ScalingConfig:
        from ray import train  # with all of Ray Data behind it: only where there is a team

        resources = {"CPU": self.cpus_per_worker, **({"GPU": self.gpus_per_worker} if self.gpus_per_worker else {})}
        return train.ScalingConfig(
            num_workers=self.workers, use_gpu=self.gpus_per_worker > 0, resources_per_worker=resources
        )

    def __str__(self) -> str:
        gpus = f" and {self.gpus_per_worker:g} GPUs" if self.gpus_per_worker else ""
        return f"{self.workers} worker(s) with {self.cpus_per_worker:g} CPUs{gpus} each"

    @property
    def backend(self) -> str:
        return "nccl" if self.gpus_per_worker else "gloo"


@dataclass(frozen=True)
class Placement:
    """What a trial asks of Ray, and how many run at once."""

    per_trial: dict[str, float]
    concurrency: int
    device: str
    team: Team
    fits: bool


def placement(resources: Resources, cluster: dict[str, float]) -> Placement:
    """GPUs where there are any, CPUs otherwise."""
    gpus = _gpus(resources, cluster)
    cpus = float(resources.cpus_per_worker)
    workers = resources.workers
    room = int(cluster.get("CPU", 1) // (cpus * workers))
    if gpus:
        room = min(room, int(cluster["GPU"] // (gpus * workers)))
    wanted = resources.concurrency or max(room, 1)
    # A team's workers ask for themselves; who waits for them only needs a place.
    per_trial = {HEAD: 0.001} if workers > 1 else {"cpu": cpus, **({"gpu": float(gpus)} if gpus else {})}
    team = Team(workers, cpus, float(gpus), resources.retries)
    return Placement(per_trial, max(1, min(wanted, room)), "cuda" if gpus else "cpu", team, fits=room >= 1)


def _gpus(resources: Resources, cluster: dict[str, float]) -> float:
    """Of each worker: as many as it asks for where there are any; by default one if there are enough for a trial."""
    there, asked = cluster.get("GPU", 0), resources.gpus_per_worker
    if asked is None:
        return 1.0 if there >= resources.workers else 0.0
    return asked if there else 0.0


def for_preparation(resources: Resources, cluster: dict[str, float]) -> dict[str, float]:
    """What a piece of a domain's preparation asks of Ray: as a worker of a trial, but of one GPU at most."""
    return {"num_cpus": resources.cpus_per_worker, "num_gpus": min(_gpus(resources, cluster), 1)}


def capacity() -> dict[str, float]:
    """What the cluster has, or would have once its autoscaler has started all that it may."""
    import ray

    from nbsr_platform.execution.on_ray.compat import resources_to_come

    now = dict(ray.cluster_resources())
    return {**now, **{name: max(now.get(name, 0.0), most) for name, most in resources_to_come().items()}}


def beside_the_driver() -> NodeAffinitySchedulingStrategy:
    """On the driver's own node: what it holds shall live as long as the driver, whichever other node is lost."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

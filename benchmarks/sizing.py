"""How many trials an hour does a cluster do, and how does what it stores grow? A model, and what was measured.

    python -m benchmarks.sizing [--folder FOLDER]

A cluster of two nodes (`cluster/local.sh`) runs searches whose trials mostly nap, so that four workers are four workers
even on two cores: what is measured is the platform, not the processors. The model has three figures: seconds a trial
and seconds to start, from the run with one worker, and seconds of the driver a trial, from trials that do nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability.cluster import LocalCluster, working_folder
from benchmarks.reliability.ledger import make_study
from nbsr_core.files import size

TRIALS, EPOCHS, NAP = 24, 10, 0.1
WORKERS = (1, 2, 4)
MEDICAL = """
name: patients
domain: medical
data: {source: embedded, train_patients: 400, valid_patients: 300, test_patients: 200, draws: 1}
seeds: 3
training: {epochs: 3}
models: {nbsr: {}, mlp: {}}
"""


@dataclass(frozen=True)
class Measured:
    """One study on so many workers.

    Attributes:
        start: seconds from the submission to the first result.
        each: seconds from result to result after the workers were warm.
    """

    workers: int
    start: float
    each: float


def run_study(cluster: LocalCluster, folder: Path, workers: int, nap: float) -> Measured:
    name = f"size-{workers}-{time.time_ns() // 1_000_000:x}"
    data = {"seconds": nap, "log": str(folder / name / "naps.log")}
    study = make_study(folder / name, name, trials=TRIALS, epochs=EPOCHS, data=data, resources={"concurrency": workers})
    began, before = time.time(), results(cluster)
    said = submitted(cluster, study)
    ended = sorted(path.stat().st_mtime for path in results(cluster) - before)
    assert len(ended) == TRIALS, said
    warm = ended[workers:]  # each worker's first trial has its start-up in it
    return Measured(workers, ended[0] - began, (warm[-1] - ended[workers - 1]) / len(warm))


def submitted(cluster: LocalCluster, study: Path) -> str:
    job = cluster.submit(study, "--wait")
    output = job.communicate(timeout=600)[0]
    assert job.returncode == 0, output
    return output


def results(cluster: LocalCluster) -> set[Path]:
    return set(cluster.home.glob("trials/*/result.json"))


def weight(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def database_size(cluster: LocalCluster, name: str) -> int:
    """Bytes of one of Postgres' databases, after what is dead in it was given up."""
    address = cluster.environment["NBSR_STORAGE"].replace("postgresql+psycopg", "postgresql").rpartition("/")[0]
    sql = ["psql", f"{address}/{name}", "-qAt", "-c"]
    environment = cluster.environment
    subprocess.run([*sql, "vacuum"], env=environment, check=True)
    return int(subprocess.check_output([*sql, f"select pg_database_size('{name}')"], env=environment))


def weigh(cluster: LocalCluster) -> dict[str, int]:
    return {
        "store": weight(cluster.home / "trials"),
        "artifacts": weight(cluster.folder / "artifacts"),
        "runs": database_size(cluster, "mlflow"),
        "searches": database_size(cluster, "optuna"),
    }


def growth(cluster: LocalCluster, study: Path) -> dict[str, int]:
    """Bytes a trial, by where they are."""
    before, known = weigh(cluster), len(results(cluster))
    submitted(cluster, study)
    after, count = weigh(cluster), len(results(cluster)) - known
    return {place: (after[place] - before[place]) // count for place in before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    folder = working_folder(parser.parse_args().folder)
    cluster = LocalCluster(folder / "cluster")
    cluster.settings["NBSR_NODE_CPUS"] = "2"
    cluster.up()
    try:
        idle = run_study(cluster, folder, max(WORKERS), nap=0.0)
        measured = {workers: run_study(cluster, folder, workers, NAP) for workers in WORKERS}
        show_throughput(measured, idle)
        patients = folder / "patients" / "patients.yaml"
        patients.parent.mkdir(parents=True, exist_ok=True)
        patients.write_text(MEDICAL)
        kinds = {
            "a search's, of Iris": make_study(folder / "weight", "weight", trials=12, epochs=EPOCHS),
            "a grid's, medical": patients,
        }
        print("\n| bytes a trial | store | artifacts | MLflow's database | Optuna's database |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for kind, study in kinds.items():
            print(f"| {kind} | {' | '.join(size(count) for count in growth(cluster, study).values())} |")
    finally:
        cluster.down()


def show_throughput(measured: dict[int, Measured], idle: Measured) -> None:
    """One worker gives the seconds of a trial, trials that do nothing those of the driver; the rest is the model's."""
    alone = measured[1].each
    print(f"seconds a trial {alone:.2f}, of the driver {idle.each:.3f}, to the first result {measured[1].start:.0f}\n")
    print("| workers | trials an hour, model | measured | measured / model |")
    print("| ---: | ---: | ---: | ---: |")
    for workers, found in measured.items():
        model = 3600 / max(alone / workers, idle.each)
        print(f"| {workers} | {model:.0f} | {3600 / found.each:.0f} | {3600 / found.each / model:.2f} |")
    print(f"| any, trials that do nothing | {3600 / idle.each:.0f} | {3600 / idle.each:.0f} | 1 |")


if __name__ == "__main__":
    main()

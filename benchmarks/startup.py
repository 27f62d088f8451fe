"""How long until a command answers? As ratios to `python -c "import torch"`, which takes turns with them.

    python -m benchmarks.startup           # commands that run nothing
    python -m benchmarks.startup --runs    # also runs: their first line, their first epoch, and one with nothing to do

CPU seconds are those of the process and its children: on a busy machine they tell more than the time on the clock. The
last column has what is aimed for, in seconds on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROUNDS = 5
STUDY = """
name: tiny
domain: medical
data: {train_patients: 400, valid_patients: 300, test_patients: 200, draws: 1}
training: {epochs: 3}
models: {mlp: {hidden: [16]}}
"""
NBSR = [sys.executable, "-m", "nbsr_platform"]
REFERENCE = "import torch"


@dataclass
class Contender:
    """A command, and what is aimed for it.

    Attributes:
        goal: seconds, and of which kind.
        until: it is waited for until a line has one of these words; None for its end.
        anew: whether it starts in an empty home each time.
    """

    command: list[str]
    goal: str = ""
    until: tuple[str, ...] | None = None
    anew: bool = False
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def commands() -> dict[str, Contender]:
    return {
        REFERENCE: Contender([sys.executable, "-c", REFERENCE]),
        "nbsr --version": Contender([*NBSR, "--version"], "0.3 CPU"),
        "nbsr --help": Contender([*NBSR, "--help"], "0.3 CPU"),
        "nbsr validate": Contender([*NBSR, "validate", "tiny.yaml"], "1 CPU"),
        "nbsr ls": Contender([*NBSR, "ls"], "1 CPU"),
        "nbsr plan": Contender([*NBSR, "plan", "tiny.yaml"]),
        "nbsr doctor": Contender([*NBSR, "doctor"]),
    }


def runs() -> dict[str, Contender]:
    run, local = [*NBSR, "run", "tiny.yaml"], [*NBSR, "run", "tiny.yaml", "--local"]
    return {
        "run: first line": Contender(run, "2", until=("study",), anew=True),
        "run: first epoch": Contender(run, "as soon as Ray allows", until=(" epochs",), anew=True),
        "run --local: first epoch": Contender(local, until=(" epochs",), anew=True),
        "run: nothing to do": Contender(run, "5"),
    }


def measure(contender: Contender, folder: Path, number: int) -> None:
    home = folder / (f"new{number}" if contender.anew else "home")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(
        contender.command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "NBSR_HOME": str(home)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if contender.until is not None and any(word in line for word in contender.until):
                break
        else:
            process.wait()
        contender.wall.append(time.perf_counter() - began)
        if process.poll() is None:
            process.terminate()
            process.stdout.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    contender.cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", action="store_true", help="also measure runs, which start Ray")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    contenders = {**commands(), **(runs() if asked.runs else {})}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.yaml").write_text(STUDY)
        done = [*NBSR, "run", "tiny.yaml", "--local", "--home", "home"]
        subprocess.run(done, cwd=folder, check=True, capture_output=True)
        for number in range(asked.rounds):
            for contender in contenders.values():
                measure(contender, folder, number)
    reference = contenders[REFERENCE]
    print("| | CPU | on the clock | CPU seconds | seconds | aimed for, seconds |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for label, one in contenders.items():
        cpu = statistics.median(own / other for own, other in zip(one.cpu, reference.cpu, strict=True))
        wall = statistics.median(own / other for own, other in zip(one.wall, reference.wall, strict=True))
        spent = statistics.median(one.cpu), statistics.median(one.wall)
        # What is cut off at its first line or epoch has spent more than it needed for that.
        shown = ("-", "-") if one.until else (f"{cpu:.2f}x", f"{spent[0]:.2f}")
        print(f"| `{label}` | {shown[0]} | {wall:.2f}x | {shown[1]} | {spent[1]:.2f} | {one.goal} |")


if __name__ == "__main__":
    main()

"""What ends a run on one machine before its time, or does not: a lost Ray, a signal, output that nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.reliability.bench import Bench, start_here, wait_for
from benchmarks.reliability.ledger import BATCHES, EPOCHS, TRIALS, Outcome, naps
from benchmarks.reliability.scenarios.common import Scenario, finished_here, kill

GOES_ON = "the same command goes on from here"
# Words that are not ours.
UNWANTED = ("Traceback", "***", "(raylet)", "task_manager.cc")
A_MINUTE = 60


def raylet(bench: Bench) -> Outcome:
    """The node under a run on this machine is killed."""
    return lost_ray(bench, "raylet", "the raylet", "raylet/raylet")


def control_store(bench: Bench) -> Outcome:
    """The control store (GCS) under a run on this machine is killed."""
    return lost_ray(bench, "gcs", "the control store (GCS)", "gcs/gcs_server")


def agent(bench: Bench) -> Outcome:
    """An agent of the node under a run on this machine is killed."""
    return lost_ray(bench, "agent", "an agent of the raylet", "ray::DashboardAgent")


def terminated(bench: Bench) -> Outcome:
    """A run on this machine is asked to end, as batch systems do."""
    return ended(
        bench,
        "term",
        "the run asked to end (SIGTERM)",
        lambda run: run.send_signal(signal.SIGTERM),
        128 + signal.SIGTERM,
    )


def hung_up(bench: Bench) -> Outcome:
    """The terminal of a run on this machine is closed: all its processes are told."""
    return ended(
        bench,
        "hangup",
        "the terminal closed (SIGHUP to the run and its Ray)",
        lambda run: os.killpg(run.pid, signal.SIGHUP),
        128 + signal.SIGHUP,
    )


def closed_pipe(bench: Bench) -> Outcome:
    """Whoever reads what a run says goes away: it goes on to its end."""
    bench.calm()
    study = bench.study("unread")
    run = start_here(study)
    wait_until_a_third_is_done(study, run)
    assert run.stdout is not None
    run.stdout.close()
    code = run.wait(600)
    outcome = finished_here(bench, study, "the pipe that the run writes to closed")
    outcome.notes.append(f"went on to its end, exit code {code}")
    outcome.lost += code != 0
    return outcome


def lost_ray(bench: Bench, name: str, called: str, program: str) -> Outcome:
    def kill_it(run: subprocess.Popen[str]) -> None:
        for pid in session(run.pid):
            if program in command(pid).split("\0")[0]:
                kill(pid)

    return ended(bench, name, f"{called} killed (-9)", kill_it, 2)


def ended(bench: Bench, name: str, did: str, disturb: Callable[[subprocess.Popen[str]], None], code: int) -> Outcome:
    """Disturb a run when a third of it is done, see how it ends, and run the same command again."""
    bench.calm()
    study = bench.study(name)
    run = start_here(study)
    wait_until_a_third_is_done(study, run)
    began = time.monotonic()
    disturb(run)
    output = run.communicate(timeout=600)[0]
    seconds = time.monotonic() - began
    strange = [words for words in UNWANTED if words in output]
    if run.returncode != code or GOES_ON not in output or strange or seconds > A_MINUTE:
        raise RuntimeError(f"code {run.returncode} after {seconds:.0f} s: {output[-2000:]}")
    outcome = finished_here(bench, study, did)
    outcome.notes.append(f"exit code {code} after {seconds:.0f} s")
    return outcome


def wait_until_a_third_is_done(study: Path, run: subprocess.Popen[str]) -> None:
    wait_for(lambda: len(naps(study)) > TRIALS * EPOCHS * BATCHES // 3, 900, run)


def session(leader: int) -> list[int]:
    """Processes of the session of a run that `start_here` started: it and its Ray, wherever they were adopted."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == leader:
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


ENDINGS: dict[str, Scenario] = {
    "raylet": raylet,
    "control-store": control_store,
    "agent": agent,
    "terminated": terminated,
    "hung-up": hung_up,
    "closed-pipe": closed_pipe,
}

"""What scenarios share: killing, running the same command again, and reading a refusal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.reliability.bench import Bench, run_here
from benchmarks.reliability.ledger import EPOCHS, TRIALS, Outcome, Rows, repeated

Scenario = Callable[[Bench], Outcome]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def finished_here(
    bench: Bench, study: Path, did: str, expected: Rows | None = None, trials: int = TRIALS, epochs: int = EPOCHS
) -> Outcome:
    """Run the same command again, undisturbed, and count."""
    done = run_here(study)
    ledger = bench.ledger_here(study, trials)
    notes = [*ledger.notes, *([] if done.returncode == 0 else [f"code {done.returncode}: {done.stderr[-300:]}"])]
    same = ledger.rows == (bench.calm() if expected is None else expected)
    return Outcome(did, trials, ledger.lost, ledger.doubled, repeated(study, trials, epochs), same, notes=notes)


def refused(code: int, output: str, says: str) -> list[str]:
    """What somebody was told, where that is one clear message with exit code 2; raises where it is not."""
    line = next((line.strip() for line in output.splitlines() if re.search(says, line)), None)
    if code != 2 or line is None or "Traceback" in output:
        raise RuntimeError(f"code {code}: {output[-2000:]}")
    return [f"exit code 2: {line[:200]}"]

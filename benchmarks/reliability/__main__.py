"""See the package."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from nbsr_platform.base import git

from benchmarks.reliability import __doc__ as usage
from benchmarks.reliability.bench import Bench
from benchmarks.reliability.cluster import ROOT, LocalCluster, working_folder
from benchmarks.reliability.ledger import Outcome
from benchmarks.reliability.scenarios import SCENARIOS
from benchmarks.reliability.tables import write_tables

FOUND = ROOT / "docs" / "results" / "reliability.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=[], metavar="NAME")
    parser.add_argument("--folder", type=Path, help="for stores and logs; a temporary one by default")
    parser.add_argument("--list", action="store_true", help="name the scenarios and end")
    parser.add_argument("--tables", action="store_true", help="only write the tables anew from what was found before")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{name:20} {str(scenario.__doc__).splitlines()[0]}" for name, scenario in SCENARIOS.items()))
        return
    good = asked.tables or run(asked.only or list(SCENARIOS), asked.folder)
    write_tables(json.loads(FOUND.read_text()))
    sys.exit(0 if good else 1)


def run(names: list[str], folder: Path | None) -> bool:
    """Each scenario by itself; what it found is written down at once."""
    folder = working_folder(folder)
    bench = Bench(folder, LocalCluster(folder / "cluster"))
    good = True
    try:
        for name in names:
            began, bench.preparation = time.monotonic(), 0.0
            try:
                outcome = SCENARIOS[name](bench)
            except Exception as error:
                traceback.print_exc()
                outcome = Outcome(str(SCENARIOS[name].__doc__).splitlines()[0], lost=1, notes=[f"ended by {error!r}"])
            outcome.notes = [note.replace(str(folder), "FOLDER") for note in outcome.notes]
            outcome.seconds = round(time.monotonic() - began - bench.preparation, 1)
            good &= outcome.good
            print(f"{name}: {json.dumps(asdict(outcome))}", flush=True)
            found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
            row = {**asdict(outcome), "good": outcome.good, "commit": commit()}
            found.setdefault("scenarios", {})[name] = row
            FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    finally:
        bench.cluster.down()
    return good


def commit() -> str:
    """Of the code that is tried, with a + where files differ from it."""
    head = git.commit(ROOT)
    return "unknown" if head is None else f"{head}{'+' if git.has_changes(ROOT, 'nbsr_core', 'platform') else ''}"


if __name__ == "__main__":
    main()

"""Several drivers on one home, and a store or data that somebody changes behind a study's back."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

from benchmarks.reliability.bench import Bench, run_here, start_here, wait_for
from benchmarks.reliability.ledger import BATCHES, EPOCHS, TRIALS, Outcome, naps, repeated
from benchmarks.reliability.scenarios.common import Scenario, finished_here, refused


def one_home(bench: Bench) -> Outcome:
    """Three studies run in one home at once, started one after another."""
    first, *others = [bench.study(name) for name in ("share", "alike", "third")]
    home = str(first.parent / ".nbsr")
    runs = [start_here(first)]
    for other in others:
        wait_for(lambda: len(list(Path(home).glob("trials/[!.]*"))) > len(runs), 900, runs[0])
        runs.append(start_here(other, "--home", home))
    said = [run.communicate(timeout=900)[0] for run in runs]
    bad = [text[-300:] for run, text in zip(runs, said, strict=True) if run.returncode or "Traceback" in text]
    ledgers = [bench.ledger_here(study, home=Path(home)) for study in (first, *others)]
    return Outcome(
        "3 studies in one home at once, each beginning while others save",
        3 * TRIALS,
        sum(ledger.lost for ledger in ledgers),
        sum(ledger.doubled for ledger in ledgers),
        sum(repeated(study) for study in (first, *others)),
        all(ledger.rows == bench.calm() for ledger in ledgers),
        notes=bad,
    )


def damaged_store(bench: Bench) -> Outcome:
    """Weights go missing, a result is cut and another copied over a third; the same command makes good all three."""
    study = bench.study("damage")
    run_here(study)
    trials = sorted((study.parent / ".nbsr" / "trials").glob("[!.]*"))
    gone, cut, swapped, *_ = random.Random(1).sample(trials, 4)
    weights = json.loads((gone / "result.json").read_bytes())["weights"]
    (study.parent / ".nbsr" / "weights" / weights / "model.pt").unlink()
    os.truncate(cut / "result.json", 100)
    shutil.copy(trials[0] / "result.json" if trials[0] != swapped else trials[1] / "result.json", swapped)
    before = len(naps(study))
    outcome = finished_here(bench, study, "model.pt gone, result.json cut, result.json of another trial")
    again = (len(naps(study)) - before) // (BATCHES * EPOCHS)
    outcome.notes.append(f"{again} trial trained again, 2 judged again")
    outcome.lost += 1 - again  # the weights of the other two are whole
    return outcome


def changed_data(bench: Bench) -> Outcome:
    """A file that the data comes from changes while a study runs; restored, the same command finishes it."""
    study = bench.study("change", own_labels=True)
    table = study.with_name("labels.csv")
    good = table.read_text()
    run = start_here(study)
    wait_for(lambda: len(naps(study)) > TRIALS * EPOCHS * BATCHES // 3, 900, run)
    table.write_text("\n".join(reversed(good.split())) + "\n")
    # Workers that hold the data in memory go on with it: one that starts now does not get it.
    for pid in {int(pid) for pid in naps(study)[-2:]}:
        os.kill(pid, 9)
    output = run.communicate(timeout=900)[0]
    table.write_text(good)
    outcome = finished_here(bench, study, "labels shuffled during the run, workers killed (-9), labels restored")
    outcome.notes += refused(run.returncode, output, "data has changed since the study began")
    return outcome


SHARING: dict[str, Scenario] = {
    "one-home": one_home,
    "damaged-store": damaged_store,
    "changed-data": changed_data,
}

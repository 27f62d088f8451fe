"""The journal of a search, mended where it is damaged: what can be read is kept, proposal by proposal.

A journal has a line for everything that happened: a proposal was made, got a parameter, ended. Proposals are numbered
in the order in which they were made, and every other line names the number that it is about. So a line that cannot be
read costs what it said and no more, as long as numbers stay: a proposal whose making was lost is made again in its
place. One that is no longer known to have ended is open again: whoever runs the study takes it up, draws what is
missing from the seed of its number, and finds its result in the store if that is the same.

Cutting the journal at the first bad line would be simpler, and would forget every proposal after it.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nbsr_platform.base.compat import JournalOperation
from nbsr_platform.base.leftovers import sweep, temporary_place

logger = logging.getLogger("nbsr.search")

KEY_ATTRIBUTE = "nbsr.trial_key"
# What a line says.
STUDY, PROPOSAL, STATE = JournalOperation.CREATE_STUDY, JournalOperation.CREATE_TRIAL, JournalOperation.END_TRIAL
OF_A_STUDY, OF_A_PROPOSAL = JournalOperation.OF_A_STUDY, JournalOperation.OF_A_TRIAL

Entry = dict[str, Any]

# Whoever made it, and when: that is lost, and nobody needs it.
MADE: Entry = {
    "op_code": PROPOSAL,
    "worker_id": "nbsr",
    "study_id": 0,
    "datetime_start": "2000-01-01T00:00:00+00:00",
}


def mend(journal: Path, directions: Iterable[str]) -> None:
    """Have a journal hold what can be read of it, so that Optuna reads all of it; a good one is left as it is.

    What a crash left half-written at the end is cut off. Where more is damaged, the file as it was is kept beside.
    For the one who runs the study only: to a reader, a line that is just being written looks like a damaged one.

    Args:
        journal: named after its study; need not be there.
        directions: of the study's objectives, `maximize` or `minimize`.
    """
    if not journal.exists():
        return
    lines = journal.read_bytes().splitlines(keepends=True)
    if not lines:
        return
    good = _mended(lines, _first_line(journal.stem, directions))
    if good == lines:
        return
    sweep(journal.parent)
    if good and good == lines[: len(good)]:
        logger.warning("%s: its end was damaged; going on from the last good of %d lines", journal, len(good))
    else:
        aside = _kept_aside(journal)
        logger.warning(
            "%s: %d of %d lines could not be used; the search goes on from the others, and what they told of is taken "
            "from the results or proposed again. The file as it was is %s",
            journal,
            sum((Counter(lines) - Counter(good)).values()),
            len(lines),
            aside,
        )
    with temporary_place(journal.parent, journal.name) as beside:
        with beside.open("wb") as file:
            file.writelines(good)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, journal)


def _kept_aside(journal: Path) -> Path:
    for number in count(1):
        aside = journal.with_name(f"{journal.name}.damaged-{number}")
        try:
            os.link(journal, aside)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            aside.write_bytes(journal.read_bytes())
        return aside
    raise AssertionError("counting does not end")


def _first_line(name: str, directions: Iterable[str]) -> Entry:
    numbers = [StudyDirection[direction.upper()].value for direction in directions]
    return {"op_code": STUDY, "worker_id": "nbsr", "study_name": name, "directions": numbers}


def _mended(lines: Sequence[bytes], first: Entry) -> list[bytes]:
    read = [(line, _read(line, len(lines), first)) for line in lines]
    usable = [(line, entry) for line, entry in read if entry is not None]
    begun = bool(usable) and usable[0][1]["op_code"] == STUDY
    unmade = _unmade([entry for _, entry in usable], len(lines) - len(usable))
    suspects: dict[int, str] = {}
    while True:
        judge, good, left = _Judge(first), [] if begun else [_written(first)], unmade
        for line, entry in usable:
            number, kind = entry.get("trial_id", -1), entry["op_code"]
            missing = max(0, number + 1 - judge.proposals)
            # A number that is too high, with no proposal unmade, is itself the damage.
            if missing > left or suspects.get(number) == "whole" or (kind == STATE and number in suspects):
                continue
            for _ in range(missing):
                judge.accepts(MADE)
                good.append(_written(MADE))
            left -= missing
            if judge.accepts(entry):
                good.append(line)
            elif kind == PROPOSAL:
                left += 1
        found = {**suspects, **judge.suspects()}
        if found == suspects:
            return good
        suspects = found


def _unmade(entries: Sequence[Entry], unread: int) -> int:
    """How many proposals are named whose making is not told of.

    A number that stands in one line only is believed where lines that cannot be read may explain it.
    """
    made = len([entry for entry in entries if entry["op_code"] == PROPOSAL])
    named: Counter[int] = Counter(entry["trial_id"] for entry in entries if entry["op_code"] in OF_A_PROPOSAL)
    believed = [number for number, times in named.items() if times > 1 or number < made + unread]
    return max(0, max(believed, default=-1) + 1 - made)


def _read(line: bytes, most: int, first: Entry) -> Entry | None:
    """What a line says; None where it is no line of the journal of this study, with at most so many proposals."""
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or type(entry.get("op_code")) is not int or "worker_id" not in entry:
        return None
    kind = entry["op_code"]
    if kind == STUDY:  # said again by everybody who opens it
        return entry if all(entry.get(key) == first[key] for key in ("study_name", "directions")) else None
    if kind in OF_A_PROPOSAL:
        return entry if type(entry.get("trial_id")) is int and 0 <= entry["trial_id"] < most else None
    return entry if kind in (PROPOSAL, *OF_A_STUDY) and entry.get("study_id") == 0 else None


def _written(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class _Judge(BaseJournalBackend):
    """Optuna itself, reading a journal one line at a time: what it stumbles over is damaged."""

    def __init__(self, first: Entry) -> None:
        self.entries: list[Entry] = [first]
        self.directions = len(first["directions"])
        self.proposals = 0
        self.storage = JournalStorage(self)

    def read_logs(self, log_number_from: int) -> list[Entry]:
        return self.entries[log_number_from:]

    def append_logs(self, logs: list[Entry]) -> None:
        raise NotImplementedError("a judge only reads")

    def accepts(self, entry: Entry) -> bool:
        self.entries.append(entry)
        try:
            self.storage.get_all_studies()  # has it read on
        except Exception:  # whatever Optuna makes of nonsense
            return False
        self.proposals += entry["op_code"] == PROPOSAL
        return True

    def suspects(self) -> dict[int, str]:
        """Proposals with something wrong about them: in their end only, or in the whole of what is said of them."""
        found = {}
        for trial in self.storage.get_all_trials(0, deepcopy=False):
            if not self._is_possible(trial):
                found[trial.number] = "whole"
            elif trial.state == TrialState.COMPLETE and not isinstance(trial.user_attrs.get(KEY_ATTRIBUTE), str):
                found[trial.number] = "end"
        return found

    def _is_possible(self, trial: FrozenTrial) -> bool:
        values = trial.values if trial.state == TrialState.COMPLETE else None
        try:
            optuna.trial.create_trial(
                state=trial.state,
                values=values,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=trial.user_attrs,
            )
        except Exception:  # whatever Optuna makes of nonsense
            return False
        return values is None or (len(values) == self.directions and all(isinstance(v, int | float) for v in values))

"""A damaged journal costs a search no proposal: what can be read is kept, the rest comes from results and seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nbsr_platform.inspect import plan
from nbsr_platform.search.journal import mend
from nbsr_platform.search.storage import open_storage
from nbsr_platform.trials.home import Home
from searches import STUDY, feed, finish, run

from nbsr_core.errors import InputError

# The lines of a search of four proposals with one parameter: the study, then made, parameter, key and end of each.
KINDS = ["study", *[f"{what} of {number}" for number in range(4) for what in ("making", "parameter", "key", "end")]]


def searched(home: Home) -> tuple[Path, list[bytes], list[str]]:
    """A search that is done: its journal, the lines of that, and the keys of its trials."""
    keys = run(feed(home), STUDY["search"]["trials"])
    (journal,) = (home.root / "searches").glob("*.journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(KINDS)
    return journal, lines, keys


def outcomes(home: Home) -> list[tuple[str, str]]:
    """State and key of every proposal, as a reader sees them."""
    trials = feed(home).optuna_study.get_trials(deepcopy=False)
    return [(trial.state.name, str(trial.user_attrs.get("nbsr.trial_key"))) for trial in trials]


@pytest.mark.parametrize("how", ["garbage", "zeros", "gone", "joined with the next"])
@pytest.mark.parametrize("line", range(len(KINDS)), ids=KINDS)
def test_whatever_line_is_damaged_no_proposal_is_lost_or_doubled(line: int, how: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal, lines, keys = searched(home)
    length = len(lines[line])
    lines[line] = {
        "garbage": b"\xff{]\n",
        "zeros": bytes(length),
        "gone": b"",
        "joined with the next": lines[line][:-1],
    }[how]
    damaged = b"".join(lines)
    journal.write_bytes(damaged)
    ran = finish(feed(home))
    assert set(ran) <= set(keys), "nothing new is proposed: what is drawn again is what it was"
    assert outcomes(home) == [("COMPLETE", key) for key in keys]
    ended = {trial.key for trial, _ in feed(home).ended()}
    assert ended == set(keys)
    kept = journal.with_name(f"{journal.name}.damaged-1")
    assert not kept.exists() or kept.read_bytes() == damaged


def test_half_of_the_lines_may_be_damaged(tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal, lines, keys = searched(home)
    journal.write_bytes(b"".join(line if number % 2 else b"?" * 50 + b"\n" for number, line in enumerate(lines)))
    finish(feed(home))
    assert outcomes(home) == [("COMPLETE", key) for key in keys]


def test_the_file_as_it_was_is_kept_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    journal, lines, _ = searched(home)
    for number in (1, 2):
        damaged = b"".join([*lines[:5], b"garbage\n", *lines[6:]])
        journal.write_bytes(damaged)
        feed(home)
        assert journal.with_name(f"{journal.name}.damaged-{number}").read_bytes() == damaged
    assert "1 of 17 lines could not be used" in caplog.text
    assert f"{journal.name}.damaged-2" in caplog.text
    assert {path.name for path in journal.parent.iterdir()} == {
        journal.name,
        f"{journal.name}.damaged-1",
        f"{journal.name}.damaged-2",
    }


def test_a_good_journal_is_not_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    journal, _, _ = searched(home)
    before = journal.stat()
    mend(journal, ["maximize"])
    mend(tmp_path / "not-there.journal", ["maximize"])
    (tmp_path / "empty.journal").touch()
    mend(tmp_path / "empty.journal", ["maximize"])
    assert journal.stat() == before
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (0, {"study_name": "another"}),
        (0, {"directions": [1]}),
        (1, {"study_id": 7}),
        (1, {"datetime_start": "yesterday"}),
        (2, {"trial_id": 10**12}),
        (2, {"trial_id": 3}),
        (2, {"param_value_internal": "x"}),
        (2, {"param_value_internal": 1e9}),
        (2, {"distribution": "{}"}),
        (3, {"user_attr": {}}),
        (3, {"user_attr": {"nbsr.trial_key": 5}}),
        (4, {"state": 77}),
        (4, {"values": ["x"]}),
        (4, {"values": [1.0, 2.0]}),
        (4, {"op_code": 1}),
        (4, {"op_code": True}),
    ],
)
def test_lines_that_say_nonsense_are_damaged_too(line: int, change: dict[str, object], tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal, lines, keys = searched(home)
    lines[line] = json.dumps({**json.loads(lines[line]), **change}).encode() + b"\n"
    journal.write_bytes(b"".join(lines))
    finish(feed(home))
    assert outcomes(home) == [("COMPLETE", key) for key in keys]


def test_a_proposal_with_another_key_is_looked_for_under_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal, lines, keys = searched(home)
    journal.write_bytes(b"".join(lines).replace(keys[1].encode(), b"0" * len(keys[1])))
    assert finish(feed(home)) == [], "its result is there"
    again = feed(home)
    while again.next() is not None:
        pass
    assert [trial.key for trial, _ in again.reused] == [keys[1]]


def test_readers_say_that_a_journal_is_damaged_and_leave_it_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal, lines, _ = searched(home)
    journal.write_bytes(b"".join([*lines[:5], b"garbage\n", *lines[6:]]))
    before = journal.read_bytes()
    for read in (open_storage, plan._ended_proposals):
        with pytest.raises(InputError, match=r"hunt-key.journal: this journal of a search is damaged .*`nbsr run`"):
            read(home, "hunt-key")
    assert journal.read_bytes() == before

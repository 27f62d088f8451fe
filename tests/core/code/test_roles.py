"""Which code trains and which judges: all of this library is in the table, and the table is true."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nbsr_core.code import roles
from nbsr_core.code.roles import ROLES, library_files, library_fingerprints, line_of, role_of
from nbsr_core.domains.domain import SHIPPED


def test_every_module_has_a_role_and_every_line_of_the_table_a_module() -> None:
    places = library_files()
    assert {"trace.exits", "kernels.native.walk.c", "domains.medical.knowledge.toml", "__init__"} <= places.keys()
    for place in places:
        assert line_of(place) is not None, f"say in nbsr_core/code/roles.py what {place} does"
    for line in ROLES:
        assert any(place == line or place.startswith(f"{line}.") for place in places), f"{line} is gone"


def test_a_new_room_or_domain_must_be_put_into_the_table_and_trains_until_then() -> None:
    for place in ("newroom.module", "newroom", "domains.newdomain.data", "domains.newdomain"):
        assert line_of(place) is None
        assert role_of(place) == "trains"
    assert {line.split(".")[1] for line in ROLES if line.startswith("domains.")} == {*SHIPPED, *roles.SHARED}


def test_the_most_specific_line_counts() -> None:
    assert role_of("domains.language.transformer") == "trains"
    assert role_of("domains.language.judging") == "judges"
    assert role_of("domains.language.picture") == "neither"


PRINT = """
import sys
from nbsr_core.code.roles import library_fingerprints
print(*library_fingerprints(frozenset(sys.argv[1:])))
assert "torch" not in sys.modules, "nothing is imported for it"
"""


class Copy:
    """A copy of this library that can be edited."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "nbsr_core"
        shutil.copytree(Path(roles.__file__).parents[1], self.root, ignore=shutil.ignore_patterns("__pycache__"))

    def edit(self, place: str, old: str, new: str) -> None:
        path = self.root / place
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def fingerprints(self, *domains: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", PRINT, *domains], cwd=self.root.parent, capture_output=True, text=True, check=True
        )
        trains, judges = done.stdout.split()
        return trains, judges


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_each_change_touches_what_it_determines(copy: Copy) -> None:
    before = copy.fingerprints("iris")
    assert before == library_fingerprints(frozenset({"iris"})), "wherever it is installed"
    for name in ("model/network.py", "evaluation/evaluation.py"):
        words = (copy.root / name).read_text().partition('"""')[2].partition('"""')[0]
        copy.edit(name, words, "In other words.")
    copy.edit("plots/svg.py", "def ", "def renamed_")
    copy.edit("domains/vision/data.py", "def ", "def renamed_")
    assert copy.fingerprints("iris") == before, "docstrings, pictures, other domains"
    (copy.root / "trace/exits.py").rename(copy.root / "trace/leaving.py")
    for file in copy.root.rglob("*.py"):
        file.write_text(file.read_text().replace("trace.exits", "trace.leaving"))
    assert copy.fingerprints("iris") == before, "a module under another name"
    copy.edit("evaluation/evaluation.py", "def ", "def renamed_")
    trains, judges = copy.fingerprints("iris")
    assert trains == before[0]
    assert judges != before[1]
    copy.edit("learning/trainer.py", "def ", "def renamed_")
    assert copy.fingerprints("iris")[0] != trains

"""Which files are behind a module: its own imports count, installed packages do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbsr_core.code.sources import checksum, code_behind


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "lonely_domain.py": "import json, torch\nfrom lonely_tools import deep\nimport lonely_plain\n",
        "lonely_plain.py": "def late():\n    import lonely_late\n",
        "lonely_late.py": "import lonely_space.inner.leaf",
        "lonely_space/inner/leaf.py": "",  # packages without __init__.py
        "lonely_unrelated.py": "",
        "lonely_tools/__init__.py": "",
        "lonely_tools/deep.py": "from . import sibling\nfrom .sub.leaf import thing\n",
        "lonely_tools/sibling.py": "raise RuntimeError('looking must not run it')",
        "lonely_tools/other.py": "",
        "lonely_tools/sub/__init__.py": "",
        "lonely_tools/sub/leaf.py": "from ..upper import x\nthing = 1",
        "lonely_tools/upper.py": "import lonely_domain  # a circle\nx = 1",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_all_modules_of_ones_own_that_are_imported_anywhere_in_the_source_are_found(project: Path) -> None:
    found = code_behind("lonely_domain")
    assert set(found) == {
        "lonely_domain",
        "lonely_plain",
        "lonely_late",
        "lonely_space.inner.leaf",
        "lonely_tools",
        "lonely_tools.deep",
        "lonely_tools.sibling",
        "lonely_tools.sub",
        "lonely_tools.sub.leaf",
        "lonely_tools.upper",
    }
    assert found["lonely_tools"] == project / "lonely_tools" / "__init__.py"


@pytest.mark.parametrize("changed", ["lonely_late.py", "lonely_tools/sub/leaf.py", "lonely_tools/__init__.py"])
def test_a_change_in_any_of_them_changes_the_checksum(project: Path, changed: str) -> None:
    before = checksum(code_behind("lonely_domain"))
    (project / "lonely_unrelated.py").write_text("x = 1")
    assert checksum(code_behind("lonely_domain")) == before
    (project / changed).write_text((project / changed).read_text() + "\ny = 2\n")
    assert checksum(code_behind("lonely_domain")) != before


def test_of_an_installed_package_its_own_modules_count_and_no_others() -> None:
    found = code_behind("gymnasium.spaces.box")
    assert "gymnasium.spaces.box" in found
    assert {name.partition(".")[0] for name in found} == {"gymnasium"}


def test_what_is_not_there_or_cannot_be_read_has_no_files(project: Path) -> None:
    (project / "lonely_broken.py").write_text("def (")
    assert code_behind("lonely_nowhere") == {}
    assert set(code_behind("lonely_broken")) == {"lonely_broken"}

"""What is shipped beside the code holds: every study file is right, every link in the documents leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbsr_platform.study import Collection, load

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").rglob("*.yaml"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_study_file(path: Path) -> None:
    what = load(path)
    studies = what.studies if isinstance(what, Collection) else (what,)
    assert studies
    assert all(study.question for study in studies), "a study says what it asks"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"

"""What git says of a folder, and nothing where there is no repository or no git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nbsr_platform.base import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "kept.txt").write_text("kept\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    return root


def test_the_commit_and_whether_files_differ_from_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # of somebody else's repository
    assert git.commit(repository) == head.stdout[:12]
    assert not git.has_changes(repository)
    (repository / "kept.txt").write_text("changed\n")
    assert git.has_changes(repository)
    assert not git.has_changes(repository, "elsewhere")


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git.commit(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git.commit(tmp_path) is None
    assert not git.has_changes(tmp_path)

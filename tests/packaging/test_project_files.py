"""Licence, citation, hooks and workflow say what the project says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_licence_is_whole_and_names_who_holds_it() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Copyright 2026 The NBSR authors" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "[yyyy]" not in text
    assert PROJECT["license"] == "Apache-2.0"


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    paper = cited["preferred-citation"]
    assert paper["title"] == "Neural Bayesian Sequential Routing"
    assert all({"type", "title", "authors"} <= set(entry) for entry in (cited, paper))


def test_the_workflow_runs_what_ci_runs_on_the_python_that_is_promised() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    versions = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert versions == ["3.11"]


def test_ci_runs_targets_that_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    run = re.findall(r"(?m)^make ([a-z-]+)", (ROOT / ".ci" / "run").read_text())
    assert run == ["test", "docs", "test-slow", "quickstart"]
    assert set(run) <= targets


def test_hooks_use_the_tools_of_the_environment_and_fetch_nothing() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    assert [hook["id"] for hook in hooks[0]["hooks"]] == ["ruff", "ruff-format", "mypy"]
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in hooks[0]["hooks"])

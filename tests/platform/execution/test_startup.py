"""What is asked at the command line is answered without importing what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from processes import nbsr

import nbsr_core

# Seconds each; none of them is needed to read a study file.
HEAVY = ("torch", "ray", "mlflow", "optuna", "numpy", "pandas", "sklearn", "scipy")
LOADED = f"""
import json, runpy, sys
sys.argv[0] = "nbsr"
try:
    runpy.run_module("nbsr_platform", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
print(json.dumps([code, [name for name in {HEAVY} if name in sys.modules]]))
"""
MISTAKES = {
    "iris": "name: flowers\ndomain: iris\nmodels: {nbsr: {oracle_dimm: 3}}\n",
    "medical": "name: trees\ndomain: medical\nmodels: {nbsr: {experts: {activation: expp}}, xgboost: {}}\n",
}


@pytest.mark.parametrize(
    ("arguments", "code"), [(("--help",), 0), (("--version",), 0), (("ls",), 0), (("validate", "x.yaml"), 2)], ids=str
)
def test_little_is_imported(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    assert loaded_by(tmp_path, *arguments) == [code, []]


@pytest.mark.parametrize("domain", MISTAKES)
def test_a_mistake_in_a_study_file_is_found_without_torch(tmp_path: Path, domain: str) -> None:
    """A good one is tried out, and its models are built: that takes longer."""
    (tmp_path / "study.yaml").write_text(MISTAKES[domain])
    assert loaded_by(tmp_path, "validate", "study.yaml") == [2, []]


def loaded_by(folder: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = nbsr("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"nbsr {version('nbsr')}\n")


def test_a_public_name_is_imported_on_first_use_and_stays() -> None:
    code = "import sys, nbsr_core as n; assert 'torch' not in sys.modules; n.NBSR; assert 'NBSR' in vars(n)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = nbsr_core.nonsense


def test_a_function_is_found_whatever_was_imported_before() -> None:
    """A module of the same name as a function would stand for it once somebody has imported it."""
    code = (
        "import nbsr_core.domains.medical.knowledge_table, nbsr_core.learning.config\n"
        "from nbsr_core.domains.medical import knowledge, load\n"
        "from nbsr_core.learning import TrainingConfig\n"
        "assert len(knowledge().diseases) == 41 and callable(load) and TrainingConfig().epochs"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

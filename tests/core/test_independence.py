"""The library stands on its own: no cluster in it, no shadow on the standard library, and its examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import nbsr_core as nbsr

ROOT = Path(__file__).parents[2]
MODULES = sorted(module.name for module in pkgutil.walk_packages(nbsr.__path__, "nbsr_core."))


def in_a_fresh_interpreter(code: str) -> str:
    """What `python -c code` prints, run in the repository's root with that root on the path."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_loads_no_cluster_and_no_tracking() -> None:
    """All its modules, not only what `import nbsr_core` needs."""
    found = in_a_fresh_interpreter(
        f"import importlib, sys\n"
        f"for name in {['nbsr_core', *MODULES]!r}: importlib.import_module(name)\n"
        f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & {{'ray', 'mlflow', 'nbsr_platform'}}))"
    )
    assert found == "[]"


def test_the_platform_folder_does_not_shadow_the_standard_module() -> None:
    code = "import platform, sys; assert '' in sys.path; print(platform.__file__, platform.system())"
    file, system = in_a_fresh_interpreter(code).rsplit(" ", 1)
    assert Path(file) == Path(platform.__file__)
    assert not Path(file).is_relative_to(ROOT)
    assert system == platform.system()


def test_the_platform_folder_is_no_package() -> None:
    assert (ROOT / "platform").is_dir()
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_every_public_name_is_there() -> None:
    assert sorted(nbsr.__all__, key=str.lower) == sorted(set(nbsr.__all__), key=str.lower)
    missing = [name for name in nbsr.__all__ if not hasattr(nbsr, name)]
    assert missing == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0


def test_there_are_examples_to_run() -> None:
    """Else the test above would pass on nothing."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    documented = {test.name for test in tests if test.examples}
    assert {"nbsr_core.model.network.NBSR", "nbsr_core.learning.objectives.Objective"} <= documented

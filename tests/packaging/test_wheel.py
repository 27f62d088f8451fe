"""The wheel in an environment of its own, outside the repository: the command works, and the studies are in it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Nbsr = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel alone; the packages that it needs are those of this interpreter.

    They come last on the path, where whatever this interpreter itself has of nbsr is hidden by the wheel's.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    ask = [str(interpreter), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60).stdout.strip())
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    # Folders of packages, in which no .pth is read: that of an editable nbsr neither.
    places = [place for place in sys.path if place and Path(place).name == Path(sysconfig.get_path("purelib")).name]
    (packages / "zz_packages.pth").write_text("\n".join(places) + "\n")
    return interpreter


@pytest.fixture(scope="module")
def nbsr(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Nbsr:
    folder = tmp_path_factory.mktemp("elsewhere")
    known = {name: value for name, value in os.environ.items() if not name.startswith(("NBSR_", "PYTHON"))}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python.parent / "nbsr"), *words]
        return subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=400)

    return call


@pytest.mark.slow
def test_the_wheel_has_the_studies_and_the_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("nbsr_platform/") for name in names if name.startswith("nbsr_platform/studies/")}
    tracked = subprocess.run(["git", "ls-files", "studies"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shipped == set(tracked.stdout.split())
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"nbsr_core", "nbsr_platform", "nbsr"}


@pytest.mark.slow
def test_the_code_that_runs_is_that_of_the_wheel(python: Path, tmp_path: Path) -> None:
    code = "import nbsr_core, nbsr_platform; print(nbsr_core.__file__, nbsr_platform.__file__)"
    done = subprocess.run([str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_relative_to(python.parents[1]) for file in done.stdout.split())


@pytest.mark.slow
def test_the_command_works_outside_a_checkout(nbsr: Nbsr) -> None:
    assert nbsr("--version").stdout.startswith("nbsr 0.")
    listed = nbsr("studies")
    assert listed.returncode == 0, listed.stderr
    for path in (ROOT / "studies").rglob("*.yaml"):
        assert f"{path.relative_to(ROOT / 'studies').with_suffix('').as_posix()}  " in listed.stdout
    for name in ("medical/quickstart", "theory/bias_variance"):
        checked = nbsr("validate", name)
        assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
        assert f"{name}: fine" in checked.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_shipped_study_runs_out_of_a_read_only_environment(nbsr: Nbsr, python: Path) -> None:
    """Results go to `.nbsr` in the current folder, and the installed studies stay as they are."""
    (studies,) = python.parents[1].glob("lib/python*/site-packages/nbsr_platform/studies")
    before = {path: path.stat().st_mtime_ns for path in studies.rglob("*")}
    for place in [studies, *(path for path in studies.rglob("*") if path.is_dir())]:
        place.chmod(0o555)
    done = nbsr("run", "iris/quickstart", "--local", "--set", "seeds=1", "--set", "training.epochs=2")
    assert done.returncode == 0, done.stderr
    assert "report" in done.stdout
    again = nbsr("ls")
    assert "iris-quickstart" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in studies.rglob("*")}

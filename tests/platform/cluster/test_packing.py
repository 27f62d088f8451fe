"""What travels to a cluster: what a study needs, nothing that looks like a secret, and nothing that hides a module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nbsr_platform.cli.app import app
from nbsr_platform.cluster import packing
from nbsr_platform.cluster.packing import PROJECT, Selection, select
from nbsr_platform.study.study import Study, load
from typer.testing import CliRunner

from nbsr_core.code import named as named_code
from nbsr_core.code.project import SENT, project_of
from nbsr_core.errors import InputError

ROOT = Path(__file__).parents[3]
STUDY = "name: flowers\ndomain: iris\nmodels: {mlp: {}}\n"
# In two parts, so that this file itself is not taken for a secret.
KEY = "-----BEGIN " + "RSA PRIVATE KEY-----\n"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
OWN = "name: mine\ndomain: {}:Flowers\nmodels: {{mlp: {{}}}}\n"
FLOWERS = "from nbsr_core.domains.iris import Iris\n\nclass Flowers(Iris):\n    name = 'flowers'\n"


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(named_code, "_folders", [])


def place(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(root: Path, *command: str) -> None:
    given = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, env=given)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a study, not in git."""
    root = tmp_path / "project"
    place(root, **{"studies/flowers.yaml": STUDY, "pyproject.toml": "[project]\n"})
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def checkout(project: Path) -> Path:
    """The same in git, with things in it that no job needs."""
    place(project, **{"notes/idea.txt": "x", "data/big.csv": "1", ".hidden": "x", "results/mlflow.db": "x"})
    git(project, "init", "-q")
    git(project, "add", "--all")
    return project


def sent(selection: Selection) -> set[str]:
    """Names below the project, and those beside it."""
    return {name.removeprefix(f"{PROJECT}/") for name in selection.of_the_project}


def flowers(root: Path) -> Study:
    return Study.load(root / "studies" / "flowers.yaml")


def test_what_git_tracks_goes_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    place(checkout, **{"secrets/ray_token": "geheim", "prod.env": "A=1", "draft.py": "", "old/model.bin": "x"})
    (checkout / "away.txt").symlink_to("/etc/hostname")
    git(checkout, "add", "away.txt")
    selection = select(flowers(checkout))
    assert sent(selection) == {"studies/flowers.yaml", "pyproject.toml", "notes/idea.txt"}
    assert {
        "nbsr_core/graph/decision_graph.py",
        "nbsr_platform/execution/runner.py",
        "nbsr_platform/cli/app.py",
    } <= set(selection.files)
    assert selection.study == f"{PROJECT}/studies/flowers.yaml"
    assert selection.notes == ()
    stage = tmp_path / "stage"
    selection.write(stage)
    there = {path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()}
    assert there == {*selection.files, f"{PROJECT}/{SENT}"}
    assert sum((stage / name).stat().st_size for name in there) == selection.size


def test_without_git_the_study_and_python_files_go(project: Path) -> None:
    place(
        project,
        **{
            "mine.py": "",
            "package/__init__.py": "",
            "package/part.py": "",
            "package/settings.ini": "",
            "scripts/deploy.py": "",
            "venv/lib/x.py": "",
            "studies/helper.py": "",
            "studies/other.yaml": STUDY,
            "secrets/ray_token": "geheim",
            "aws/credentials": "geheim",
            "service-account.json": "{}",
            "pgpass": "geheim",
            "cert.p12": "geheim",
            "token": "geheim",
            "id_rsa": "geheim",
        },
    )
    selection = select(flowers(project))
    assert sent(selection) == {
        "studies/flowers.yaml",
        "studies/helper.py",
        "mine.py",
        "package/__init__.py",
        "package/part.py",
    }
    assert "no git" in selection.describe()


@pytest.mark.parametrize(
    "name",
    [
        *("secrets/ray_token", "secrets/postgres_password", "config/id_rsa", "aws/credentials", "service-account.json"),
        *("prod.env", "pgpass", "store.p12", "token", "server.pem", "server.KEY", "auth_token", "db_password.txt"),
    ],
)
def test_a_tracked_file_that_is_a_secret_by_its_name_is_refused(checkout: Path, name: str) -> None:
    place(checkout, **{name: "x"})
    git(checkout, "add", "--force", name)
    with pytest.raises(InputError, match=f"(?s)nothing was sent.*{name} .*--exclude {name}"):
        select(flowers(checkout))
    assert name not in sent(select(flowers(checkout), exclude=[name]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"# notes\n{KEY}abc\n", "a private key"),
        ("-----BEGIN " + "OPENSSH PRIVATE KEY-----\n", "a private key"),
        (f"key = '{AWS}'\n", "an AWS key"),
        (json.dumps({"type": "service_account", "private" + "_key": "abc"}), "service account"),
        ("token: ghp" + "_" + "a1" * 18, "GitHub"),
        ("url = https://me:geheim@example.org/simple\n", "an address with a password"),
    ],
)
@pytest.mark.parametrize("name", ["notes.txt", "sub/settings.yaml"])
def test_a_tracked_file_with_a_secret_in_it_is_refused(checkout: Path, name: str, text: str, says: str) -> None:
    place(checkout, **{name: text})
    git(checkout, "add", name)
    with pytest.raises(InputError, match=f"{name} holds .*{says}") as error:
        select(flowers(checkout))
    assert "geheim" not in str(error.value)
    select(flowers(checkout), exclude=[name])


def test_a_link_to_a_secret_is_refused_or_stays(checkout: Path) -> None:
    place(checkout, **{"secrets/ray_token": "geheim", "keys/server.pem": "x"})
    (checkout / "untracked.txt").symlink_to("secrets/ray_token")
    (checkout / "tracked.txt").symlink_to("keys/server.pem")
    git(checkout, "add", "untracked.txt")
    assert "untracked.txt" not in sent(select(flowers(checkout)))
    git(checkout, "add", "tracked.txt", "keys")
    with pytest.raises(InputError, match=r"tracked.txt looks like a secret"):
        select(flowers(checkout), exclude=["keys/*"])


def test_sources_and_prose_about_secrets_are_none(checkout: Path) -> None:
    place(checkout, **{"secrets/token.py": "x = 1\n", "docs/secrets.md": "Keep them.", "tokens.csv": "a"})
    git(checkout, "add", "--force", "--all")
    assert {"secrets/token.py", "docs/secrets.md", "tokens.csv"} <= sent(select(flowers(checkout)))


def test_our_own_repository_can_be_sent() -> None:
    selection = select(load(ROOT / "studies" / "quickstart.yaml"), project=ROOT)
    assert "studies/iris/quickstart.yaml" in sent(selection)
    assert not [name for name in sent(selection) if name.startswith(("nbsr_core/", "platform/"))], "twice"


def test_a_module_that_git_does_not_know_yet_goes_with_all_that_it_imports(checkout: Path) -> None:
    place(
        checkout,
        **{
            "studies/mine.yaml": OWN.format("packing_mine"),
            "studies/packing_mine.py": "def late():\n    from packing_deep.inner import words\n" + FLOWERS,
            "packing_deep/inner/words.py": "from .others import *\n",
            "packing_deep/inner/others.py": "import packing_last, json, torch\n",
            "src/packing_last/__init__.py": "from . import end\n",
            "src/packing_last/end.py": "",
            "src/packing_last/unused.py": "",
            "packing_unused.py": "",
        },
    )
    selection = select(load(checkout / "studies" / "mine.yaml"))
    news = {
        "studies/mine.yaml",
        "studies/packing_mine.py",
        "packing_deep/inner/words.py",
        "packing_deep/inner/others.py",
        "src/packing_last/__init__.py",
        "src/packing_last/end.py",
    }
    assert sent(selection) - sent(select(flowers(checkout))) == news
    assert {note.split()[0] for note in selection.notes} == news
    assert all("is not in git, but the study needs it" in note for note in selection.notes)


def test_a_network_of_ones_own_goes_too_and_the_job_finds_it(checkout: Path, tmp_path: Path) -> None:
    place(
        checkout,
        **{
            "studies/pictures.yaml": "name: pictures\ndomain: vision\nmodels:\n  nbsr:\n"
            "    backbone: {name: 'packing_network:Small', weights: none}\n",
            "packing_network.py": "import packing_layers\n\ndef Small():\n    return packing_layers.small()\n",
            "packing_layers.py": "def small(): ...\n",
        },
    )
    selection = select(load(checkout / "studies" / "pictures.yaml"))
    assert {"packing_network.py", "packing_layers.py"} <= sent(selection)
    selection.write(tmp_path / "stage")
    code = "from nbsr_core.domains.domain import find_domain; find_domain('vision', 'project/studies'); "
    code += "from nbsr_core.code.named import import_named; print(import_named('packing_network').__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "stage",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "stage")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(tmp_path / "stage" / PROJECT / "packing_network.py"), done.stderr


def test_the_job_finds_a_module_at_the_top_of_the_project(checkout: Path, tmp_path: Path) -> None:
    place(checkout, **{"studies/top.yaml": OWN.format("packing_top"), "packing_top.py": FLOWERS})
    selection = select(load(checkout / "studies" / "top.yaml"))
    selection.write(tmp_path / "stage")
    done = nbsr_in(tmp_path / "stage", "validate", f"./{selection.study}")
    assert done.returncode == 0, done.stderr


def nbsr_in(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command as a job runs it: the package is where it starts, and first on its path."""
    given = {**os.environ, "PYTHONPATH": str(package)}
    call = [sys.executable, "-m", "nbsr_platform.cli", *command]
    return subprocess.run(call, cwd=package, env=given, capture_output=True, text=True, timeout=200)


def test_no_module_of_the_project_hides_one_that_a_job_needs(checkout: Path, tmp_path: Path) -> None:
    """The package is first on the path of Ray's own processes too: there a `queue.py` kept jobs pending for ever."""
    hiding = ("queue.py", "json/__init__.py", "studies/logging.py", "ray.py", "torch/__init__.py", "yaml.py")
    place(checkout, **dict.fromkeys(hiding, "raise AssertionError('hides what is installed')\n"))
    git(checkout, "add", "--all")
    selection = select(flowers(checkout))
    assert set(hiding) <= sent(selection)
    stage = tmp_path / "stage"
    selection.write(stage)
    assert {path.name for path in stage.iterdir()} == {"nbsr_core", "nbsr_platform", PROJECT}
    done = nbsr_in(stage, "validate", f"./{selection.study}")
    assert done.returncode == 0, done.stderr
    needed = subprocess.run(
        [sys.executable, "-c", "import queue, json, logging, ray, torch, yaml"],
        cwd=stage,
        env={**os.environ, "PYTHONPATH": str(stage)},
        capture_output=True,
        text=True,
    )
    assert needed.returncode == 0, needed.stderr


def test_a_module_that_is_installed_elsewhere_is_told(project: Path, tmp_path: Path) -> None:
    place(tmp_path / "elsewhere", **{"packing_elsewhere.py": FLOWERS})
    sys.path.append(str(tmp_path / "elsewhere"))
    place(project, **{"studies/mine.yaml": OWN.format("packing_elsewhere")})
    (note,) = select(load(project / "studies" / "mine.yaml")).notes
    assert note.endswith("is not in the project: it must be installed on the cluster too")


def text_study(text: str) -> str:
    return f"name: words\ndomain: language\ndata: {{source: file, text: {text}}}\nmodels: {{nbsr: {{}}}}\n"


def test_files_that_options_name_go_where_the_study_looks_for_them(checkout: Path, tmp_path: Path) -> None:
    place(checkout, **{"corpora/mine.txt": "to be", "studies/words.yaml": text_study("../corpora/mine.txt")})
    selection = select(load(checkout / "studies" / "words.yaml"))
    assert selection.files["project/corpora/mine.txt"] == checkout / "corpora" / "mine.txt"
    assert "corpora/mine.txt is not in git, but the study needs it: it goes" in selection.notes
    place(checkout, **{"studies/words.yaml": text_study("../../far.txt")})
    place(tmp_path, **{"far.txt": "x"})
    note, _ = select(load(checkout / "studies" / "words.yaml")).notes
    assert note == "data.text names ../../far.txt, which stays at home: give the whole path that it has on the cluster"


def test_a_file_that_an_override_names_goes_where_the_job_begins(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(checkout, **{"corpora/mine.txt": "to be", "studies/words.yaml": text_study("none.txt")})
    monkeypatch.chdir(checkout)
    selection = select(load(checkout / "studies" / "words.yaml", ["data.text=corpora/mine.txt"]))
    assert selection.files["corpora/mine.txt"] == checkout / "corpora" / "mine.txt"


def test_an_option_that_names_a_secret_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(project, **{"secrets/ray_token": "geheim", "studies/words.yaml": text_study("../secrets/ray_token")})
    with pytest.raises(InputError, match="secrets/ray_token looks like a secret"):
        select(load(project / "studies" / "words.yaml"))
    place(project, **{"studies/words.yaml": text_study("none.txt")})
    monkeypatch.chdir(project)
    with pytest.raises(InputError, match="secrets/ray_token looks like a secret"):
        select(load(project / "studies" / "words.yaml", ["data.text=secrets/ray_token"]))


def test_data_stays_at_home_wherever_it_lies(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSR_DATA", str(checkout / "notes"))
    assert sent(select(flowers(checkout))) == {"studies/flowers.yaml", "pyproject.toml"}


def test_what_is_excluded_stays(checkout: Path) -> None:
    for pattern in ("notes/*", "notes", "notes/", "*.txt"):
        assert "notes/idea.txt" not in sent(select(flowers(checkout), exclude=[pattern]))


def test_too_much_is_refused_with_what_is_so_large(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "heavy.bin").write_bytes(b"x" * 30_000_000)
    git(checkout, "add", "heavy.bin")
    monkeypatch.setattr(packing, "LARGEST", 20_000_000)
    with pytest.raises(InputError, match=r"(?s)30 MB heavy.bin.*--exclude"):
        select(flowers(checkout))
    select(flowers(checkout), exclude=["heavy.bin"])


def test_a_study_outside_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InputError, match="outside the project"):
        select(flowers(project), project=other)


def test_the_project_is_the_nearest_folder_that_looks_like_one(project: Path, tmp_path: Path) -> None:
    assert project_of(project / "studies") == project
    alone = tmp_path / "alone"
    alone.mkdir()
    assert project_of(alone) == alone


def test_a_folder_that_everybody_writes_to_is_nobodys_project(tmp_path: Path) -> None:
    place(tmp_path, **{"open/pyproject.toml": "", "open/mine/s.yaml": STUDY})
    (tmp_path / "open").chmod(0o1777)
    assert project_of(tmp_path / "open" / "mine") == tmp_path / "open" / "mine"


def test_a_dry_run_lists_what_would_go_and_contacts_nobody(checkout: Path) -> None:
    command = ["submit", "studies/flowers.yaml", "--cluster", "http://127.0.0.1:9", "--dry-run"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert [line.split()[-1] for line in done.output.splitlines()[:-1]] == [
        "notes/idea.txt",
        "pyproject.toml",
        "studies/flowers.yaml",
    ]
    assert f"would send 3 files of {checkout} (what git tracks) and nbsr itself" in done.output

"""A password and a token are used, and then looked for in everything that a study says and leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from nbsr_platform.base.credentials import command_line, own_secrets, scrubbed
from processes import COMMAND, GRID, NAPS, closed_port, nbsr, place, server, wait_for
from toys import store_uri

PASSWORD, TOKEN = "pass-word-in-the-address", "0123456789abcdef-token-of-the-cluster"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_neither_password_nor_token_is_left_anywhere(tmp_path: Path) -> None:
    here, served, port = tmp_path / "here", tmp_path / "served", closed_port()
    here.mkdir()
    store_uri(served)
    (here / "tiny.yaml").write_text(GRID.replace("seeds: 3", "seeds: 1"))
    with server(served, port) as uri:
        address = uri.replace("http://", f"http://me:{PASSWORD}@")
        settings = {"NBSR_TRACKING": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        done = nbsr("run", "tiny.yaml", "--json", cwd=here, **settings)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["trials"]["finished"] == 2
        client = MlflowClient(uri)
        assert len(client.search_runs([client.get_run(result["run_id"]).info.experiment_id])) == 3
    assert result["tracking_uri"] == f"http://me:***@127.0.0.1:{port}"
    assert "report" in result
    nothing_told(tmp_path, done.stdout, done.stderr)


def nothing_told(folder: Path, output: str, errors: str) -> None:
    """Neither secret was said, nor is it in any file of the folder, in which a study ran."""
    said = {"standard output": output, "standard error": errors}
    left = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"mlflow.db", "result.json"} <= {Path(name).name for name in left}
    for secret in (PASSWORD, TOKEN):
        assert [where for where, text in said.items() if secret in text] == []
        assert [name for name, content in left.items() if secret.encode() in content] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_says_how_to_go_on_without_the_password(tmp_path: Path) -> None:
    here, served, port = place(tmp_path / "here", NAPS), tmp_path / "served", closed_port()
    store_uri(served)
    with server(served, port) as uri:
        address = uri.replace("http://", f"http://me:{PASSWORD}@")
        with subprocess.Popen(
            [*COMMAND, "run", "naps.yaml", "--tracking", address, f"--storage={address}", "--set", "data.seconds=0.05"],
            cwd=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as driver:
            wait_for(lambda: list((here / ".nbsr" / "trials").glob("[!.]*")))
            driver.send_signal(signal.SIGINT)
            output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 130, output + errors
    shown = f"http://me:***@127.0.0.1:{port}"
    assert f"nbsr run naps.yaml --tracking '{shown}' '--storage={shown}' --set data.seconds=0.05" in output
    nothing_told(tmp_path, output, errors)


def test_a_command_is_shown_as_one_would_type_it() -> None:
    words = ["nbsr", "run", "my study.yaml", "--tracking", "postgresql://me:pa ss@host/db?sslpassword=x&a=1"]
    assert (
        command_line(words) == "nbsr run 'my study.yaml' --tracking 'postgresql://me:***@host/db?sslpassword=***&a=1'"
    )


def test_words_of_a_library_are_told_without_what_this_process_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["nbsr", "run", f"--tracking=http://me:{PASSWORD}@host"])
    monkeypatch.setenv("NBSR_STORAGE", "postgresql://me:another%40one@host/db")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert own_secrets() == sorted([TOKEN, PASSWORD, "another%40one", "another@one"], key=len, reverse=True)
    assert scrubbed(f"no {TOKEN} for {PASSWORD} of another@one") == "no *** for *** of ***"


def test_an_error_that_nobody_expected_hides_the_password(tmp_path: Path) -> None:
    broken = (
        "import sys\n"
        "from nbsr_platform.cli import app as cli, run as verb\n"
        "def load(*rest, **more): raise KeyError(sys.argv[-1])\n"
        "verb.load = load\n"
        "cli.main()\n"
    )
    words = ["run", "s.yaml", "--tracking", f"http://me:{PASSWORD}@host"]
    done = subprocess.run([sys.executable, "-c", broken, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "KeyError: 'http://me:***@host'" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr

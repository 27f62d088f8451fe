"""A password and a token are used, and then looked for in everything that a study leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from processes import GRID, closed_port, nbsr, server
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
    said = {"standard output": done.stdout, "standard error": done.stderr}
    left = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"mlflow.db", "index.html", "result.json"} <= {Path(name).name for name in left}
    for secret in (PASSWORD, TOKEN):
        assert [where for where, text in said.items() if secret in text] == []
        assert [name for name, content in left.items() if secret.encode() in content] == []

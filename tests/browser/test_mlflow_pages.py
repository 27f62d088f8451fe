"""MLflow's own pages on our store: runs of NBSR and of baselines stand side by side under the same names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from nbsr_platform.paths import Home
from nbsr_platform.tracking import Tracker
from pages import Browser
from toys import ToyStudy, flat_trial, store_uri

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow.*", "ignore::DeprecationWarning:sqlalchemy.*"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[str, str]]]:
    """`nbsr ui` on a store with a study: its address, the experiment's id, and the runs by name."""
    folder = tmp_path_factory.mktemp("store")
    home, runs = Home(folder), {}
    tracker = Tracker(store_uri(folder), home.artifacts)
    parent = tracker.study_run(ToyStudy(), "key")
    for label, family in (("nbsr", "nbsr"), ("mlp", "baseline")):
        for seed in (0, 1):
            trial, result = flat_trial(seed, label=label, family=family, options={"width": len(label)})
            runs[trial.name] = tracker.record(parent, trial, result, None, with_artifacts=False)
    report = folder / "index.html"
    report.write_text("<!doctype html><h1>the report</h1>")
    tracker.finish_study(parent, {"nbsr/deep/accuracy/mean": 0.9}, "FINISHED", report)
    runs["study"] = parent
    experiment = tracker.client.get_run(parent).info.experiment_id
    command = [sys.executable, "-u", "-m", "nbsr_platform.cli", "ui", "--home", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline() + server.stdout.readline()
        yield said.split()[-1].partition("/#")[0], str(experiment), runs
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        assert server.stdout is not None
        server.stdout.close()


def wait_for(browser: Browser, *words: str) -> str:
    """The text of the page as soon as it has all these words."""
    until, text = time.monotonic() + 90, ""
    while time.monotonic() < until:
        text = str(browser.run("return document.body.innerText"))
        if all(word in text for word in words):
            return text
        time.sleep(0.5)
    missing = [word for word in words if word not in text]
    return str(pytest.fail(f"{missing} did not appear in: {text[:2000]}"))


def test_the_compare_view_has_them_side_by_side(
    browser: Browser, pages: tuple[str, str, dict[str, str]], tmp_path: Path
) -> None:
    address, experiment, runs = pages
    chosen = [runs["nbsr seed 0"], runs["mlp seed 0"]]
    query = f"runs={quote(json.dumps(chosen))}&experiments={quote(json.dumps([experiment]))}"
    browser.open(f"{address}/#/compare-runs?{query}")
    text = wait_for(browser, "nbsr seed 0", "mlp seed 0", "test/accuracy", "test/ece", "options.width")
    assert "test/accuracy" in text
    foreign = [url for url in browser.requests() if not url.startswith((address, "data:", "blob:", "chrome"))]
    assert foreign == [], "nothing leaves the machine"


def test_the_list_of_runs_opens_on_the_experiment(browser: Browser, pages: tuple[str, str, dict[str, str]]) -> None:
    address, experiment, _ = pages
    browser.open(f"{address}/#/experiments/{experiment}/runs?workflowType=machine_learning")
    wait_for(browser, "toys", "nbsr-Toy")


def test_the_report_is_an_artifact_of_the_studys_run(browser: Browser, pages: tuple[str, str, dict[str, str]]) -> None:
    address, experiment, runs = pages
    browser.open(f"{address}/#/experiments/{experiment}/runs/{runs['study']}/artifacts/index.html")
    wait_for(browser, "index.html", "study.yaml")

"""MLflow's own pages on our store: runs of NBSR and of baselines stand side by side under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nbsr_platform.report import StudyResults, write_report
from nbsr_platform.study.study import Study
from nbsr_platform.tracking.tracker import Tracker
from nbsr_platform.trials.home import Home
from pages import Browser, compare_address, mlflow_pages, wait_for
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from toys import ToyStudy, flat_trial, store_uri

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[str, str]]]:
    """`nbsr ui` on a store with a study: its address, the experiment's id, and the runs by name."""
    folder = tmp_path_factory.mktemp("store")
    home, runs = Home(folder), {}
    tracker = Tracker(store_uri(folder), home.artifacts)
    parent = tracker.study_run(ToyStudy(), "key")
    finished = []
    for label, family in (("nbsr", "nbsr"), ("mlp", "baseline")):
        for seed in (0, 1):
            trial, result = flat_trial(seed, label=label, family=family, options={"width": len(label)})
            runs[trial.name] = tracker.record(parent, trial, result, None, with_artifacts=False)
            finished.append((trial, result))
    study = Study.from_dict({"name": "toys", "domain": "toys:Toy", "seeds": 2, "models": {"nbsr": {}, "mlp": {}}})
    report = write_report(folder / "index.html", [StudyResults(study, finished, wanted=4)], "the report of the toys")
    tracker.finish_study(parent, {"nbsr/deep/accuracy/mean": 0.9}, "FINISHED", report)
    runs["study"] = parent
    experiment = tracker.client.get_run(parent).info.experiment_id
    with mlflow_pages(folder) as address:
        yield address, str(experiment), runs


def test_the_compare_view_has_them_side_by_side(
    browser: Browser, pages: tuple[str, str, dict[str, str]], tmp_path: Path
) -> None:
    address, experiment, runs = pages
    browser.open(compare_address(address, experiment, [runs["nbsr seed 0"], runs["mlp seed 0"]]))
    text = wait_for(browser, "nbsr seed 0", "mlp seed 0", "test/accuracy", "test/ece", "options.width")
    assert "test/accuracy" in text
    foreign = [url for url in browser.requests() if not url.startswith((address, "data:", "blob:", "chrome"))]
    assert foreign == [], "nothing leaves the machine"


def test_the_list_of_runs_opens_on_the_experiment(browser: Browser, pages: tuple[str, str, dict[str, str]]) -> None:
    address, experiment, _ = pages
    browser.open(f"{address}/#/experiments/{experiment}/runs?workflowType=machine_learning")
    wait_for(browser, "toys", "nbsr-Toy")


def test_the_report_shows_inside_mlflow(browser: Browser, pages: tuple[str, str, dict[str, str]]) -> None:
    address, experiment, runs = pages
    browser.open(f"{address}/#/experiments/{experiment}/runs/{runs['study']}/artifacts/index.html")
    wait_for(browser, "index.html", "study.yaml")
    frame = WebDriverWait(browser.driver, 60).until(lambda driver: driver.find_elements(By.TAG_NAME, "iframe"))[0]
    browser.driver.switch_to.frame(frame)
    try:
        wait_for(browser, "the report of the toys", "Compared: nbsr, mlp")
        drawn = browser.run("return document.querySelectorAll('figure svg').length")
        assert drawn > 0, "its scripts run there too"
    finally:
        browser.driver.switch_to.default_content()

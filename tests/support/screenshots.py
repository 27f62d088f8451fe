"""The pictures of the documents, from what a store really holds.

    nbsr run studies/medical/quickstart.yaml && nbsr run studies/medical/search.yaml
    nbsr run studies/theory/bias_variance.yaml
    python tests/support/screenshots.py --home .nbsr --out docs/images

Takes a picture of every report that is there; those of studies that were not run are left out, and it says so.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from mlflow import MlflowClient
from nbsr_platform.trials.home import Home
from pages import Browser, chromium, compare_address, mlflow_pages, wait_for

# File, study, width, dark, and of what: a part alone, with `~` what stands around it, None for the top of the page.
REPORTS = (
    ("report-top.png", "medical-quickstart", 1280, False, None),
    ("report-walk.png", "medical-quickstart", 1280, False, "figure[data-kind=walks]"),
    ("report-phone.png", "medical-quickstart", 400, True, None),
    ("report-search.png", "medical-search", 1280, False, "~figure[data-kind=parallel]"),
    ("report-importance.png", "medical-search", 1280, False, "figure[data-kind=importance]"),
    ("bias-variance.png", "bias-variance", 1280, False, "figure[data-kind=decomposition]"),
)
COMPARED = "medical-quickstart"
# Runs and metrics are what there is to see: other parts of MLflow's page are folded, its side panel is closed.
FOLD = """
for (const header of document.querySelectorAll('[class*=collapse-header]'))
    if (arguments[0].includes(header.innerText.trim())) header.click();
for (const button of document.querySelectorAll('button[aria-label*="lose"]')) button.click();
"""


def take_reports(browser: Browser, home: Home, out: Path) -> None:
    for name, study, width, dark, part in REPORTS:
        page = home.report(study)
        if not page.exists():
            print(f"{name}: no report of {study} in {home.root}")
            continue
        browser.open(page.as_uri(), width=width, height=1100 if width > 500 else 800, dark=dark)
        around = part is not None and part.startswith("~")
        if around:
            browser.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", str(part)[1:])
        time.sleep(1)
        print(browser.picture(out / name, of=None if around else part))


def take_compare(browser: Browser, home: Home, out: Path) -> None:
    client = MlflowClient(home.tracking_uri)
    found = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()],
        f"tags.`nbsr.study` = '{COMPARED}' and tags.`nbsr.role` = 'trial' and tags.`nbsr.seed` = '0'",
    )
    if not found:
        print(f"mlflow-compare.png: no run of {COMPARED} in {home.tracking_uri}")
        return
    with mlflow_pages(home.root) as address:
        runs = [run.info.run_id for run in found]
        browser.open(compare_address(address, found[0].info.experiment_id, runs), width=1280, height=1000)
        wait_for(browser, *(str(run.info.run_name) for run in found), "test/accuracy")
        time.sleep(3)
        browser.run(FOLD, ["Visualizations", "Parameters"])
        time.sleep(2)
        print(browser.picture(out / "mlflow-compare.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", default=None)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    home = Home.of(options.home)
    with chromium() as browser:
        take_reports(browser, home, options.out)
        take_compare(browser, home, options.out)


if __name__ == "__main__":
    main()

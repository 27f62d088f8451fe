"""A real browser on real pages: Chromium, driven by Selenium, with all that it says and fetches written down."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


def missing() -> str | None:
    """Why there is no browser here, if so."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} (Debian: apt-get install chromium chromium-driver)" if absent else None


class Browser:
    """One window: open a page, look at it, and know what it said and asked the network for."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(address)

    def resize(self, width: int, height: int) -> None:
        """Of the page itself: a headless window has a least width that phones have not."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Everything on the console that is worse than a note."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path, *, full: bool = False, of: str | None = None) -> Path:
        """A screenshot; with `full`, of the whole page, however long; with `of`, of what that selector finds first."""
        options: dict[str, Any] = {"format": "png"}
        if full or of is not None:
            find = "const b = document.querySelector(arguments[0] || 'html').getBoundingClientRect();"
            give = "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height, scale: 1};"
            options |= {"captureBeyondViewport": True, "clip": self.run(find + give, of)}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


def wait_for(browser: Browser, *words: str, seconds: float = 90) -> str:
    """The text of the page as soon as it has all these words."""
    until, text = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        text = str(browser.run("return document.body.innerText"))
        if all(word in text for word in words):
            return text
        time.sleep(0.5)
    missing = [word for word in words if word not in text]
    raise AssertionError(f"{missing} did not appear in: {text[:2000]}")


@contextmanager
def mlflow_pages(home: Path) -> Iterator[str]:
    """`nbsr ui` on a store, as a process of its own; gives its address."""
    command = [sys.executable, "-u", "-m", "nbsr_platform.cli", "ui", "--home", str(home)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stdout is not None
    try:
        said = server.stdout.readline() + server.stdout.readline()
        yield said.split()[-1].partition("/#")[0]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        server.stdout.close()


def compare_address(address: str, experiment: str, runs: Sequence[str]) -> str:
    """MLflow's own view of some runs side by side."""
    query = f"runs={quote(json.dumps(list(runs)))}&experiments={quote(json.dumps([experiment]))}"
    return f"{address}/#/compare-runs?{query}"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="nbsr-browser-") as profile:
        options = Options()
        options.binary_location = shutil.which("chromium") or "chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        driver.set_page_load_timeout(120)
        try:
            yield Browser(driver)
        finally:
            driver.quit()

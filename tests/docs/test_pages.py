"""The pages are true: their code runs, their studies are valid, the notebook executes, and the site fetches nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import hooks
import nbclient
import nbformat
import pytest
import yaml
from nbsr_platform import Study
from nbsr_platform.study.rehearsal import rehearse
from sklearn.datasets import load_wine

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "examples" / "tour.ipynb"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", ["start.md", "library.md", "../README.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks(page, "python"))
    exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out


def test_the_study_of_the_start_page_is_valid() -> None:
    (text,) = blocks("start.md", "yaml")
    assert list(Study.from_dict(yaml.safe_load(text)).models) == ["nbsr", "deeper", "mlp"]


def test_the_study_with_prices_fits_the_file_that_the_page_makes(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("your-data.md", "yaml") if block.startswith("name: ")]
    (tmp_path / "prices.yaml").write_text(text, encoding="utf-8")
    load_wine(as_frame=True).frame.to_csv(tmp_path / "wine.csv", index=False)
    found = rehearse(Study.load(tmp_path / "prices.yaml"))
    assert "178 rows, 3 classes; columns: 13 numeric" in found.about
    assert found.warnings == []


@pytest.mark.parametrize("page", ["../README.md", "studies.md"])
def test_the_shipped_study_that_a_page_shows_is_the_shipped_one(page: str, tmp_path: Path) -> None:
    (tmp_path / "shown.yaml").write_text(blocks(page, "yaml")[0], encoding="utf-8")
    shown = Study.load(tmp_path / "shown.yaml")
    shipped = Study.load(ROOT / "studies" / "medical" / "quickstart.yaml")
    for part in ("name", "data", "seeds", "evaluation", "models"):
        assert getattr(shown, part) == getattr(shipped, part), part


def test_the_notebook_is_stored_without_what_it_printed() -> None:
    cells = json.loads(TOUR.read_text(encoding="utf-8"))["cells"]
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code"
    )


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "Theorem" not in printed
    assert all(words in printed for words in ("epoch 20", "mean vacuity", "prior: 41 pseudo-counts", "mlp"))


def test_links_of_the_repository_become_links_of_the_site() -> None:
    text = "[a](docs/studies.md#searches) ![b](docs/images/iris.png) [c](SECURITY.md) [d](https://x.y/z.md) [e](#here)"
    assert hooks.linked(text, "README.md", "index.md") == (
        "[a](studies.md#searches) ![b](images/iris.png) [c](security.md) [d](https://x.y/z.md) [e](#here)"
    )
    assert hooks.linked("[a](../../cluster/README.md)", "docs/results/vision.md", "results/vision.md") == (
        "[a](../cluster.md)"
    )
    assert hooks.linked("[a](../pyproject.toml)", "docs/data.md", "data.md") == "[a](../pyproject.toml)", "a warning"


def test_the_site_fetches_nothing_from_others() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert not any("://" in str(config.get(key, "")) for key in ("extra_css", "extra_javascript", "plugins"))


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages = [page for page in pages if not page.startswith("results/_intro/")]  # parts of pages
    pages += [uri for uri in hooks.ELSEWHERE.values() if uri.endswith(".md")]
    assert [page for page in pages if f" {page}\n" not in config] == []

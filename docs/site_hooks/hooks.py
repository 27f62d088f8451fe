"""What MkDocs does while it builds the site: pages from elsewhere in the repository, generated pages, and their links.

The documents are written to be read in the repository too, so their links lead to files there. On the site they lead
to the pages that were made of these files; a link to anything else is a warning, and with `--strict` an error.
"""

from __future__ import annotations

import importlib
import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import study_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages and files of the site that stand outside `docs`, by their place in the repository.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "cluster/README.md": "cluster.md",
    "examples/tour.ipynb": "tour.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
# Packages with their source folders; every room of theirs has a page.
PACKAGES = {"nbsr_core": ROOT, "nbsr_platform": ROOT / "platform"}
API = "api"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The reference of each package goes to the end of the navigation, one page per room."""
    rooms = [{package: [{name: f"{API}/{name}.md"} for name in _rooms(package)]} for package in PACKAGES]
    config.nav = [*(config.nav or []), {"API reference": rooms}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`."""
    for place, uri in ELSEWHERE.items():
        text = (ROOT / place).read_text(encoding="utf-8")
        files.append(_generated(config, uri, notebook(text) if place.endswith(".ipynb") else text))
    for package in PACKAGES:
        for name in _rooms(package):
            content = overview(name) if name == package else f"# {name}\n\n::: {name}\n"
            files.append(_generated(config, f"{API}/{name}.md", content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the reference of study files, and lead links to pages of the site."""
    uri = page.file.src_uri
    markdown = markdown.replace(study_reference.MARK, study_reference.reference())
    origins = {page: place for place, page in ELSEWHERE.items()}
    return linked(markdown, origins.get(uri, f"docs/{uri}"), uri)


def linked(markdown: str, place: str, uri: str) -> str:
    """The text with the links of a file at `place` in the repository made into those of the page at `uri`."""

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), match[2]))
        goal = ELSEWHERE.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if goal is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(goal, posixpath.dirname(uri) or '.')}{match[3] or ''}{match[4]}"

    return LINK.sub(lead, markdown)


def notebook(text: str) -> str:
    """A notebook as Markdown: its words, and its code in blocks."""
    cells: list[dict[str, Any]] = json.loads(text)["cells"]
    sources = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    return "\n\n".join(f"```python\n{source}\n```" if is_code else source for source, is_code in sources) + "\n"


def overview(package: str) -> str:
    """The page of a whole package: what it is, its public names and its rooms, each with the way to it."""
    module = importlib.import_module(package)
    lines = [f"# {package}", "", inspect.getdoc(module) or "", "", "## Public names", ""]
    for name in module.__all__:
        found = getattr(module, name)
        place = found.__name__ if inspect.ismodule(found) else f"{found.__module__}.{found.__qualname__}"
        way = f"({place}.md)" if place in _rooms(package) else f"[{place}]"
        lines.append(f"- [`{package}.{name}`]{way}")
    lines += ["", "## Rooms", ""]
    for room in list(_rooms(package))[1:]:
        purpose = (inspect.getdoc(importlib.import_module(room)) or "").partition("\n")[0]
        lines.append(f"- [{room}]({room}.md): {purpose}")
    return "\n".join(lines) + "\n"


def _generated(config: MkDocsConfig, uri: str, content: str) -> File:
    return File.generated(config, uri, content=content)


def _rooms(package: str) -> Iterator[str]:
    """The package itself, the modules that lie beside its rooms, and the rooms."""
    folder = PACKAGES[package] / package
    yield package
    yield from (f"{package}.{file.stem}" for file in sorted(folder.glob("[a-z]*.py")))
    yield from (f"{package}.{file.parent.name}" for file in sorted(folder.glob("*/__init__.py")))

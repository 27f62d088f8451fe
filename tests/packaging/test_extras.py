"""`pip install nbsr` is enough for the library; what needs more says in one sentence which extra brings it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nbsr_core._extras import DISTRIBUTIONS, MissingExtraError, extra, needs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def distributions(extra: str) -> set[str]:
    """Names in an extra, those of the extras that it includes too."""
    found: set[str] = set()
    for text in EXTRAS[extra]:
        if included := re.match(r"nbsr\[(.+)\]", text):
            found |= {name for part in included[1].split(",") for name in distributions(part)}
        else:
            found.add(re.split(r"[\[<>=]", text)[0])
    return found


CORE = {re.split(r"[\[<>=]", text)[0] for text in PROJECT["dependencies"]}
IMPORTED = {name: module for module, name in DISTRIBUTIONS.items()}
BEYOND_THE_CORE = sorted({IMPORTED.get(name, name) for name in distributions("all") - CORE})

HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def without(hidden: list[str], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter in which some packages cannot be imported, as if they were not installed."""
    source = f"HIDDEN = {hidden!r}\n{HIDING}\n{code}"
    return subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, timeout=250)


def test_the_core_needs_little_and_the_extras_are_those_that_are_documented() -> None:
    assert {"torch", "numpy", "scipy", "networkx", "jaxtyping", "scikit-learn"} == CORE
    assert set(EXTRAS) == {
        "platform",
        "plots",
        "trees",
        "tabm",
        "tables",
        "navigation",
        "vision",
        "cluster",
        "all",
        "docs",
        "dev",
    }
    everything = {name for extra in set(EXTRAS) - {"all", "docs", "dev"} for name in distributions(extra)}
    assert distributions("all") == everything
    assert distributions("docs") <= distributions("dev")


IN_THE_CORE_ALONE = """
import importlib, json, pkgutil
import torch
import nbsr_core
from nbsr_core.domains.domain import SHIPPED, find_domain
from nbsr_core.errors import InputError

cannot = {}
for module in pkgutil.walk_packages(nbsr_core.__path__, "nbsr_core."):
    try:
        importlib.import_module(module.name)
    except InputError as error:
        cannot[module.name] = str(error)

def said(action):
    try:
        action()
    except InputError as error:
        return str(error)

from nbsr_core.domains.navigation.drawing import animation
from nbsr_core.domains.vision.backbones import BackboneOptions
from nbsr_core.domains.vision.images import png
from nbsr_core.learning.references.boosted_trees import BoostedTrees
from nbsr_core.learning.references.tabm import TabM
picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
print(json.dumps({
    "cannot": cannot,
    "public": [name for name in nbsr_core.__all__ if not hasattr(nbsr_core, name)],
    "domains": [find_domain(name).name for name in SHIPPED],
    "trees": said(lambda: BoostedTrees(3)),
    "tabm": said(lambda: TabM(4, 3, (5,))),
    "environment": said(lambda: importlib.import_module("nbsr_core.domains.navigation").GridWorld),
    "episode": said(lambda: animation([picture.permute(1, 2, 0).numpy()])),
    "picture": said(lambda: png(picture)),
    "resnet18": said(lambda: BackboneOptions("resnet18").build()),
    "lite": said(lambda: BackboneOptions("efficientnet_lite0").build()),
    "small": said(lambda: BackboneOptions("small").build()),
}))
"""


def test_all_of_the_library_works_without_any_extra_or_says_which_it_needs(tmp_path: Path) -> None:
    done = without(BEYOND_THE_CORE, IN_THE_CORE_ALONE, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plots, navigation, vision = (f"pip install 'nbsr[{name}]'" for name in ("plots", "navigation", "vision"))
    assert found == {
        "cannot": {
            "nbsr_core.domains.navigation.environment": f"gymnasium is not installed: {navigation}",
            "nbsr_core.plots.beliefs": f"matplotlib is not installed: {plots}",
            "nbsr_core.plots.frontier": f"matplotlib is not installed: {plots}",
        },
        "public": [],
        "domains": ["iris", "medical", "language", "acquisition", "triage", "navigation", "vision", "table"],
        "trees": "xgboost is not installed: pip install 'nbsr[trees]'",
        "tabm": "tabm is not installed: pip install 'nbsr[tabm]'",
        "environment": f"gymnasium is not installed: {navigation}",
        "episode": f"pillow is not installed: {navigation}",
        "picture": f"pillow is not installed: {vision}",
        "resnet18": f"torchvision is not installed: {vision}",
        "lite": f"efficientnet_lite_pytorch is not installed: {vision}",
        "small": None,
    }


NBSR = """
sys.argv = ["nbsr", *{words!r}]
from nbsr_platform.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("hidden", "words", "sentence"),
    [
        (BEYOND_THE_CORE, ["--version"], "typer is not installed: pip install 'nbsr[platform]'\n"),
        (["yaml"], ["studies"], "pyyaml is not installed: pip install 'nbsr[platform]'\n"),
        (
            ["psycopg"],
            ["report", "medical/search", "--storage", "postgresql+psycopg://nobody@127.0.0.1:9/none"],
            "psycopg is not installed: pip install 'nbsr[cluster]'\n",
        ),
        (
            ["psycopg"],
            ["report", "0" * 32, "--tracking", "postgresql+psycopg://nobody@127.0.0.1:9/none"],
            "psycopg is not installed: pip install 'nbsr[cluster]'\n",
        ),
    ],
)
def test_the_command_says_what_is_missing_in_one_sentence(
    hidden: list[str], words: list[str], sentence: str, tmp_path: Path
) -> None:
    done = without(hidden, NBSR.format(words=words), tmp_path)
    assert (done.returncode, done.stderr) == (2, sentence), done.stdout


def test_the_platform_in_python_says_what_is_missing_too(tmp_path: Path) -> None:
    done = without(BEYOND_THE_CORE, "from nbsr_platform import Study", tmp_path)
    assert done.stderr.splitlines()[-1].endswith("pyyaml is not installed: pip install 'nbsr[platform]'")


def test_a_study_whose_model_needs_an_extra_is_told_so_before_it_runs(tmp_path: Path) -> None:
    done = without(["xgboost"], NBSR.format(words=["run", "medical/quickstart", "--local"]), tmp_path)
    assert done.returncode == 2
    assert "models.xgboost" in done.stderr
    assert "xgboost is not installed: pip install 'nbsr[trees]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_packages_of_the_extra_are_blamed_on_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="mine"), extra("platform", "ray"):
        raise ModuleNotFoundError("No module named 'mine'", name="mine")
    sentence = r"^ray is not installed: pip install 'nbsr\[platform\]'$"
    with pytest.raises(MissingExtraError, match=sentence), extra("platform", "ray"):
        raise ModuleNotFoundError("No module named 'ray.tune'", name="ray.tune")
    with pytest.raises(MissingExtraError, match="no_such_package is not installed"):
        needs("no_such_package", "trees")
    needs("json", "trees")

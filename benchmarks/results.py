"""Make every page of docs/results again from stored results: nothing is run, and no figure is typed by hand.

    python -m benchmarks.results [PAGE ...] [--home .nbsr] [--out docs/results]

A page is a list of studies, each perhaps with settings on top of its file. Of a page whose studies are not all done,
with the code and data as they are now, it says what is missing and how to run it, and leaves the page as it is; all
others are written. What explains them stands in docs/results/_intro, under the name of the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbsr_platform.report.find import of_study
from nbsr_platform.report.markdown_page import write_markdown
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.study import load
from nbsr_platform.trials.home import Home

from nbsr_core.errors import InputError

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class Part:
    """A study file, or a shipped study, and what is set on top of it."""

    study: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """What a page of results is made from.

    Attributes:
        further: figures that it shows beside those that a domain shows first, `*` standing for any part of a name.
    """

    parts: tuple[Part, ...]
    further: tuple[str, ...] = ()


EMBEDDED = ("data.source=embedded", "name=medical-best-embedded", "seeds=10")
PAGES: Mapping[str, Page] = {
    "medical": Page(
        (Part("medical/best"), Part("medical/paper"), Part("medical/best", EMBEDDED)),
        ("nll", "noise_draws/nll", "exited", "smallest_mid_usage", "routing_agreement", "mean_confidence"),
    ),
    "triage": Page(
        (Part("triage/best"), Part("triage/decoupled"), Part("triage/paper")),
        ("noise_draws/peak", "noise_draws/cost_at_peak_5"),
    ),
    "language": Page(
        (Part("language/best"), Part("language/paper"), Part("language/real_text")),
        ("routing_agreement", "smallest_mid_usage", "exited"),
    ),
    "navigation": Page((Part("navigation/tables"),), ("lost", "collisions", "crashes")),
    "vision": Page(
        (Part("vision/frozen"), Part("vision/openset")),
        ("exit90/*", "leaf_agreement", "smallest_leaf_usage", "ood/*/auroc_*", "ood/*/fpr95"),
    ),
    "ablations": Page(
        tuple(Part(f"ablations/{name}") for name in ("evidence", "objective", "discussion", "calibration")),
        ("noise_draws/accuracy", "noise_draws/nll", "smallest_mid_usage", "pruned/*"),
    ),
    "theory": Page((Part("theory/bias_variance"),)),
}


def main(arguments: Sequence[str] | None = None, pages: Mapping[str, Page] = PAGES) -> int:
    """Write the pages that were named, or all; returns 1 if something was missing for one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"some of {', '.join(pages)}; all by default")
    parser.add_argument("--home", help="folder with the results; $NBSR_HOME or .nbsr by default")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the pages")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.pages if name not in pages]
    if unknown:
        parser.error(f"no page {', '.join(unknown)}; there are {', '.join(pages)}")
    failed = 0
    for name in asked.pages or pages:
        found, missing = results_of(pages[name], Home.of(asked.home))
        if missing:
            failed = 1
            print(f"{name}: not written, since results are missing")
            print("\n".join(f"  {what}" for what in missing))
        else:
            place = asked.out / f"{name}.md"
            made_by = f"python -m benchmarks.results {name}"
            write_markdown(place, found, name, made_by=made_by, further=pages[name].further)
            print(f"{name}: {place}")
    return failed


def results_of(page: Page, home: Home) -> tuple[list[StudyResults], list[str]]:
    """The results of all studies of a page, and in words what is missing of them."""
    found, missing = [], []
    for part in page.parts:
        try:
            studies = load(part.study, part.settings).studies
        except InputError as error:
            missing.append(str(error))
            continue
        for study in studies:
            try:
                results = of_study(home, study)
            except InputError as error:  # nothing of it is stored, or its data is not here
                missing.append(str(error))
                continue
            found.append(results)
            left = results.wanted - len(results.finished)
            if left > 0:
                missing.append(f"{study.name}: {left} of {results.wanted} trials are not done; `{study.command}`")
    return found, missing


if __name__ == "__main__":
    sys.exit(main())

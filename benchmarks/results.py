"""Make every page of docs/results again from stored results: nothing is run, and no figure is typed by hand.

    python -m benchmarks.results [PAGE ...] [--home .nbsr] [--out docs/results]

A page is a list of studies, each perhaps with settings on top of its file. Of a page whose studies are not all done,
with the code and data as they are now, it says what is missing and how to run it, and leaves the page as it is; all
others are written. What explains them stands in docs/results/_intro, under the name of the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbsr_platform.report.find import of_study
from nbsr_platform.report.markdown_page import write_markdown
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.study.study import load
from nbsr_platform.trials.home import Home

from benchmarks import acquisition_demands, tables
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
        pairs: lines of which the first is asked to be at least level with the second, its fair counterpart.
        overview: makes what stands before the studies, from the results of all.
        written_by: the command that writes the study files; None where they are shipped.
    """

    parts: tuple[Part, ...]
    further: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    overview: Callable[[Sequence[StudyResults]], str] = lambda results: ""
    written_by: str | None = None


EMBEDDED = ("data.source=embedded", 'variants={"synthetic": {}}')
WITHHOLDING = ("aurc", "augrc", "controlled_coverage", "controlled_error", "set_coverage", "set_size")
ROUTING = ("exited", "smallest_mid_usage", "routing_agreement")
UNKNOWN = ("ood/*/abstained", "ood/*/auroc_*", "ood/*/fpr95")
PROMPTS = ("*/abstained", "*/abstained_*", "unk/auroc_*", "scrambled/auroc_*")
ALIENS = ("alien*/auroc", "alien*/auroc_*", "alien*/fpr95")
PAGES: Mapping[str, Page] = {
    "medical": Page(
        (Part("medical/best"), Part("medical/best", EMBEDDED), Part("medical/paper")),
        (
            "nll",
            "noise_draws/nll",
            *WITHHOLDING,
            "exited",
            "smallest_mid_usage",
            "routing_agreement",
            "mean_confidence",
        ),
        (("nbsr deep", "mlp"), ("nbsr_budget deep", "mlp")),
    ),
    "triage": Page(
        (Part("triage/best"), Part("triage/decoupled"), Part("triage/two_by_two"), Part("triage/paper")),
        ("noise_draws/peak", "noise_draws/cost_at_peak_5", "noise_draws/spending/*/accuracy"),
        overview=acquisition_demands.against_greedy,
    ),
    "acquisition": Page(
        tuple(Part(f"acquisition/{name}") for name in ("cube_nm", "cube", "cube_prices", "digits")),
        ("budget/*/accuracy", "budget/*/auroc"),
        overview=acquisition_demands.of_budgets,
    ),
    "tables": Page(
        tuple(Part(str(tables.FOLDER / f"{name}.yaml")) for name in tables.TABLES),
        overview=tables.overview,
        written_by="python -m benchmarks.tables --run",
    ),
    "language": Page(
        (Part("language/best"), Part("language/paper"), Part("language/real_text")),
        (*WITHHOLDING, *ROUTING, *PROMPTS),
        (("nbsr deep", "standard"), ("nbsr fast", "standard")),
    ),
    "navigation": Page(
        (Part("navigation/tables"),),
        ("right", "lost", "collisions", "crashes", "accuracy", "nll_raw", "coverage", *WITHHOLDING, *ALIENS),
        (("nbsr_mem deep", "cnn_gru"), ("nbsr deep", "cnn")),  # with memory, and without it
    ),
    "vision": Page(
        (Part("vision/frozen"), Part("vision/openset")),
        (*WITHHOLDING, "exit90/*", "leaf_agreement", "smallest_leaf_usage", *UNKNOWN),
        (("nbsr deep", "flat"), ("nbsr fast", "flat")),
    ),
    "ablations": Page(
        tuple(Part(f"ablations/{name}") for name in ("evidence", "objective", "discussion", "calibration", "unknown")),
        ("noise_draws/accuracy", "noise_draws/nll", "smallest_mid_usage", "pruned/*", "ood/*/auroc_*"),
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
        page = pages[name]
        found, missing = results_of(page, Home.of(asked.home))
        if missing:
            failed = 1
            print(f"{name}: not written, since results are missing")
            print("\n".join(f"  {what}" for what in missing))
            if page.written_by:
                print(f"  its studies are written by `{page.written_by}`")
        else:
            place = asked.out / f"{name}.md"
            made_by = f"python -m benchmarks.results {name}"
            overview = page.overview(found)
            write_markdown(
                place, found, name, made_by=made_by, overview=overview, further=page.further, pairs=page.pairs
            )
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

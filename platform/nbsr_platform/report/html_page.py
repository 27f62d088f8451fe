"""The page: parts in the order in which a person asks, all data and code in one file, nothing to fetch.

Python decides what is said and which points are drawn; the scripts in `assets` draw them. Names come from study files
and data sets, so every one is escaped: in HTML by `html.escape`, in the embedded JSON by leaving no `<` in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from nbsr_core.trace.visit import OFF_CHART
from nbsr_platform.base import plain_json
from nbsr_platform.report import charts, decomposition, searches, tables
from nbsr_platform.report.comparing import Pair
from nbsr_platform.report.groups import Group
from nbsr_platform.report.numbers import brief
from nbsr_platform.report.purchases import HEADING, purchases
from nbsr_platform.report.reproduce import reproduce
from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.summary import without_interval
from nbsr_platform.report.verdicts import answer

SCRIPTS = ("plot.js", "graph.js", "walks.js", "search.js", "theory.js", "report.js")

TRAINING = (
    "Validation by epoch: all models, each seed as a thin line and their mean as a thick one; below, the terms of each "
    "model's loss (absolute values, weighted, mean over seeds)."
)


class Page:
    """Collects HTML, and beside it the data of the plots that stand in it."""

    def __init__(self) -> None:
        self.html: list[str] = []
        self.data: dict[str, Any] = {}

    def add(self, html: str) -> None:
        self.html.append(html)

    def plot(self, kind: str, data: Any, caption: str) -> None:
        """A place for a plot; the script of that kind fills it."""
        name = f"d{len(self.data)}"
        self.data[name] = brief(data)
        self.add(
            f"<figure data-kind={kind} data-of={name}><figcaption>{escape(caption)}</figcaption>"
            "<div class=plot></div></figure>"
        )


def write_report(
    path: Path,
    all_results: Sequence[StudyResults],
    title: str,
    *,
    question: str | None = None,
    compared: Sequence[Pair] = (),
) -> Path:
    """Write the page as one file."""
    return put(path, page(all_results, title, question=question, compared=compared))


def put(path: Path, text: str) -> Path:
    """Write a file beside its place and rename it there, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
    return path


def show_as(shown: Path, report: Path) -> Path:
    """Have a report stand under another name beside it too, instead of what stood there before."""
    beside = shown.with_suffix(".tmp")
    beside.unlink(missing_ok=True)
    try:
        beside.symlink_to(report.name)
    except OSError:  # a file system without links
        shutil.copyfile(report, beside)
    os.replace(beside, shown)
    return shown


def page(
    all_results: Sequence[StudyResults], title: str, *, question: str | None = None, compared: Sequence[Pair] = ()
) -> str:
    """The whole page. What was compared stands first; several studies begin with what each of them found.

    `question` is that of the collection, which is none of its studies' own.
    """
    made = Page()
    if compared:
        _add_comparison(made, compared)
    elif len(all_results) > 1:
        _add_summary(made, all_results, question)
    for number, study_results in enumerate(all_results):
        _add_study(
            made, study_results, f"study{number}", named=study_results.study.name != title, folded=len(all_results) > 1
        )
    entries = [
        f"<a href=#study{n}>{escape(study_results.study.name)}</a>" for n, study_results in enumerate(all_results)
    ]
    if compared:
        entries.insert(0, "<a href=#comparison>comparison</a>")
    nav = f"<nav>{' '.join(entries)}</nav>" if len(entries) > 1 else ""
    data = plain_json.dumps(made.data, compact=True).replace("<", "\\u003c")
    scripts = "\n".join(_asset(name) for name in SCRIPTS)
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        # An icon of our own, empty: without one a browser asks the server for it.
        f"<link rel=icon href='data:,'><title>{escape(title)}</title><style>{_asset('style.css')}</style></head>"
        f"<body><header><h1>{escape(title)}</h1><button id=theme type=button>light / dark</button></header>{nav}"
        f"<main>{''.join(made.html)}</main><div id=tip role=status hidden></div>"
        f"<script type=application/json id=data>{data}</script>"
        f"<script>'use strict';(() => {{\n{scripts}\n}})();</script></body></html>"
    )


def _asset(name: str) -> str:
    return (files("nbsr_platform.report") / "assets" / name).read_text(encoding="utf-8")


def _add_summary(made: Page, all_results: Sequence[StudyResults], question: str | None) -> None:
    """One line per study, with the way to it."""
    found = [
        f"<li><a href=#study{number}>{escape(study_results.study.name)}</a>: {escape(answer(study_results)[1])}"
        for number, study_results in enumerate(all_results)
    ]
    asked = "" if question is None else f"<p class=question>{escape(question)}</p>"
    made.add(f"<section id=summary>{asked}<ol class=answer>{''.join(found)}</ol></section>")


def _add_study(made: Page, study_results: StudyResults, anchor: str, *, named: bool, folded: bool) -> None:
    """One study; `folded` where it is one of many, whose plots would make the page endless."""
    study = study_results.study
    made.add(f"<section class=study id={anchor}>" + (f"<h2>{escape(study.name)}</h2>" if named else ""))
    if study.question:
        made.add(f"<p class=question>{escape(study.question)}</p>")
    made.add("<ol class=answer>" + "".join(f"<li>{escape(line)}" for line in answer(study_results)) + "</ol>")
    for note in study_results.notes:
        made.add(f"<p class=note>{escape(note)}</p>")
    if study_results.finished:
        made.add(f"<h3>Figures</h3><p>{escape(tables.INTERVALS)}{_few(study_results)}</p>")
        made.add(tables.comparison(study_results) + tables.paired(study_results))
        by_depth = tables.by_depth(study_results)
        made.add(f"<h3>Depth</h3>{by_depth}" if by_depth else "")
    if folded:
        made.add("<details class=more><summary>Plots, walks, training, and how to reproduce</summary>")
    if study_results.finished:
        _add_decomposition(made, study_results)
        _add_plots(made, study_results)
    found = searches.search_data(study_results)
    if found is not None:
        made.add(f"<h3>Search</h3>{tables.members(study_results)}")
        made.plot("parallel", found, "Every proposal, from parameter to parameter to its objectives.")
        made.plot("history", found, "Objectives in the order of the proposals; the line is the best so far.")
        made.plot(
            "importance",
            found,
            "Share of an objective's variance that a parameter explains on its own (omega squared, bootstrap 95% "
            "band): main effects only, among the proposals that have it.",
        )
    made.add(f"<h3>How to reproduce</h3>{reproduce(study_results)}{'</details>' if folded else ''}</section>")


def _few(study_results: StudyResults) -> str:
    said = without_interval(study_results.rows)
    return "" if said is None else f" <strong>{escape(said)}.</strong>"


def _add_decomposition(made: Page, study_results: StudyResults) -> None:
    found = decomposition.decompose(study_results)
    if found:
        made.add(f"<h3>Bias and variance</h3>{decomposition.table(found)}")
        if found[0].options:
            made.plot("decomposition", decomposition.chart_data(found), "Means over the test inputs; bands are 95%.")


def _add_plots(made: Page, study_results: StudyResults) -> None:
    walkers = [group for group in study_results.shown if group.family == "nbsr"]
    frontier = charts.frontier([study_results])
    if any(trial["points"][0][0] is not None for model in frontier["models"] for trial in model["trials"]):
        made.add("<h3>Frontiers</h3>")
        made.plot(
            "frontier",
            frontier,
            "Each dot is one exit threshold of one trial; a star is the threshold that was chosen on the validation "
            "split. Baselines are crosses where they have a value on that axis, otherwise dashed levels.",
        )
    bought = purchases(study_results.shown)
    if bought:
        made.add(f"<h3>{HEADING}</h3>{''.join(map(tables.part, bought))}")
    calibration = [found for found in map(charts.calibration, study_results.shown) if found["after"]]
    if calibration:
        made.add("<h3>Calibration</h3>")
        made.plot(
            "reliability",
            calibration,
            "Accuracy against confidence, pooled over seeds, by depth where there is any; larger dots hold more "
            "samples. Below the diagonal is over-confident.",
        )
    if any(found["risk"] for found in calibration):
        made.plot("risk", calibration, "Error rate among the answers if the least sure are withheld (mean over seeds).")
    beliefs = [found for found in map(charts.belief, walkers) if found is not None]
    if beliefs:
        made.add("<h3>Belief</h3>")
        made.plot(
            "belief",
            beliefs,
            "Mean over samples and seeds by depth; the band holds 90% of the samples. Entropies below "
            f"−{OFF_CHART:g} nats per class are off the chart and drawn at its edge.",
        )
        if any(found["entropy"] for found in beliefs):
            made.plot(
                "entropy",
                beliefs,
                f"Entropy of the belief at the end of the walk ({walkers[0].first[0].name}): the test split against "
                "every further set of the domain.",
            )
        drawn = [found for found in beliefs if found["graph"]["nodes"]]
        if drawn:
            made.plot("usage", drawn, "Share of the walks through each node and edge (first seed).")
    _add_walks(made, walkers)
    curves = [found for found in map(charts.training, study_results.shown) if found is not None]
    if curves:
        made.add("<h3>Training</h3>")
        made.plot("training", curves, TRAINING)


def _add_walks(made: Page, walkers: Sequence[Group]) -> None:
    found = [walk for walk in map(charts.walks, walkers) if walk is not None]
    told = [story for story in map(charts.stories, walkers) if story is not None]
    if told:
        made.add("<h3>Walks</h3>")
        made.plot("stories", told, "What the model did for some test samples, step by step (first seed).")
    if not found:
        return
    counts: dict[str, int] = {}
    for walk in found:
        for sample in walk["samples"]:
            counts[sample["verdict"]] = counts.get(sample["verdict"], 0) + 1
    shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    caption = f"Walks of test samples ({shown}); they were picked to show each kind and are no fair sample."
    if all(walk["max_vacuity"] is None for walk in found):
        caption += " Nobody abstains (evaluation.max_vacuity); the least sure samples are among them."
    if any(
        step.get("temperature") is not None for walk in found for sample in walk["samples"] for step in sample["steps"]
    ):
        caption += (
            " Each line adds up: belief before + evidence = α, divided by the sum it is the expected probability; "
            "calibration with the temperature T of that depth, fitted on the validation split, makes p^(1/T) of it."
        )
    made.add("<h3>Walks</h3>")
    made.plot("walks", found, caption)


def _add_comparison(made: Page, pairs: Sequence[Pair]) -> None:
    """Every line of the second against its counterpart in the first, and how that was done."""
    made.add("<section class=study id=comparison>")
    for pair in pairs:
        made.add(f"<h2>{escape(pair.title)}</h2><p>{escape('; '.join(pair.how))}.</p>")
        made.add(tables.beside(pair))
        both = [pair.first, pair.second]
        made.plot("frontier", charts.frontier(both), "All models of both; stars are the chosen thresholds.")
    made.add("</section>")

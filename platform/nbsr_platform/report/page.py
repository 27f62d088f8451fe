"""The page: parts in the order in which a person asks, all data and code in one file, nothing to fetch.

Python decides what is said and which points are drawn; the scripts in `assets` draw them. Names come from study files
and data sets, so every one is escaped: in HTML by `html.escape`, in the embedded JSON by leaving no `<` in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from nbsr_platform.report import charts, decomposition, searches, tables
from nbsr_platform.report.material import Group, Material
from nbsr_platform.report.numbers import brief
from nbsr_platform.report.reproduce import reproduce
from nbsr_platform.report.verdicts import answer, difference, headline, higher_is_better, lines

SCRIPTS = ("plot.js", "graph.js", "walks.js", "search.js", "theory.js", "report.js")


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


def write_report(path: Path, materials: Sequence[Material], title: str, *, compare: bool = False) -> Path:
    """Write the page beside its place and rename it there, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(page(materials, title, compare=compare), encoding="utf-8")
    os.replace(beside, path)
    return path


def page(materials: Sequence[Material], title: str, *, compare: bool = False) -> str:
    """The whole page; with `compare`, the studies are also set against each other."""
    made = Page()
    if compare:
        _add_comparison(made, materials)
    for number, material in enumerate(materials):
        _add_study(made, material, f"study{number}", named=material.study.name != title)
    entries = [f"<a href=#study{n}>{escape(material.study.name)}</a>" for n, material in enumerate(materials)]
    if compare:
        entries.insert(0, "<a href=#comparison>comparison</a>")
    nav = f"<nav>{' '.join(entries)}</nav>" if len(entries) > 1 else ""
    data = json.dumps(made.data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
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


def _add_study(made: Page, material: Material, anchor: str, *, named: bool) -> None:
    study = material.study
    made.add(f"<section class=study id={anchor}>" + (f"<h2>{escape(study.name)}</h2>" if named else ""))
    if study.question:
        made.add(f"<p class=question>{escape(study.question)}</p>")
    made.add("<ol class=answer>" + "".join(f"<li>{escape(line)}" for line in answer(material)) + "</ol>")
    for note in material.notes:
        made.add(f"<p class=note>{escape(note)}</p>")
    if material.finished:
        made.add("<h3>Figures</h3><p>Mean ± half of the 95% interval (Student-t over seeds); bold is best.</p>")
        made.add(tables.comparison(material) + tables.paired(material))
        _add_decomposition(made, material)
        _add_plots(made, material)
    found = searches.search_data(material)
    if found is not None:
        made.add(f"<h3>Search</h3>{tables.members(material)}")
        made.plot("parallel", found, "Every proposal, from parameter to parameter to its objectives.")
        made.plot("history", found, "Objectives in the order of the proposals; the line is the best so far.")
        made.plot(
            "importance",
            found,
            "Share of an objective's variance that a parameter explains on its own (omega squared, bootstrap 95% "
            "band): main effects only, among the proposals that have it.",
        )
    made.add(f"<h3>How to reproduce</h3>{reproduce(material)}</section>")


def _add_decomposition(made: Page, material: Material) -> None:
    found = decomposition.decompose(material)
    if found:
        made.add(f"<h3>Bias and variance</h3>{decomposition.table(found, len(found[0].without))}")
        if found[0].options:
            made.plot("decomposition", decomposition.chart_data(found), "Means over the test inputs; bands are 95%.")


def _add_plots(made: Page, material: Material) -> None:
    walkers = [group for group in material.shown if group.family == "nbsr"]
    frontier = charts.frontier([material])
    if any(trial["points"][0][0] is not None for model in frontier["models"] for trial in model["trials"]):
        made.add("<h3>Frontiers</h3>")
        made.plot(
            "frontier",
            frontier,
            "Each dot is one exit threshold of one trial; a star is the threshold that was chosen on the validation "
            "split, baselines are crosses.",
        )
    calibration = [found for found in map(charts.calibration, material.shown) if found["after"]]
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
        made.plot("belief", beliefs, "Mean over samples and seeds by depth; the band holds 90% of the samples.")
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
    curves = [found for found in map(charts.training, material.shown) if found is not None]
    if curves:
        made.add("<h3>Training</h3>")
        made.plot("training", curves, "Terms of the loss (absolute values, weighted) and validation, mean over seeds.")


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
        caption += " Nobody abstains: the study sets no evaluation.max_vacuity; the least sure samples are among them."
    made.add("<h3>Walks</h3>")
    made.plot("walks", found, caption)


def _add_comparison(made: Page, materials: Sequence[Material]) -> None:
    """Every line of the later studies against its namesake in the first; where there is none, against all."""
    first, gaps = materials[0], []
    bases = lines(first)
    for other in materials[1:]:
        for line in lines(other):
            namesakes = [base for base in bases if base.name == line.name] or [
                base for base in bases if base.family == line.family
            ]
            for base in namesakes:
                names = [name for name in headline(other) if higher_is_better(name) is not None]
                found = [difference(line, base, name) for name in names]
                gaps += [gap for gap in found if gap is not None]
    title = " and ".join(escape(material.study.name) for material in materials)
    made.add(f"<section class=study id=comparison><h2>{title}</h2>")
    data = {(material.source, str(material.study.data)) for material in materials}
    if len(data) > 1:
        made.add("<p class=note>These studies are not on the same data: differences between them mean little.</p>")
    if gaps:
        made.add(
            f"<p>{escape(materials[-1].study.name)} minus {escape(first.study.name)}, over common seeds, with 95% "
            "interval and a paired t-test.</p>"
        )
        made.add(tables.differences(gaps, f"against ({first.study.name})"))
    else:
        made.add("<p>They have no seed and no figure in common: nothing can be paired.</p>")
    made.plot("frontier", charts.frontier(materials), "All models of both; stars are the chosen thresholds.")
    made.add("</section>")

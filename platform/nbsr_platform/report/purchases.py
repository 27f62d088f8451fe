"""What models that buy panels do with their money, for people who know the field and not the models.

Four questions: how accurate is an answer for how much, what is bought first, for whom does it stop early, and how did
it go for one case? They are answered here once, as captions with rows or sentences; a page shows these in its own way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, TypedDict

from nbsr_core.domains.acquisition.words import in_plain_words, is_right, stopped_early
from nbsr_core.metrics import LEAST_SEEDS, Interval, names
from nbsr_core.metrics.names import TEST, VALID
from nbsr_platform.base.shape import fits
from nbsr_platform.report.groups import Group
from nbsr_platform.report.summary import short
from nbsr_platform.report.verdicts import over_seeds

HEADING = "What is bought"
FIRST_STEPS, MOST_PANELS, MOST_CLASSES = 5, 3, 12
LEAST_SHARE = 0.005
"""Panels that fewer cases buy at a step are not named there."""
BUDGET, SPENDING = "budget", "spending"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """One answer: a caption, and below it a table (`heads` and `rows`) or sentences (`lines`)."""

    caption: str
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()


class OptionRow(TypedDict):
    """A panel with its price, and the first candidate after it."""

    panel: str
    cost: float
    diagnosis: str
    confidence: float


class PurchaseRow(TypedDict):
    """One purchase of a story."""

    step: int
    bought: OptionRow
    shown: str
    spent: float
    needed: bool


class PurchaseStory(TypedDict):
    """A case as `nbsr_core.domains.acquisition.story.Story` stores it; older results have no more than this."""

    sample: int
    true: str
    predicted: str
    confidence: float
    spent: float
    price_of_all: float
    steps: list[PurchaseRow]
    next_best: OptionRow | None


def purchases(groups: Sequence[Group]) -> list[Part]:
    """All of it; nothing where no model buys anything."""
    buyers = [group for group in groups if _tables(group, "orders")]
    walkers = [group for group in buyers if group.family == "nbsr"]
    return [
        *_money(buyers),
        *_first(buyers),
        *(part for group in walkers for part in _stops(group)),
        *(part for group in walkers for part in _story(group)),
    ]


def is_of_purchases(audit: Row) -> bool:
    """Whether a stored story is that of a case for which panels were bought."""
    return fits(audit, PurchaseStory)


def _money(buyers: Sequence[Group]) -> Iterator[Part]:
    """Under hard budgets if there are some, otherwise where so much is spent on average."""
    known = list(dict.fromkeys(name for group in buyers for result in group.results for name in result.metrics))
    if any(_amount(name, BUDGET, "accuracy", TEST) is not None for name in known):
        data, kind, limit, head = TEST, BUDGET, "at most so much may be spent on each", "at most {:g}"
    else:
        sets = dict.fromkeys(name.partition(f"/{SPENDING}/")[0] for name in known if f"/{SPENDING}/" in name)
        data = next((name for name in sets if name != VALID), TEST)  # noise draws of the test rows, if there are some
        kind, limit, head = SPENDING, "it stops so early or late that they cost so much on average", "{:g} on average"
    over = "test cases" if data == TEST else f"test cases ({data.replace('_', ' ')})"
    said = {
        "accuracy": f"Accuracy against money: share of right answers to {over} where {limit}",
        "auroc": f"AUROC against money: how well the two classes are told apart in {over} where {limit}",
    }
    for figure, caption in said.items():
        amounts = {name: _amount(name, kind, figure, data) for name in known}
        columns = sorted((amount, name) for name, amount in amounts.items() if amount is not None)
        rows = [[group.name, *(short(over_seeds(group, name), name) for _, name in columns)] for group in buyers]
        if columns:
            heads = ["model", *(head.format(amount) for amount, _ in columns)]
            yield Part(f"{caption}; {_means(buyers)}{_intervals(buyers)}.", heads, rows)
    yield from _own_stop(buyers, data, over)


def _own_stop(buyers: Sequence[Group], data: str, over: str) -> Iterator[Part]:
    """What is spent where a model stops by itself."""
    place = names.place(data, names.FAST)
    figures = {name: f"{place}/{name}" for name in ("accuracy", "mean_cost", "exited")}
    rows = []
    for group in buyers:
        found = {name: over_seeds(group, stored) for name, stored in figures.items()}
        if found["accuracy"] is not None and found["mean_cost"] is not None:
            early = "-" if found["exited"] is None else f"{found['exited'].estimate:.0%}"
            rows.append([group.name, short(found["accuracy"], "accuracy"), _cost(found["mean_cost"]), early])
    if rows:
        caption = f"Right answers and cost where a model stops by itself, {_threshold(buyers)}: {over}"
        caption += f", {_means(buyers)}{_intervals(buyers)}."
        yield Part(caption, ["model", "right answers", "mean cost of a case", "cases that stop early"], rows)


def _amount(name: str, kind: str, figure: str, data: str) -> float | None:
    """The money of a stored figure such as `budget/5/accuracy`; None where it is another figure, or of other data."""
    *head, found, amount, last = ["", "", *name.split("/")]
    if found != kind or last != figure or "/".join(filter(None, head)) != ("" if data == TEST else data):
        return None
    try:
        return float(amount)
    except ValueError:
        return None


def _first(buyers: Sequence[Group]) -> Iterator[Part]:
    if not buyers:
        return
    paid = all("paid" in row for group in buyers for rows in _tables(group, "orders") for row in rows)
    share = "paid" if paid else "share"
    body = []
    for group in buyers:
        steps = _mean_by(_tables(group, "orders"), lambda row: (row["step"], row["panel"]), (share,), absent=0.0)
        last = min(FIRST_STEPS, max(step for step, _ in steps))
        cells = []
        for number in range(1, last + 1):
            here = [(panel, found[share]) for (step, panel), found in steps.items() if step == number]
            cells.append(_favourites(here))
        body.append([group.name, *cells])
    width = max(map(len, body))
    heads = ["model", *(f"purchase {step}" for step in range(1, width))]
    who = f"who has stopped buys nothing more, {_threshold(buyers)}" if paid else "as if nobody stopped early"
    caption = f"What is bought first, and for which share of the cases ({who}); {_means(buyers)}."
    yield Part(caption, heads, [[*row, *["-"] * (width - len(row))] for row in body])


def _favourites(shares: Sequence[tuple[str, float]]) -> str:
    most = sorted(shares, key=lambda item: -item[1])[:MOST_PANELS]
    return "; ".join(f"{panel} ({share:.0%})" for panel, share in most if share >= LEAST_SHARE) or "-"


def _stops(group: Group) -> Iterator[Part]:
    columns = ("cases", "mean_cost", "stopped_early", "accuracy")
    found = _mean_by(_tables(group, "stops"), lambda row: row["name"], columns)
    if not found:
        return
    rows = sorted(found.items(), key=lambda item: item[1]["mean_cost"])
    shown = rows if len(rows) <= MOST_CLASSES else [*rows[: MOST_CLASSES // 2], *rows[-MOST_CLASSES // 2 :]]
    left_out = f"; the {MOST_CLASSES // 2} cheapest and dearest of {len(rows)}" if len(shown) < len(rows) else ""
    body = [
        [
            str(name),
            f"{row['cases']:,.0f}",
            f"{row['mean_cost']:.3g}",
            f"{row['stopped_early']:.0%}",
            f"{row['accuracy']:.1%}",
        ]
        for name, row in shown
    ]
    heads = ["true class", "cases per seed", "mean cost", "stopped early", "right"]
    caption = f"{group.name}: for whom it stops early, {_threshold([group])}, the cheapest first{left_out}"
    yield Part(f"{caption}; {_means([group])}.", heads, body)


def _story(group: Group) -> Iterator[Part]:
    """Of the first seed: the first case that stopped early and was answered right, or the first that there is."""
    trial, result = group.first
    told = [audit for audit in result.audits if is_of_purchases(audit)]
    if told:
        story = next((audit for audit in told if stopped_early(audit) and is_right(audit)), told[0])
        chosen = ", the first of those kept that stopped early and was answered right" if story is not told[0] else ""
        kind = story.get("case", "case")
        caption = f"The story of one {kind}: {group.name}, test {kind} {story['sample']} of seed {trial.seed}{chosen}."
        yield Part(caption, lines=in_plain_words(story))


def _tables(group: Group, name: str) -> list[Sequence[Row]]:
    """A table of each trial that has it."""
    return [result.tables[name] for result in group.results if result.tables.get(name)]


def _mean_by(
    tables: Sequence[Sequence[Row]], key: Callable[[Row], Any], columns: Sequence[str], absent: float | None = None
) -> dict[Any, dict[str, float]]:
    """Means over seeds of the rows with the same key; where a seed has none, it counts as `absent`, or not at all."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for rows in tables:
        for row in rows:
            found[key(row)].append(row)
    means = {}
    for name, rows in found.items():
        count = len(rows) if absent is None else len(tables)
        missing = 0.0 if absent is None else absent * (count - len(rows))
        means[name] = {column: (sum(row[column] for row in rows) + missing) / count for column in columns}
    return means


def _threshold(groups: Sequence[Group]) -> str:
    """Who says when to stop."""
    given = any(trial.evaluation.get("eta") is not None for group in groups for trial, _ in group.members)
    return "at the threshold that was given" if given else "at the threshold that validation chose"


def _means(groups: Sequence[Group]) -> str:
    """Over how many seeds."""
    counts = sorted({len(group.members) for group in groups})
    return "of one seed" if counts == [1] else f"means over {' or '.join(map(str, counts))} seeds"


def _intervals(groups: Sequence[Group]) -> str:
    """What stands beside a mean, if anything does."""
    return " with 95% intervals" if any(len(group.members) >= LEAST_SEEDS for group in groups) else ""


def _cost(found: Interval) -> str:
    bounds = "" if isnan(found.low) else f" ({found.low:.3g}–{found.high:.3g})"
    return f"{found.estimate:.3g}{bounds}"

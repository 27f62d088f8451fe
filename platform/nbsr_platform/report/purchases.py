"""What models that buy panels do with their money, for people who know the field and not the models.

Three questions, each a small table: how accurate is an answer for how much, what is bought first, and for whom does it
stop early? All of the first seed's trial, the means over its test cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from nbsr_platform.report.groups import Group

FIRST_STEPS, MOST_PANELS, MOST_CLASSES = 5, 3, 12
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Of what a model spends that never stops early."""

Rows = Sequence[dict[str, Any]]


def purchases(groups: Sequence[Group]) -> str:
    """All of it as HTML; nothing where no model buys anything."""
    buyers = [group for group in groups if group.first[1].tables.get("orders")]
    if not buyers:
        return ""
    parts = ["<h3>What is bought</h3>", _money(buyers), _first(buyers)]
    parts += [_stops(group) for group in buyers if group.family == "nbsr" and group.first[1].tables.get("stops")]
    return "".join(parts)


def accuracy_for(money: float, frontier: Rows) -> float | None:
    """The best accuracy at a mean cost of at most so much; None where even the least costs more."""
    paid = [row["accuracy"] for row in frontier if row["mean_cost"] <= money + 1e-9]
    return max(paid, default=None)


def _money(buyers: Sequence[Group]) -> str:
    frontiers = {group.name: group.first[1].tables.get("frontier", []) for group in buyers}
    most = max((row["mean_cost"] for rows in frontiers.values() for row in rows), default=0.0)
    amounts = [share * most for share in SHARES]
    body = []
    for name, rows in frontiers.items():
        found = [accuracy_for(money, rows) for money in amounts]
        body.append([name, *("–" if right is None else f"{right:.1%}" for right in found)])
    heads = ["model", *(f"for {money:.3g}" for money in amounts)]
    return _table("Accuracy against money: share of right answers when so much is spent on average.", heads, body)


def _first(buyers: Sequence[Group]) -> str:
    body = []
    for group in buyers:
        rows = group.first[1].tables["orders"]
        steps = range(1, min(FIRST_STEPS, max(row["step"] for row in rows)) + 1)
        body.append([group.name, *("; ".join(_favourites(rows, step)) for step in steps)])
    heads = ["model", *(f"purchase {step}" for step in range(1, max(map(len, body))))]
    return _table("What is bought first, and for which share of the cases.", heads, body)


def _favourites(rows: Rows, step: int) -> Iterator[str]:
    here = sorted((row for row in rows if row["step"] == step), key=lambda row: -row["share"])
    for row in here[:MOST_PANELS]:
        if row["share"] > 0:
            yield f"{row['panel']} ({row['share']:.0%})"


def _stops(group: Group) -> str:
    rows = sorted(group.first[1].tables["stops"], key=lambda row: row["mean_cost"])
    shown = rows if len(rows) <= MOST_CLASSES else [*rows[: MOST_CLASSES // 2], *rows[-MOST_CLASSES // 2 :]]
    left_out = f"; the {MOST_CLASSES // 2} cheapest and dearest of {len(rows)}" if len(shown) < len(rows) else ""
    body = [
        [
            row["name"],
            f"{row['cases']:,}",
            f"{row['mean_cost']:.3g}",
            f"{row['stopped_early']:.0%}",
            f"{row['accuracy']:.1%}",
        ]
        for row in shown
    ]
    heads = ["true class", "cases", "mean cost", "stopped early", "right"]
    return _table(f"{group.name}: for whom it stops early, the cheapest first{left_out}.", heads, body)


def _table(caption: str, heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = (
        f"<tr><th scope=row>{escape(first)}{''.join(f'<td>{escape(cell)}' for cell in rest)}" for first, *rest in body
    )
    return (
        f"<p>{escape(caption)}</p><div class=wide><table><thead><tr>"
        f"{''.join(f'<th>{escape(head)}' for head in heads)}</thead><tbody>{''.join(lines)}</tbody></table></div>"
    )

"""The tables of docs/reliability.md, written between their marks from what was found; the text around them stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.reliability.cluster import ROOT
from benchmarks.reliability.hostile import HOSTILE
from benchmarks.reliability.scenarios import SCENARIOS

PAGE = ROOT / "docs" / "reliability.md"


def write_tables(found: dict[str, Any]) -> None:
    text = PAGE.read_text()
    for name, lines in {"scenarios": scenarios(found.get("scenarios", {})), "hostile": hostile()}.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert mark, f"{PAGE} has no place for {name}"
        assert end, f"{PAGE} has no end of {name}"
        text = before + mark + "\n".join(lines) + "\n" + end + after
    PAGE.write_text(text)


def scenarios(found: dict[str, Any]) -> Iterator[str]:
    yield "| scenario | done to it | trials | lost | doubled | epochs twice | same figures | seconds | commit | seen |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | --- | --- |"
    for name in SCENARIOS:
        row = found.get(name)
        if row is None:
            yield f"| `{name}` | no result yet | | | | | | | | |"
            continue
        same = {None: "-", True: "yes", False: "**no**"}[row["same"]]
        twice = "-" if row["repeated"] is None else row["repeated"]
        notes = cell("; ".join(row["notes"]))
        did = row["did"] if row["good"] else f"**failed:** {row['did']}"
        counts = f"{row['trials']} | {row['lost']} | {row['doubled']} | {twice}"
        yield f"| `{name}` | {did} | {counts} | {same} | {row['seconds']:.0f} | {row['commit']} | {notes} |"


def hostile() -> Iterator[str]:
    yield "| input | command | said |"
    yield "| --- | --- | --- |"
    for case in HOSTILE:
        yield f"| {cell(case.name)} | `nbsr {cell(case.command)}` | {cell(case.says)} |"


def cell(text: str) -> str:
    """Text that cannot break the table, nor be taken for markup."""
    plain = " ".join(text.split())
    for sign, entity in {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}.items():
        plain = plain.replace(sign, entity)
    return plain

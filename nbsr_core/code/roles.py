"""Which code of this library trains models, which judges them, and which does neither: one table for all of it.

Code that trains determines what is learned, and with it everything else. Code that judges determines the figures of a
model that was trained: when it changes, models are judged again and none is trained. Code that does neither (pictures,
explanations, services) changes no result.

The most specific line of the table counts. A new module belongs where its room does; a new room, or a new domain, needs
a line of its own, as a test says. When in doubt, and without a line, code trains: that costs time, while a wrong
`judges` would keep weights that today's code would not learn.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal

from nbsr_core.code.meaning import Code

Role = Literal["trains", "judges", "neither"]

PACKAGE = "nbsr_core"
SOURCES = {".py", ".c", ".h", ".toml"}
ROLES: dict[str, Role] = {
    "__init__": "neither",
    "_checks": "trains",
    "_extras": "neither",
    "_lazy": "neither",
    "errors": "trains",
    "files": "trains",
    "code": "neither",
    "options": "trains",
    "kernels": "trains",
    "graph": "trains",
    "metrics": "trains",
    "metrics.by_class": "judges",
    "metrics.conformal": "judges",
    "metrics.ranking": "judges",
    "metrics.risk_control": "judges",
    "belief": "trains",
    "trace": "trains",
    "trace.audit": "judges",
    "trace.visit": "judges",
    "model": "trains",
    "learning": "trains",
    "evaluation": "judges",
    "plots": "neither",
    "domains.__init__": "neither",
    "domains.domain": "trains",
    "domains.tabular": "trains",
    "domains.references": "trains",
    "domains.service": "neither",
    "domains.iris": "trains",
    "domains.medical": "trains",
    "domains.language": "trains",
    "domains.language.counts": "judges",
    "domains.language.judging": "judges",
    "domains.language.explanation": "neither",
    "domains.language.generation": "neither",
    "domains.language.picture": "neither",
    "domains.language.service": "neither",
    "domains.navigation": "trains",
    "domains.navigation.evaluation": "judges",
    "domains.navigation.drawing": "neither",
    "domains.navigation.environment": "neither",
    "domains.navigation.episode": "neither",
    "domains.navigation.service": "neither",
    "domains.acquisition": "trains",
    "domains.acquisition.evaluation": "judges",
    "domains.acquisition.exact": "judges",
    "domains.acquisition.service": "neither",
    "domains.acquisition.story": "judges",
    "domains.acquisition.words": "judges",
    "domains.table": "trains",
    "domains.table.service": "neither",
    "domains.triage": "trains",
    "domains.vision": "trains",
    "domains.vision.judging": "judges",
}
# Modules of the room of domains that all domains share.
SHARED = {"__init__", "domain", "references", "service", "tabular"}


def line_of(place: str) -> str | None:
    """The line of the table for a module of this library, by its place in it; None where its room has none yet."""
    known = [part for part in accumulate(place.split("."), "{}.{}".format) if part in ROLES]
    return known[-1] if known else None


def role_of(place: str) -> Role:
    """What a module of this library does, by its place in it: `trace.exits`, or `kernels.native.walk.c`."""
    line = line_of(place)
    return "trains" if line is None else ROLES[line]


def library_files() -> dict[str, Path]:
    """All source files of this library by their places in it; a package's own is `<package>.__init__`."""
    root = Path(__file__).parents[1]
    found = {}
    for file in root.rglob("*"):
        if file.suffix in SOURCES:
            parts = file.relative_to(root).parts
            found[".".join(parts).removesuffix(".py")] = file
    return found


@cache
def library_fingerprints(domains: frozenset[str]) -> tuple[str, str]:
    """Fingerprints of the code that trains and of the code that judges, where a trial involves these shipped domains.

    Code of other domains does not count: a change in vision does not undo medical's results.
    """
    files = {place: file for place, file in library_files().items() if _is_involved(place, domains)}
    names = {place: f"{PACKAGE}.{place}".removesuffix(".__init__") for place in files}
    code = Code({names[place]: file for place, file in files.items()})
    having: dict[Role, set[str]] = {"trains": set(), "judges": set(), "neither": set()}
    for place, name in names.items():
        having[role_of(place)].add(name)
    return code.fingerprint(having["trains"]), code.fingerprint(having["judges"], beside=having["trains"])


def _is_involved(place: str, domains: Collection[str]) -> bool:
    room, _, rest = place.partition(".")
    owner = rest.partition(".")[0]
    return room != "domains" or owner in SHARED or owner in domains

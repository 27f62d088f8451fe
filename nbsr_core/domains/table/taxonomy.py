"""Classes in groups: as the study says, or as columns of the table say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nbsr_core.domains.table.cells import category_of
from nbsr_core.domains.table.options import TableData
from nbsr_core.domains.table.survey import Survey, listed
from nbsr_core.errors import InputError

Taxonomy = dict[str, Any]
"""Groups by name: nested mappings, at the bottom lists of class names."""


def taxonomy_of(data: TableData, found: Survey) -> Taxonomy | None:
    """The taxonomy of a study's table, checked against its classes; None where nothing is said."""
    if data.taxonomy is not None:
        return _given(data.taxonomy, found)
    return _read(data, found) if data.hierarchy else None


def _given(given: Mapping[str, Any], found: Survey) -> Taxonomy:
    checked: Taxonomy = _plain(given, "taxonomy")
    owned = Counter(_classes(checked))
    twice = [name for name, times in owned.items() if times > 1]
    if twice:
        raise InputError(f"taxonomy: class {twice[0]!r} stands in more than one group")
    unknown = sorted(set(owned) - set(found.labels.names))
    if unknown:
        raise InputError(f"taxonomy: {listed(unknown)} is no class; classes are {listed(found.labels.names, 12)}")
    lost = [name for name in found.labels.names if name not in owned]
    if lost:
        raise InputError(f"taxonomy: {listed(lost)} stands in no group")
    ordered: Taxonomy = _ordered(checked, {name: place for place, name in enumerate(found.labels.names)})
    return ordered


def _ordered(branch: Any, places: Mapping[str, int]) -> Any:
    """Groups by their first class, whatever order the study names them in: equal studies have equal graphs."""
    if not isinstance(branch, Mapping):
        return sorted(branch, key=places.__getitem__)
    inner = {name: _ordered(part, places) for name, part in branch.items()}
    return dict(sorted(inner.items(), key=lambda item: min(places[name] for name in _classes(item[1]))))


def _plain(branch: Any, place: str) -> Any:
    """Nested mappings and lists with texts at the bottom: YAML reads classes such as 1 or yes as something else."""
    if isinstance(branch, Mapping):
        return {str(name): _plain(inner, f"{place}.{name}") for name, inner in branch.items()}
    if isinstance(branch, list | tuple) and branch:
        words = {True: "true", False: "false"}
        return [words.get(name, str(name)) if isinstance(name, bool) else category_of(str(name)) for name in branch]
    raise InputError(f"{place} must be a list of classes or a mapping of groups, got {branch!r}")


def _classes(branch: Any) -> Iterator[str]:
    if isinstance(branch, Mapping):
        for inner in branch.values():
            yield from _classes(inner)
    else:
        yield from branch


def _read(data: TableData, found: Survey) -> Taxonomy:
    """The groups that columns say; a class must be in the same groups in all its rows."""
    columns = [found.table.cells[name].tolist() for name in data.hierarchy]
    groups: dict[int, tuple[str, ...]] = {}
    for code, *cells in zip(found.labels.codes.tolist(), *columns, strict=True):
        path = tuple(map(category_of, cells))
        empty = next((name for name, cell in zip(data.hierarchy, path, strict=True) if cell in data.missing), None)
        name = found.labels.names[code]
        if empty is not None:
            raise InputError(f"hierarchy: {empty!r} is empty in a row of class {name!r}")
        if groups.setdefault(code, path) != path:
            raise InputError(
                f"hierarchy: class {name!r} is in {' > '.join(groups[code])} in one row and in {' > '.join(path)} in "
                "another; a class must be in one group"
            )
    root: Taxonomy = {}
    for code, path in sorted(groups.items()):
        branch = root
        for level, _group in enumerate(path, 1):
            is_last = level == len(path)
            branch = branch.setdefault(_node(data.hierarchy, path[:level]), [] if is_last else {})
        branch.append(found.labels.names[code])  # type: ignore[attr-defined]
    return root


def _node(columns: tuple[str, ...], path: tuple[str, ...]) -> str:
    """A name that no other group has: groups of different levels, or below different ones, may be called alike."""
    return path[0] if len(path) == 1 else " / ".join(path)

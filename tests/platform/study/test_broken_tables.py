"""Tables as people have them: each is refused in one clear sentence, or read with a warning; none is a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from nbsr_platform.cli.app import app
from tables import animals, write_csv
from typer.testing import CliRunner

Columns = dict[str, list[Any]]
Content = bytes | str | Columns | Callable[[Path], None]


@dataclass(frozen=True)
class Broken:
    """A file that something is wrong with.

    Attributes:
        content: the file; a function makes it itself.
        says: words that the user must read.
        refused: whether the file is refused; otherwise it is read, and the words are a warning.
        target: the column to predict.
        data: further options of the study; without, `nbsr new` looks at the file, with them `nbsr validate`.
        name: of the file.
        domain: of the study.
    """

    content: Content
    says: str
    refused: bool = True
    target: str = "animal"
    data: dict[str, Any] = field(default_factory=dict)
    name: str = "table.csv"
    domain: str = "table"


def read(content: Content, says: str, **more: Any) -> Broken:
    return Broken(content, says, refused=False, **more)


def said_by(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output, done.output
    return done.exit_code, " ".join(done.output.split())


def changed(**columns: Any) -> Columns:
    """The animals with some columns replaced or added; None takes one away, a function gives the new cells."""
    found = animals(60)
    for name, cells in columns.items():
        old = found.pop(name, [])
        if cells is not None:
            found[name] = cells(old) if callable(cells) else list(cells)
    return found


def first(value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda cells: [value, *cells[1:]]


def every(*values: Any) -> list[Any]:
    return [values[row % len(values)] for row in range(60)]


def text(separator: str = ",", encoding: str = "utf-8", **columns: Any) -> Callable[[Path], None]:
    return lambda path: (write_csv(path, changed(**columns), separator, encoding), None)[1]


def lines(*rows: str, times: int = 1) -> str:
    head, *others = rows
    return "\n".join([head, *others * times]) + "\n"


def parquet(**columns: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({**{"animal": every("cat", "dog"), "x": [*range(60)]}, **columns}), path)

    return write


def cut_parquet(path: Path) -> None:
    parquet()(path)
    path.write_bytes(path.read_bytes()[:-40])


def linked_to_itself(path: Path) -> None:
    path.symlink_to(path)


NOT_FILES: dict[str, Broken] = {
    "a file that is not there": Broken(lambda path: None, "cannot be read: No such file", name="two_gigabytes.csv"),
    "a folder instead of a file": Broken(lambda path: path.mkdir(), "--target is for tables"),
    "a link to itself": Broken(linked_to_itself, "cannot be read: Too many levels of symbolic links"),
    "an empty file": Broken("", "is empty; expected a line of column names"),
    "blank lines only": Broken("\n \n\n", "is empty"),
    "a head without rows": Broken("weight,animal\n", "has a head but no rows"),
    "NUL bytes": Broken(b"weight,animal\n1,c\0t\n2,dog\n", "is not text: it holds NUL bytes"),
    "bytes of no text": Broken(bytes(range(128, 256)) * 40, "is not text"),
    "an Excel workbook": Broken(b"PK\x03\x04" + b"\0" * 60, "save the sheet as CSV"),
    "a gzip named csv": Broken(b"\x1f\x8b\x08" + b"\0" * 60, "compressed by gzip; unpack it first"),
    "a SQLite database": Broken(b"SQLite format 3\0", "export the table as CSV"),
    "JSON named csv": Broken(json.dumps([{"weight": 1, "animal": "cat"}] * 9), "is no table but JSON"),
    "JSON lines named csv": Broken('{"weight": 1, "animal": "cat"}\n' * 9, "is no table but JSON"),
    "a web page named csv": Broken("<!DOCTYPE html>\n<html><body>a, b</body></html>", "is no table but a web page"),
    "a Parquet file cut short": Broken(cut_parquet, "is no whole Parquet file", name="table.parquet"),
    "a Parquet file in name only": Broken(b"PAR1 and no more", "is no whole Parquet file", name="table.parquet"),
    "lists in cells of Parquet": read(
        parquet(x=every(1, 2, 5), odd=[[1, 2]] * 60),
        "column 'odd' is left out: it holds lists or records",
        name="table.parquet",
    ),
    "bytes in cells of Parquet": read(
        parquet(x=every(1, 2, 5), odd=[b"\xff\xfe"] * 60),
        "column 'odd' is left out: a cell holds bytes",
        name="table.parquet",
    ),
    "lists in the target": Broken(
        parquet(x=every(1, 2, 5), odd=[[1, 2]] * 60),
        "column 'odd' cannot be used: it holds lists",
        name="table.parquet",
        target="odd",
    ),
    "lists in a column of a study": Broken(
        parquet(x=every(1, 2, 5), odd=[[1, 2]] * 60),
        "column 'odd' cannot be used: it holds lists",
        name="table.parquet",
        data={"columns": {"odd": "numeric"}},
    ),
    "lists that are ignored": read(
        parquet(x=every(1, 2, 5), odd=[[1, 2]] * 60),
        "1 numeric",
        name="table.parquet",
        data={"columns": {"odd": "ignore"}},
    ),
    "times and durations": read(
        parquet(at=every(time(8, 30), time(9, 0)), took=[timedelta(minutes=n % 7) for n in range(60)]),
        "took │ numeric │ 0 to 360",
        name="table.parquet",
    ),
}

SHAPES: dict[str, Broken] = {
    "an unknown separator": Broken(lines("weight~animal", "1~cat", "2~dog", times=9), "has one column only"),
    "one column": Broken(lines("animal", "cat", "dog", times=9), "has one column only"),
    "the wrong separator": Broken(text(";"), "it has 'tag;weight;coat;indoors", data={"separator": ","}),
    "ragged rows": Broken(
        lines("weight,animal", "1,cat", "2,dog,3", "4,dog"), "line 3: 3 fields, but the head names 2"
    ),
    "a quotation mark that is not closed": Broken('weight,animal\n1,"cat\n2,dog\n', "is a quotation mark not closed?"),
    "no head": Broken(lines("5.1,3.5,0", "4.9,3.0,1", times=9), "first line must name the columns"),
    "two columns of one name": Broken(lines("x,x,animal", "1,2,cat", "3,4,dog", times=9), "more than one column 'x'"),
    "one name but for blanks": Broken(lines("x, x ,animal", "1,2,cat", "3,4,dog", times=9), "more than one column 'x'"),
    "latin-1 read as UTF-8": Broken(
        text(encoding="latin-1", coat=every("weiß", "grün")), "not text in utf-8", data={"encoding": "utf-8"}
    ),
    "an encoding that nobody knows": Broken(changed(), "Python knows no 'klingon'", data={"encoding": "klingon"}),
    "more cells than a cell can hold": Broken("weight,animal\n" + "1" * 2_000_000 + ",cat\n", "line 2: field larger"),
}

TARGETS: dict[str, Broken] = {
    "a target that is not there": Broken(changed(), "has no column 'breed'; it has 'tag', 'weight'", target="breed"),
    "another case of the target": Broken(changed(), "has no column 'Animal'", target="Animal"),
    "an empty target": Broken(changed(animal=every("")), "column 'animal' of", data={}),
    "a target of gaps alone": Broken(changed(animal=every("NaN", "?")), "it must hold the class of each row"),
    "one class": Broken(changed(animal=every("cat")), "is always 'cat'; two classes at least"),
    "one row per class": Broken(changed(animal=[f"a{row}" for row in range(60)]), "none of the 60 classes"),
    "a quantity as target": Broken(changed(), "a quantity rather than classes", target="weight"),
    "the target alone": Broken(lines(",animal", ",cat", ",dog", times=9), "no column is left to learn from"),
    "identifiers alone": Broken(
        {"id": [*range(60)], "uuid": [f"u{row}" for row in range(60)], "animal": every("cat", "dog")},
        "no column is left to learn from; id is identifier",
    ),
    "constants alone": Broken({"x": every(1), "y": every("a"), "animal": every("cat", "dog")}, "x is constant"),
    "gaps alone": Broken({"x": every("NaN"), "y": every("?"), "animal": every("cat", "dog")}, "x is empty"),
    "four rows": Broken(lines("x,animal", "1,cat", "2,cat", "3,dog", "4,dog"), "none of the 2 classes"),
}

OPTIONS: dict[str, Broken] = {
    "a group column that is not there": Broken(
        changed(), "split.column: ", data={"split": {"by": "group", "column": "herd"}}
    ),
    "two groups": Broken(
        changed(herd=every("a", "b")), "has 2 groups; three at least", data={"split": {"by": "group", "column": "herd"}}
    ),
    "times that are none": Broken(
        changed(when=every("monday", "2020-01-01")),
        "must hold a date or a number in every row, but holds 'monday'",
        data={"split": {"by": "time", "column": "when"}},
    ),
    "one moment": Broken(
        changed(when=every("2020-01-01")), "no row is left for", data={"split": {"by": "time", "column": "when"}}
    ),
    "a split of one value": Broken(
        changed(part=every("train")),
        "names 60 rows for training and 0 for the test",
        data={"split": {"by": "column", "column": "part"}},
    ),
    "a split of other words": Broken(
        changed(part=every("train", "7")), "but holds '7'", data={"split": {"by": "column", "column": "part"}}
    ),
    "weights below zero": Broken(
        changed(w=every(1, -1)), "must hold numbers >= 0, but holds '-1'", data={"row_weights": "w"}
    ),
    "weights that are none": Broken(changed(w=every(1, "NaN")), "but holds 'NaN'", data={"row_weights": "w"}),
    "weights of nothing": Broken(changed(w=every(0)), "have a 'w' of 0", data={"row_weights": "w"}),
    "weights in a column that is not there": Broken(changed(), "has no column 'w'", data={"row_weights": "w"}),
    "a class in two groups": Broken(
        changed(family=every("a", "b")), "a class must be in one group", data={"hierarchy": ["family"]}
    ),
    "a class in no group": Broken(
        changed(), "'bird' stands in no group", data={"taxonomy": {"fur": ["cat"], "paws": ["dog"]}}
    ),
    "a group of no class": Broken(
        changed(), "'fish' is no class; classes are", data={"taxonomy": {"fur": ["cat", "dog"], "fins": ["fish"]}}
    ),
    "a hierarchy of gaps": Broken(
        changed(family=every("")), "hierarchy: 'family' is empty in a row", data={"hierarchy": ["family"]}
    ),
    "words called numbers": Broken(
        changed(), "most of its cells are no numbers", data={"columns": {"coat": "numeric"}}
    ),
    "words called dates": Broken(changed(), "no format of dates fits", data={"columns": {"coat": "date"}}),
    "an option for a column that is not there": Broken(
        changed(), "has no column 'fur'", data={"columns": {"fur": "numeric"}}
    ),
    "the target ignored": Broken(changed(), "is ignored, but target needs it", data={"columns": {"animal": "ignore"}}),
}

PRICES: dict[str, Broken] = {
    "a price of a column that is not there": Broken(
        changed(),
        "'wieght' has a price, but is no column that models see; did you mean 'weight'?",
        data={"costs": {"wieght": 2}, "budgets": [2]},
        domain="acquisition",
    ),
    "a price of the target": Broken(
        changed(),
        "'animal' has a price, but is no column that models see",
        data={"costs": {"animal": 2}, "budgets": [2]},
        domain="acquisition",
    ),
    "a price below zero": Broken(
        changed(),
        "costs.coat must be a finite number > 0, got -2",
        data={"costs": {"coat": -2}, "budgets": [2]},
        domain="acquisition",
    ),
    "a column with two prices": Broken(
        changed(),
        "'coat' has several prices",
        data={
            "costs": {"coat": 2},
            "panels": {"p": {"columns": ["coat"], "cost": 1}},
            "budgets": [2],
        },
        domain="acquisition",
    ),
    "a panel of no columns": Broken(
        changed(),
        "panels.p",
        data={"panels": {"p": {"columns": [], "cost": 1}}, "budgets": [2]},
        domain="acquisition",
    ),
}

READ: dict[str, Broken] = {
    "a byte order mark": read(text(encoding="utf-8-sig"), "60 rows, 3 classes"),
    "latin-1": read(text(encoding="latin-1", coat=every("weiß", "grün")), "cp1252"),
    "UTF-16 with its mark": read(text(encoding="utf-16"), "utf-16"),
    "semicolons": read(text(";"), "separator semicolon"),
    "tabs": read(text("\t"), "separator tab"),
    "classes spelt in several ways": read(
        changed(animal=every("Cat", "cat", "DOG", "dog", "big  fish", "big fish")),
        "classes 'Cat', 'cat' of 'animal' differ only in capitals or blanks: are they one class?",
    ),
    "a copy of the target in a table with prices": read(
        changed(code=animals(60)["animal"]),
        "'code' says the target of every row",
        data={"costs": {"weight": 1.0}},
        domain="acquisition",
    ),
    "columns for routers in a table with prices": read(
        changed(),
        "data.side: has no effect: it counts only if domain is table",
        data={"costs": {"weight": 1.0}, "side": ["coat"]},
        domain="acquisition",
    ),
    "a copy of the target": read(changed(code=animals(60)["animal"]), "'code' says the target of every row"),
    "a code of the target": read(
        changed(code=[{"cat": 0, "dog": 1, "bird": 2}[name] for name in animals(60)["animal"]]),
        "'code' says the target of every row",
    ),
    "dates with day or month first": read(changed(born=every("03/04/2020", "05/06/2021")), "are read day first"),
    "1e308": read(changed(weight=first("1e308")), "1e+308"),
    "an infinite number": read(changed(owner=first("inf")), "'owner' are no numbers and count as missing: 'inf'"),
    "a word among numbers": read(
        changed(owner=lambda _: ["many", *range(100, 159)]), "are no numbers and count as missing: 'many'"
    ),
    "huge whole numbers": read(changed(owner=every(10**30, 10**31, 10**32)), "1e+30 to 1e+32"),
    "one column of gaps": read(changed(weight=every("NaN")), "no cell holds anything"),
    "words for truth": read(changed(indoors=every("Yes", "No", "yes")), "boolean"),
    "thousands separators": read(changed(weight=every("1,200", "13,500.5", "900")), "thousands comma"),
    "decimal commas": read(text(";", weight=every("1,5", "2,25", "13,1")), "decimal comma"),
    "names of blanks": read(lines("x, ,animal", "1,2,cat", "3,4,dog", "5,6,cat", times=9), "column 2"),
    "an index column without a name": read(
        {"": [*range(60)], **changed()}, "column 1 │ identifier, left out │ 60 different whole numbers"
    ),
    "a row without a class": read(changed(animal=first("")), "1 rows without a 'animal' are left out"),
    "a class of one row": read(changed(animal=first("unicorn")), "trained on and not tested: 'unicorn'"),
    "5,000 columns": read(
        {**{f"x{n}": [n, 1, 2] * 4 for n in range(5000)}, "y": ["a", "b"] * 6}, "and 4,940 more columns", target="y"
    ),
    "1,000 classes": read(
        {"x": [row // 3 + 0.5 for row in range(3000)], "y": [f"c{row // 3}" for row in range(3000)]},
        "1,000 classes",
        target="y",
    ),
    "a target of numbers": read(changed(), "classes", target="owner"),
    "a blank line at the end": read(lines("x,animal", "1,cat", "2,dog", "3,cat", times=9) + "\n\n", "27 rows"),
}

ALL = {**NOT_FILES, **SHAPES, **TARGETS, **OPTIONS, **PRICES, **READ}


def written(folder: Path, broken: Broken) -> Path:
    path = folder / broken.name
    if isinstance(broken.content, bytes):
        path.write_bytes(broken.content)
    elif isinstance(broken.content, str):
        path.write_text(broken.content, encoding="utf-8")
    elif isinstance(broken.content, dict):
        write_csv(path, broken.content)
    else:
        broken.content(path)
    return path


@pytest.mark.parametrize("what", ALL)
def test_a_broken_table_is_refused_or_warned_of_in_words(tmp_path: Path, what: str) -> None:
    broken = ALL[what]
    path, study = written(tmp_path, broken), tmp_path / "study.yaml"
    if broken.data:
        data = {"file": str(path), "target": broken.target, **broken.data}
        models: dict[str, Any] = {"greedy": {}} if broken.domain == "acquisition" else {"nbsr": {}}
        study.write_text(yaml.safe_dump({"name": "t", "domain": broken.domain, "data": data, "models": models}))
        words: Sequence[str] = ("validate", str(study))
    else:
        words = ("new", str(path), "--target", broken.target, "--out", str(study))
    code, said = said_by(*words)
    assert broken.says in said, said
    assert code == (2 if broken.refused else 0), said
    if broken.refused and not broken.data:
        assert not study.exists()
    if not broken.refused:
        assert said_by("validate", str(study))[0] == 0

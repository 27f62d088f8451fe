"""Fingerprints of code: what looks different and means the same is equal, what means something else is not."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbsr_core.code.meaning import FOR_READERS, Code, fingerprint

SHAPES = '''
"""Shapes, and how large they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from house.sizes import LARGEST, scaled

if TYPE_CHECKING:
    from house.walls import Wall

SIDES = 4


class Square:
    """Four equal sides."""

    sides: int = SIDES
    """As many as a wall has."""

    def area(self, side: float, *, factor: float = 2.0) -> float:
        """Side by side."""
        # a comment
        return scaled(side * side * factor + math.pi)


def shown(wall: Wall) -> str:
    pass
    return f"{wall!r:>10} of {LARGEST}"
'''
SIZES = '''
"""How large things may be."""
LARGEST = 100
SMALLEST = 1


def scaled(size: float) -> float:
    return min(size, LARGEST)
'''
WALLS = """
from house import sizes

LARGEST = 7


class Wall:
    height = sizes.LARGEST
"""
HOUSE = {"house/__init__.py": "", "house/shapes.py": SHAPES, "house/sizes.py": SIZES, "house/walls.py": WALLS}


def mean(folder: Path, files: Mapping[str, str]) -> str:
    """The fingerprint of files with these contents, as modules of these names."""
    found = {}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        found[".".join(Path(name).with_suffix("").parts).removesuffix(".__init__")] = path
    return fingerprint(found)


@pytest.fixture
def before(tmp_path: Path) -> str:
    return mean(tmp_path / "before", HOUSE)


def changed(name: str, old: str, new: str) -> dict[str, str]:
    assert old in HOUSE[name]
    return {**HOUSE, name: HOUSE[name].replace(old, new)}


MOVED = {
    "house/shapes.py": SHAPES.replace("house.sizes import LARGEST, scaled", "house.rooms.sizes import LARGEST, scaled"),
    "house/rooms/__init__.py": "",
    "house/rooms/sizes.py": SIZES,
    "house/walls.py": WALLS.replace("from house import sizes", "from house.rooms import sizes"),
    "house/__init__.py": "",
}
SPLIT = {
    **HOUSE,
    "house/sizes.py": '"""What a house is measured by."""\nfrom .scaling import scaled\nLARGEST = 100\n',
    "house/scaling.py": (
        "def scaled(size: float) -> float:\n    from house.sizes import LARGEST\n    return min(size, LARGEST)\n"
        "SMALLEST = 1\n"
    ),
}
SAME = {
    "a docstring": changed("house/shapes.py", "Four equal sides.", "Four sides of one length."),
    "no docstring": changed("house/shapes.py", '        """Side by side."""\n', ""),
    "the docstring of an attribute": changed("house/shapes.py", "As many as", "So many as"),
    "a comment": changed("house/shapes.py", "# a comment", "# another\n        # comment"),
    "formatting": changed(
        "house/shapes.py", "side * side * factor + math.pi", "\n            (side*side)*factor\n  + math.pi,\n "
    ),
    "quotes": changed("house/shapes.py", '''f"{wall!r:>10} of {LARGEST}"''', """f'{wall!r:>10} of {LARGEST}'"""),
    "the order of definitions": changed("house/sizes.py", "LARGEST = 100\nSMALLEST = 1", "SMALLEST = 1\nLARGEST = 100"),
    "a moved module": MOVED,
    "a renamed module": {
        "house/__init__.py": "",
        "house/forms.py": SHAPES,
        "house/sizes.py": SIZES,
        "house/walls.py": WALLS,
    },
    "a module in two": SPLIT,
    "a pass": changed("house/shapes.py", "    pass\n", ""),
    "what a package shows": {**HOUSE, "house/__init__.py": "from house.sizes import LARGEST\n__all__ = ['LARGEST']\n"},
    "what a class says to readers": changed(
        "house/shapes.py",
        "    sides: int = SIDES",
        "    unusable: dict[str, str] = {'round': 'rolls'}\n    sides: int = SIDES",
    ),
    "the way to a name": changed("house/walls.py", "from house import sizes", "import house.sizes as sizes"),
    "an import for types, at once": changed(
        "house/shapes.py", "if TYPE_CHECKING:\n    from house.walls", "from house.walls"
    ),
}
OTHER = {
    "a constant": changed("house/sizes.py", "LARGEST = 100", "LARGEST = 101"),
    "a constant of another type": changed("house/sizes.py", "SMALLEST = 1", "SMALLEST = 1.0"),
    "a default": changed("house/shapes.py", "factor: float = 2.0", "factor: float = 2.5"),
    "a name": changed("house/shapes.py", "def shown", "def showed"),
    "an annotation": changed("house/shapes.py", "sides: int = SIDES", "sides: float = SIDES"),
    "a text": changed("house/shapes.py", "} of {", "} out of {"),
    "an operator": changed("house/shapes.py", "factor + math.pi", "factor - math.pi"),
    "a decorator": changed("house/shapes.py", "    def area", "    @property\n    def area"),
    "another package": changed("house/shapes.py", "import math", "import numpy as math"),
    "what is said to readers outside of a class": changed(
        "house/sizes.py", "SMALLEST = 1", "SMALLEST = 1\nunusable = 1"
    ),
    "a name from elsewhere": changed(
        "house/shapes.py",
        "from house.sizes import LARGEST, scaled",
        "from house.sizes import scaled\nfrom house.walls import LARGEST",
    ),
    "another name of a module": changed("house/walls.py", "sizes.LARGEST", "sizes.SMALLEST"),
    "two constants that change places": {
        **changed("house/sizes.py", "LARGEST = 100", "LARGEST = 7"),
        "house/walls.py": WALLS.replace("LARGEST = 7", "LARGEST = 100"),
    },
    "what runs on import": {**HOUSE, "house/__init__.py": "print('hello')\n"},
    "the order of fields": changed(
        "house/walls.py", "    height = sizes.LARGEST", "    width = 1\n    height = sizes.LARGEST"
    ),
    "a value that is changed later": changed("house/sizes.py", "LARGEST = 100", "LARGEST = 100\nLARGEST += 1"),
}


@pytest.mark.parametrize("kind", SAME)
def test_what_means_the_same_has_the_same_fingerprint(tmp_path: Path, before: str, kind: str) -> None:
    assert mean(tmp_path / "after", SAME[kind]) == before


@pytest.mark.parametrize("kind", OTHER)
def test_what_means_something_else_has_another_fingerprint(tmp_path: Path, before: str, kind: str) -> None:
    assert mean(tmp_path / "after", OTHER[kind]) != before


def test_one_of_them_is_told_from_the_order_of_statements_where_that_counts(tmp_path: Path) -> None:
    first = mean(tmp_path / "a", {"m.py": "x = 1\nx = 2\n"})
    assert mean(tmp_path / "b", {"m.py": "x = 2\nx = 1\n"}) != first
    assert mean(tmp_path / "c", {"m.py": "class A:\n    x = 1\n    y = 2\n"}) != mean(
        tmp_path / "d", {"m.py": "class A:\n    y = 2\n    x = 1\n"}
    )


def test_a_table_of_modules_counts_by_what_is_named_in_them(tmp_path: Path) -> None:
    def of(table: str) -> str:
        return mean(tmp_path / str(random.random()), {**HOUSE, "house/table.py": f"TABLE = {{'a': {table!r}}}\n"})

    assert of("house.walls:Wall") == of("house.rooms.walls:Wall")
    assert of("house.walls:Wall") != of("house.walls:Door")
    assert of("some text. house.walls") != of("some text. house.rooms")


def test_nothing_is_imported_for_it(tmp_path: Path) -> None:
    assert mean(tmp_path, {"m.py": "raise SystemExit('looking must not run it')\n"})


@pytest.mark.parametrize("text", ["def (", "\0", "x = " + "(" * 500 + ")" * 500])
def test_what_python_cannot_read_counts_with_its_bytes(tmp_path: Path, text: str) -> None:
    first = mean(tmp_path / "a", {"m.py": text})
    assert mean(tmp_path / "b", {"m.py": text}) == first
    assert mean(tmp_path / "c", {"m.py": text + "# more"}) != first


def test_some_modules_of_many(tmp_path: Path) -> None:
    mean(tmp_path, HOUSE)
    files = {f"house.{name}": tmp_path / "house" / f"{name}.py" for name in ("shapes", "sizes", "walls")}

    def of(names: set[str], beside: set[str]) -> str:
        return Code(files).fingerprint(names, beside)

    alone, linked = of({"house.shapes"}, set()), of({"house.shapes"}, {"house.sizes"})
    through = SHAPES.replace("from house.sizes import LARGEST, scaled", "from house.door import LARGEST, scaled")
    (tmp_path / "door.py").write_text("from house.sizes import LARGEST, scaled\n")
    files["house.door"] = tmp_path / "door.py"
    files["house.shapes"].write_text(through)
    assert of({"house.shapes"}, {"house.sizes"}) == linked, "nor the door through which a name comes"
    files["house.walls"].write_text("LARGEST = 8\n")
    assert of({"house.shapes"}, {"house.sizes"}) == linked, "a module that is not asked for does not count"
    files["house.sizes"].write_text(SIZES.replace("SMALLEST = 1", "SMALLEST = 2"))
    assert of({"house.shapes"}, {"house.sizes"}) == linked, "nor a definition beside that is not used"
    files["house.sizes"].write_text(SIZES.replace("LARGEST = 100", "LARGEST = 99"))
    assert of({"house.shapes"}, {"house.sizes"}) != linked, "one that is used does"
    assert of({"house.shapes"}, set()) == alone


C = """
#include "beliefs.h"
#include <math.h>
#define TWICE(x) \\
    (2 * (x)) /* a macro */
// what a step is
static double step(double x) { return TWICE(x) + 1.0; } /* "not a text" */
static const char *text = "/* not // a comment */";
"""
SAME_C = {
    "comments": C.replace("// what a step is", "/* what a\nstep\nis */").replace("/* a macro */", ""),
    "spaces": C.replace("{ return TWICE(x) + 1.0; }", "{\n  return TWICE( x )+1.0 ;\n}"),
    "the place of a header of one's own": C.replace("beliefs.h", "../beliefs.h"),
    "one line for a macro": C.replace("\\\n    (2", "(2"),
}
OTHER_C = {
    "a constant": C.replace("1.0", "1.5"),
    "a text": C.replace("/* not // a", "/* no // a"),
    "a header of the system": C.replace("math.h", "float.h"),
    "a line that is no macro any more": C.replace("#define TWICE(x) \\\n", "#define TWICE(x)\n"),
}


@pytest.mark.parametrize("kind", [*SAME_C, *OTHER_C])
def test_comments_and_spaces_of_c_do_not_count(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.c").write_text(C)
    (tmp_path / "b.c").write_text({**SAME_C, **OTHER_C}[kind])
    same = fingerprint({"a": tmp_path / "a.c"}) == fingerprint({"b": tmp_path / "b.c"})
    assert same == (kind in SAME_C)


def test_of_toml_the_values_count(tmp_path: Path) -> None:
    texts = {"a": "[x]\ny = 1\nz = 'a'\n", "b": '# why\nx = {z = "a", y = 1}\n', "c": "[x]\ny = 2\nz = 'a'\n"}
    prints = {}
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
        prints[name] = fingerprint({name: tmp_path / f"{name}.toml"})
    assert prints["a"] == prints["b"] != prints["c"]


class Rewriter(ast.NodeTransformer):
    """Other docstrings, chosen at random: new ones, changed ones, none."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            kept = [item for item in node.body if not _is_text(item)]
            if self.chance.random() < 0.6:
                future = [item for item in kept if isinstance(item, ast.ImportFrom) and item.module == "__future__"]
                rest = [item for item in kept if item not in future]
                text = ast.Expr(ast.Constant(f"Text {self.chance.random()}\n\nmore."))
                kept = [text, *future, *rest]
            node.body = kept or [ast.Pass()]
        return node


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


CORE = Path(__file__).parents[3] / "nbsr_core"
MODULES = sorted(CORE.rglob("*.py"))
QUICKLY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICKLY
@given(module=st.sampled_from(MODULES), seed=st.integers(0, 10**6))
def test_other_docstrings_comments_and_formatting_of_real_modules(tmp_path: Path, module: Path, seed: int) -> None:
    chance = random.Random(seed)
    text = ast.unparse(Rewriter(chance).visit(ast.parse(module.read_text())))  # which has no comments left
    lines = [line + "  # so" * (chance.random() < 0.2 and not line.endswith("\\")) for line in text.splitlines()]
    plain = "\n".join(lines) if '"""' not in text and "'''" not in text and "\\n" not in text else text
    (tmp_path / "new.py").write_text(plain + "\n")
    assert fingerprint({"nbsr_core.some.name": tmp_path / "new.py"}) == fingerprint({"nbsr_core.some.name": module})


class Edit(ast.NodeTransformer):
    """Changes the constant that has a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = -1

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        self.seen += 1
        if self.seen != self.number:
            return node
        value = node.value
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else "other"
        return ast.copy_location(ast.Constant(other), node)


def _decisive_constants(tree: ast.Module) -> list[int]:
    """Numbers of the constants that are code: no docstrings, nothing said to readers, nothing that a package shows."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") in ("__all__", "__getattr__"):
            texts |= set(ast.walk(statement))  # type: ignore[arg-type]
    for body in (node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for inner in body:
            if isinstance(inner, ast.AnnAssign) and getattr(inner.target, "id", "") in FOR_READERS:
                texts |= set(ast.walk(inner))  # type: ignore[arg-type]
    order: list[ast.Constant] = []

    class Order(ast.NodeVisitor):
        def visit_Constant(self, node: ast.Constant) -> None:
            order.append(node)

    Order().visit(tree)
    return [number for number, node in enumerate(order) if node not in texts]


@QUICKLY
@given(module=st.sampled_from(MODULES), data=st.data())
def test_any_other_constant_of_real_modules_is_seen(tmp_path: Path, module: Path, data: st.DataObject) -> None:
    tree = ast.parse(module.read_text())
    numbers = _decisive_constants(tree)
    if not numbers:
        return
    edited = Edit(data.draw(st.sampled_from(numbers))).visit(tree)
    try:
        (tmp_path / "new.py").write_text(ast.unparse(edited) + "\n")
    except (ValueError, TypeError, AttributeError):
        return  # a part of an f-string that can be no other
    assert fingerprint({"nbsr_core.some.name": tmp_path / "new.py"}) != fingerprint({"nbsr_core.some.name": module})

"""What is printed is what was meant: brackets are no markup, and a terminal obeys nothing that came from a file."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from nbsr_platform.base.terminal import Terminal, visible
from nbsr_platform.cli.app import app
from nbsr_platform.cli.shared import clear_errors
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

GOOD = "name: fine\ndomain: iris\nmodels: {mlp: {}}\n"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\u202e\r"
SPELT = r"\x1b]0;owned\x07\x1b[2J\x9b31mred\u202e\r".replace(r"\r", r"\x0d")


def printed(width: int = 200) -> tuple[Terminal, io.StringIO]:
    file = io.StringIO()
    return Terminal(file, width=width), file


@pytest.mark.parametrize("folder", ["a[red]b", "a[/x]b", "a[bold]", "[link=http://x]", ":smile:", "a\\[b"])
def test_brackets_in_a_path_are_no_markup(folder: str, tmp_path: Path) -> None:
    file = tmp_path / folder.replace("/", "\u2215") / "s.yaml"
    file.parent.mkdir()
    file.write_text(GOOD)
    done = CliRunner().invoke(app, ["validate", str(file)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"{file}: fine" in done.output


def test_a_closing_tag_in_a_path_is_printed_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a[" / "x]b" / "s.yaml"  # together `[/x]`, which would close what nobody opened
    file.parent.mkdir(parents=True)
    file.write_text(GOOD)
    for command in (["validate", str(file)], ["studies", str(tmp_path)]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (done.output, done.exception)
        assert str(file) in done.output
    done = CliRunner().invoke(app, ["validate", str(file.with_name("none.yaml"))])
    assert done.exit_code == 2
    assert str(file.parent) in done.output


@pytest.mark.parametrize("where", ["line", "head", "cell", "title", "text", "padding", "live"])
def test_a_terminal_obeys_nothing_that_is_printed(where: str) -> None:
    console, file = printed()
    table = Table(title=HOSTILE if where == "title" else None)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    if where == "line":
        console.say(HOSTILE)
    elif where == "head":
        console.say("", head=HOSTILE, style="red")
    elif where == "text":
        console.print(Text(HOSTILE))
    elif where == "padding":
        console.print(Padding(HOSTILE, 1))
    elif where == "live":
        with Live(HOSTILE, console=console):
            pass
    else:
        console.print(table)
    dropped = where == "text"  # rich itself leaves out bells and carriage returns there
    assert (SPELT.replace(r"\x07", "").replace(r"\x0d", "") if dropped else SPELT) in file.getvalue()
    assert set(file.getvalue()) & set("\x1b\x07\x9b\u202e\r") == set()


def test_tables_stay_straight_around_what_is_spelt_out() -> None:
    console, file = printed()
    table = Table()
    table.add_column("name")
    for name in (HOSTILE, "short"):
        table.add_row(name)
    console.print(table)
    assert len({len(line) for line in file.getvalue().splitlines()}) == 1


def test_bytes_that_are_no_text_are_spelt_out(tmp_path: Path) -> None:
    assert visible("caf\udce9") == r"caf\xe9"
    assert visible("\ud800 ü", "ascii") == r"\ud800 \xfc"
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "caf\udce9.yaml")])
    assert done.exit_code == 2, done.exception
    assert r"caf\xe9.yaml" in done.output


def test_errors_questions_and_warnings_are_spelt_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(GOOD + 'question: "\\e[2Jwhy? [/x]"\n')
    done = CliRunner().invoke(app, ["studies", str(tmp_path)])
    assert r"\x1b[2Jwhy? [/x]" in done.output
    assert "\x1b" not in done.output
    with clear_errors():
        logging.getLogger("nbsr.test").warning("%s was damaged", "\x1b[2J[/x]")
    assert capsys.readouterr().err == "\\x1b[2J[/x] was damaged\n"


def test_styles_are_arguments_and_lines_are_never_wrapped() -> None:
    console, file = printed(width=20)
    console.say("x" * 100, head="[red]", style="yellow")
    console.pass_on("a\nb [bold]")
    assert file.getvalue() == f"[red] {'x' * 100}\na\nb [bold]"

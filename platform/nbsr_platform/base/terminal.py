r"""What is printed for people, in one place: text as it stands, and nothing in it that a terminal would obey.

Paths, names of classes, questions of studies and messages of others may hold anything: `[red]`, which rich would take
for markup, or escape sequences, with which a terminal hides lines, changes titles or types for you. Here every text is
plain, styles are arguments, control characters are spelt out (`\x1b`), and passwords that this process was given are
hidden.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from nbsr_platform.base.credentials import scrubbed

# Control characters but tab and line feed; what turns the direction of writing or breaks a line unseen; halves of
# characters and bytes that are no text (Python has both as surrogates).
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str, encoding: str = "utf-8") -> str:
    """The text with everything that a terminal would obey, or that cannot be written in its encoding, spelt out."""
    text = OBEYED.sub(_spelt, text)
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def _spelt(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Terminal(Console):
    """A console that shows every text as it is, wherever it stands: in a line, a table's cell or a live view.

    Args:
        file: where to write; standard output, or standard error with `stderr`, by default.
        width: of lines; that of the terminal by default.
        quiet: write nothing.
    """

    def __init__(
        self, file: IO[str] | None = None, *, stderr: bool = False, width: int | None = None, quiet: bool = False
    ) -> None:
        super().__init__(file=file, stderr=stderr, width=width, quiet=quiet, markup=False, highlight=False, emoji=False)

    def say(self, text: str, *, head: str = "", style: str = "") -> None:
        """Print a line as it is, however long: it may be copied from there.

        Args:
            text: what to say.
            head: words before it that stand out.
            style: of the head; of the whole text where there is no head.
        """
        first, rest = (head, f" {text}") if head else (text, "")
        self.print(self.render_str(first, style=style) + self.render_str(rest), soft_wrap=True)

    def pass_on(self, text: str) -> None:
        """Print what somebody else has laid out, and nothing more: no line feed is added."""
        self.print(text, soft_wrap=True, end="")

    def render_str(self, text: str, **options: Any) -> Text:
        """Without passwords, and spelt out before it is measured, so that tables stay straight."""
        return super().render_str(visible(scrubbed(text), self.encoding), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is printed comes through here."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text, self.encoding), segment.style)


class TerminalHandler(logging.Handler):
    """Has our own warnings printed on standard error like everything else."""

    def emit(self, record: logging.LogRecord) -> None:
        Terminal(stderr=True).say(record.getMessage())

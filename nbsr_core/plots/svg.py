"""A small pen for SVG: lines, boxes, dots and text that is escaped and cut to the room it has.

Pictures are one string with nothing to fetch and nothing to run. Colours are those of Okabe and Ito, which colour-blind
readers tell apart.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64encode
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

Number = float | int
Point = tuple[Number, Number]

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#a3497f"
INK, GREY, MIST, LINE, PAPER = "#1b2430", "#5b6675", "#c3cad4", "#dde2e8", "#ffffff"
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

# What XML cannot hold, escaped or not.
UNWRITABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Picture:
    """Collects the elements of a picture."""

    def __init__(self, width: Number) -> None:
        self.width = width
        self.parts: list[str] = []

    def text(
        self,
        at: Point,
        text: str,
        size: Number = 12,
        colour: str = INK,
        *,
        anchor: str = "start",
        bold: bool = False,
        halo: bool = False,
        room: Number | None = None,
    ) -> None:
        """Text on a baseline; with `room`, cut to that width, the whole of it in its tooltip. A halo covers lines."""
        shown = text if room is None else fit(text, room, size, bold=bold)
        weight = ' font-weight="bold"' if bold else ""
        outline = f' stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
        whole = f"<title>{clean(text)}</title>" if shown != text else ""
        self.parts.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"'
            f"{weight}{outline}>{whole}{clean(shown)}</text>"
        )

    def box(
        self, at: Point, width: Number, height: Number, fill: str, *, edge: str = "none", corner: Number = 0
    ) -> None:
        self.parts.append(
            f'<rect x="{at[0]:.1f}" y="{at[1]:.1f}" width="{max(width, 0.0):.1f}" height="{height:.1f}" '
            f'rx="{corner:g}" fill="{fill}" stroke="{edge}"/>'
        )

    def line(self, start: Point, end: Point, colour: str, width: Number = 1, *, dashed: bool = False) -> None:
        dashes = ' stroke-dasharray="6 5"' if dashed else ""
        self.parts.append(
            f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
            f'stroke="{colour}" stroke-width="{width:.2f}"{dashes}/>'
        )

    def dot(self, at: Point, radius: Number, fill: str, edge: str = "none", width: Number = 1, name: str = "") -> None:
        """A circle; its name shows as a tooltip."""
        self.parts.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:g}" fill="{fill}" stroke="{edge}" '
            f'stroke-width="{width:g}"><title>{clean(name)}</title></circle>'
        )

    def image(self, at: Point, side: Number, png: bytes) -> None:
        """A square picture, kept within the file; enlarged without smoothing, as its pixels are what is shown."""
        self.parts.append(
            f'<image x="{at[0]:.1f}" y="{at[1]:.1f}" width="{side:g}" height="{side:g}" '
            f'style="image-rendering:pixelated" href="data:image/png;base64,{b64encode(png).decode()}"/>'
        )

    def diamond(self, at: Point, colour: str) -> None:
        self.parts.append(f'<path d="M{at[0]:.1f} {at[1] - 4:.1f}l4 4l-4 4l-4 -4z" fill="{colour}"/>')

    def document(self, height: Number, title: str) -> str:
        """The whole picture as the text of a file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{height:.0f}" '
                f'viewBox="0 0 {self.width:g} {height:.0f}" role="img" '
                f'aria-label={quoteattr(UNWRITABLE.sub(" ", title))} font-family="{FONTS}">',
                f'<rect width="{self.width:g}" height="{height:.0f}" fill="{PAPER}"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def clean(text: str) -> str:
    """Any text as XML can hold it."""
    return escape(UNWRITABLE.sub(" ", text))


# Widths of letters in em, those of DejaVu Sans: of the fonts that machines have, the widest.
EMS = {
    **dict.fromkeys("'ijlIJ", 0.3),
    **dict.fromkeys(" ,./:;\\|f-()[]t!r", 0.41),
    **dict.fromkeys('"*_`sz?c', 0.55),
    **dict.fromkeys("LFkvxyPTYaoeESbdghnpqu$0123456789{}", 0.64),
    **dict.fromkeys("KAVBRXZCUHNDGOQ&", 0.79),
    **dict.fromkeys("wM#+<=>^~−×±", 0.86),
    **dict.fromkeys("%mW@…", 1.0),
}
BOLD = 1.15


def width_of(text: str, size: Number, *, bold: bool = False) -> float:
    """About the width of a text, rather too large: fonts differ from one machine to the next."""
    em = 0.0
    for letter in text:
        if letter in EMS:
            em += EMS[letter]
        elif unicodedata.east_asian_width(letter) in "WF":
            em += 1.05
        else:
            em += 0.66 if letter.islower() else 0.85
    return em * size * (BOLD if bold else 1)


def fit(text: str, room: Number, size: Number, *, bold: bool = False) -> str:
    """The text, or as much of its beginning as there is room for, and an ellipsis."""
    if width_of(text, size, bold=bold) <= room:
        return text
    kept = text
    while kept and width_of(f"{kept}…", size, bold=bold) > room:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def wrap(text: str, room: Number, size: Number, *, lines: int = 2, bold: bool = False) -> Sequence[str]:
    """The text broken after spaces, hyphens, slashes and dots; what does not fit the last line is cut."""
    pieces = re.findall(r"[^\s/_.-]*[\s/_.-]+|[^\s/_.-]+", text)
    wrapped = [""]
    for number, piece in enumerate(pieces):
        if width_of((wrapped[-1] + piece).rstrip(), size, bold=bold) <= room or not wrapped[-1]:
            wrapped[-1] += piece
        elif len(wrapped) < lines:
            wrapped.append(piece)
        else:
            wrapped[-1] += "".join(pieces[number:])
            break
    return [fit(line.rstrip(), room, size, bold=bold) for line in wrapped]

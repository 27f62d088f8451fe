"""Pictures of maps and episodes: pixels for the environment, SVG for a page, a GIF that plays the episode."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from nbsr_core._extras import extra
from nbsr_core.domains.navigation.world import REACH, Cell

CELL = 16
LEAST_SIDE = 320  # pixels of an animation
COLOURS = {
    Cell.FLOOR: "#ffffff",
    Cell.WALL: "#5b6470",
    Cell.OBSTACLE: "#b08968",
    Cell.CUE_LEFT: "#2a9d8f",
    Cell.CUE_RIGHT: "#457b9d",
    Cell.GOAL: "#f2c14e",
    Cell.TRAP: "#d9d0b4",
    Cell.ALIEN: "#d62ad0",
}
AGENT, TRAIL, HALT = "#1d3557", "#8fb3d9", "#d00000"


def map_pixels(
    cells: Int[Tensor, "side side"], trail: Sequence[tuple[int, int]], *, halted: bool = False
) -> NDArray[np.uint8]:
    """The map from above, [side*16, side*16, 3]: where the agent has been, where it is, and what it can see."""
    side = cells.shape[0]
    picture = np.zeros((side, side, 3), np.uint8)
    for kind, colour in COLOURS.items():
        picture[cells.numpy() == kind] = _rgb(colour)
    row, column = trail[-1]
    hidden = np.ones((side, side), bool)
    hidden[max(0, row - REACH) : row + REACH + 1, max(0, column - REACH) : column + REACH + 1] = False
    picture[hidden] = (picture[hidden] * 0.75).astype(np.uint8)
    large = picture.repeat(CELL, 0).repeat(CELL, 1)
    for place in trail[:-1]:
        _dot(large, place, TRAIL, 5)
    _dot(large, trail[-1], HALT if halted else AGENT, 2)
    return large


def _dot(picture: NDArray[np.uint8], place: tuple[int, int], colour: str, margin: int) -> None:
    row, column = place[0] * CELL, place[1] * CELL
    picture[row + margin : row + CELL - margin, column + margin : column + CELL - margin] = _rgb(colour)


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def animation(frames: Sequence[NDArray[np.uint8]], milliseconds: int = 350) -> bytes:
    """A GIF that plays the pictures and rests on the last, enlarged by a whole factor where they are small."""
    with extra("navigation"):
        from PIL import Image
    factor = max(1, -(-LEAST_SIDE // min(frames[0].shape[:2])))
    images = [Image.fromarray(frame.repeat(factor, 0).repeat(factor, 1)).quantize(32) for frame in frames]
    file = BytesIO()
    durations = [milliseconds] * (len(images) - 1) + [4 * milliseconds]
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return file.getvalue()


def view_pixels(frame: Float[Tensor, "C view view"], *, halted: bool = False) -> NDArray[np.uint8]:
    """A keyframe as the agent sees it: what is not floor is wall, then cues, the agent, and the alien over all."""
    floor, agent, left, right, alien = (channel.numpy() > 0.5 for channel in frame)
    picture = np.full((*floor.shape, 3), _rgb(COLOURS[Cell.WALL]), np.uint8)
    layers = [(floor, COLOURS[Cell.FLOOR]), (left, COLOURS[Cell.CUE_LEFT]), (right, COLOURS[Cell.CUE_RIGHT])]
    for there, colour in [*layers, (agent, HALT if halted else AGENT), (alien, COLOURS[Cell.ALIEN])]:
        picture[there] = _rgb(colour)
    return picture.repeat(CELL, 0).repeat(CELL, 1)


def episode_svg(pictures: Sequence[NDArray[np.uint8]], lines: Sequence[str]) -> str:
    """Pictures side by side, and the words of the episode under them; nothing to fetch, nothing to run."""
    with extra("navigation"):
        from PIL import Image
    gap, scale, line_height = 12, 2, 16
    parts, x, deepest = [], gap, 0
    for picture in pictures:
        file = BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        height, width = scale * picture.shape[0], scale * picture.shape[1]
        source = "data:image/png;base64," + b64encode(file.getvalue()).decode()
        parts.append(
            f'<image x="{x}" y="{gap}" width="{width}" height="{height}" href="{source}" '
            'style="image-rendering:pixelated"/>'
        )
        x, deepest = x + width + gap, max(deepest, height)
    top = deepest + 3 * gap
    for number, line in enumerate(lines):
        parts.append(f'<text x="{gap}" y="{top + number * line_height}" xml:space="preserve">{escape(line)}</text>')
    width, height = max(x, 8 * max(map(len, lines)) + 2 * gap), top + len(lines) * line_height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="monospace" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )

"""What stands in a picture of a walk, for tests to read."""

from __future__ import annotations

from xml.etree import ElementTree

from nbsr_core.plots.svg import width_of


def texts(svg: str) -> list[tuple[str, float, float, float]]:
    """All texts of a picture with their left edge, right edge and baseline, as far as they can be estimated."""
    found = []
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        title = element.find("{http://www.w3.org/2000/svg}title")
        text = (element.text or "") + ((title.tail or "") if title is not None else "")
        width = width_of(text, float(element.attrib["font-size"]), bold=element.get("font-weight") == "bold")
        left = (
            float(element.attrib["x"]) - {"start": 0, "middle": width / 2, "end": width}[element.attrib["text-anchor"]]
        )
        found.append((text, left, left + width, float(element.attrib["y"])))
    return found

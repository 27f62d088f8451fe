"""The picture of a prompt: well formed whatever the words, with all that was said in it."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from nbsr_core.domains.language.picture import draw_prompt

WORDS = st.text(min_size=1, max_size=8)
SHARES = st.floats(0, 1)


@st.composite
def traces(draw: st.DrawFn) -> dict[str, Any]:
    """What is known of a prompt, of a walk or of a softmax."""
    words = draw(st.lists(WORDS, min_size=1, max_size=5))
    data: dict[str, Any] = {"prompt": words, "top": [{"token": word, "belief": draw(SHARES)} for word in words]}
    if draw(st.booleans()):
        nodes = draw(st.lists(WORDS, min_size=2, max_size=4, unique=True))
        data |= {
            "read": [{"token": word, "closeness": draw(SHARES), "depth": draw(st.integers(1, 2))} for word in words],
            "routers": [{"chosen": nodes[0], "probabilities": {node: draw(SHARES) for node in nodes}}],
            "leaf_evidence": {node: draw(st.floats(0, 1e9)) for node in nodes},
            "vacuity": draw(SHARES),
            "abstains": draw(st.booleans()),
        }
    return data


@given(traces())
def test_it_is_well_formed_and_nothing_sticks_out(data: dict[str, Any]) -> None:
    root = ElementTree.fromstring(draw_prompt(data))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.get("x", 0)) + float(box.attrib["width"]) <= width
        assert float(box.get("y", 0)) + float(box.attrib["height"]) <= height
    assert all(float(text.attrib["y"]) < height for text in root.iter("{http://www.w3.org/2000/svg}text"))


def test_who_was_chosen_is_marked_and_an_abstention_said() -> None:
    data = {
        "prompt": ["<bos>", "a & b"],
        "top": [{"token": "x", "belief": 0.25}],
        "read": [{"token": "<bos>", "closeness": 0.5, "depth": 1}],
        "routers": [{"chosen": "left", "probabilities": {"left": 0.9, "right": 0.1}}],
        "leaf_evidence": {"left": 3.0},
        "vacuity": 0.75,
        "abstains": True,
    }
    said = "\n".join(ElementTree.fromstring(draw_prompt(data)).itertext())
    for words in ("<bos> a & b ...", "vacuity 0.75: abstains", "◆ left", "0.90", "0.50, d1", "25.0%"):
        assert words in said

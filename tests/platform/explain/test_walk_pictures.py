"""Pictures of made-up walks: whatever the names and the graph, they are well formed and nothing overlaps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from nbsr_platform.explain.explanation import Explanation
from nbsr_platform.explain.walk_svg import WIDTH, draw_walk
from walk_pictures import texts

from nbsr_core.graph.decision_graph import DecisionGraph
from nbsr_core.plots.svg import fit, width_of, wrap
from nbsr_core.trace.visit import Amount, Entry, Feature, Visit, nats


def made_up(graph: DecisionGraph, choice: int, exit_depth: int, names: list[str], **changes: Any) -> Explanation:
    """An explanation of a walk that always takes the same child."""
    visits: list[Visit] = []
    node = graph.root
    while node.children:
        children = [graph.nodes[child] for child in node.children]
        node = children[choice % len(children)]
        depth = len(visits) + 1
        visits.append(
            Visit(
                depth=depth,
                node=node.name,
                route_probability=1 / len(children),
                alternatives={child.name: 1 / len(children) for child in children},
                evidence=tuple(Amount(name, 10.0 * depth) for name in names),
                belief=tuple(Amount(name, 1 / len(names)) for name in names),
                ledger=tuple(Entry(name, 1.0, 1e4 * depth, 1.0 + 1e4 * depth, 0.25, 1.0) for name in names),
                precision=1e9,
                temperature=0.4 if depth % 2 else None,
                belief_shift=1.5,
                entropy=-100.0 - depth,
                vacuity=0.5,
                measures=f"belief shift 1.5 nats, vacuity 0.5, entropy {nats(-4.5e8 * depth, len(names))}",
                consulted=depth <= exit_depth,
                features=(),
            )
        )
    parts: dict[str, Any] = {
        "trial": "0" * 16,
        "name": "nbsr seed 0",
        "study": names[0],
        "source": names[0],
        "synthetic": True,
        "sample": 4,
        "test_samples": 10,
        "true_class": names[0],
        "answer": names[-1],
        "confidence": 0.5,
        "prediction": names[-1],
        "eta": -101.5,
        "exit_depth": min(exit_depth, len(visits)),
        "max_vacuity": 0.4,
        "abstained": False,
        "density": 0.25,
        "prior_entropy": -99.0,
        "prior_weight": 4.0,
        "num_classes": len(names),
        "visits": tuple(visits),
        "features": tuple(Feature(name, 0.5, None, (-1) ** i * 2.0) for i, name in enumerate(names)),
        "inputs": "inputs",
        "notes": ("a note",),
        "graph": graph,
    }
    return Explanation(**{**parts, **changes})


NAMES = st.lists(st.text(min_size=1, max_size=60), min_size=2, max_size=4, unique=True)


@settings(max_examples=60)
@given(
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    choice=st.integers(0, 50),
    exit_depth=st.integers(1, 4),
    names=NAMES,
    abstained=st.booleans(),
)
def test_any_walk_gives_a_well_formed_picture_without_overlaps(
    widths: list[int], choice: int, exit_depth: int, names: list[str], abstained: bool
) -> None:
    levels = [
        ["root"],
        *([f"{number}-Expert of level/{level}" for number in range(n)] for level, n in enumerate(widths)),
    ]
    edges = [(up, down) for above, below in pairwise(levels) for up in above for down in below]
    told = made_up(DecisionGraph.from_edges(edges), choice, exit_depth, names, abstained=abstained)
    rows: dict[float, list[tuple[float, float, str]]] = {}
    for text, left, right, baseline in texts(draw_walk(told)):
        assert left >= 0, text
        assert right <= WIDTH, text
        rows.setdefault(baseline, []).append((left, right, text))
    for row in rows.values():
        row.sort()
        for (_, end, before), (start, _, after) in pairwise(row):
            assert end <= start + 1, (before, after)


def test_of_a_large_graph_only_the_neighbourhood_is_drawn() -> None:
    svg = draw_walk(made_up(DecisionGraph.uniform(2, 30), 17, 2, ["a", "b"]))
    shown = [text for text, *_ in texts(svg)]
    assert "… 23 more" in shown  # 7 of 30
    assert "… 893 more" in shown  # 7 of 900
    assert {"18", "18.18"} <= set(shown)
    assert svg.count("<circle") < 30
    small = draw_walk(made_up(DecisionGraph.uniform(3, 2), 1, 3, ["a", "b"]))
    assert "more" not in small
    assert {"1.2.1", "2.2.2"} <= {text for text, *_ in texts(small)}


def test_hostile_names_stay_text() -> None:
    names = ['<script>alert("1")</script>', "a & b\x00\x1b ]]>", "' onload='x"]
    graph = DecisionGraph.from_edges([("root", names[0]), ("root", names[2])])
    svg = draw_walk(made_up(graph, 0, 1, names))
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert tags == {"svg", "rect", "line", "circle", "path", "text", "title"}


def test_abstention_and_exit_are_marked() -> None:
    graph = DecisionGraph.chain(["Mid", "Leaf"])
    early = [text for text, *_ in texts(draw_walk(made_up(graph, 0, 1, ["a", "b"])))]
    assert any(text.startswith("Exits here: b, wrong (entropy below η, off the chart") for text in early)
    assert any("not asked after the exit" in text for text in early)
    vague = [text for text, *_ in texts(draw_walk(made_up(graph, 0, 2, ["a", "b"], abstained=True)))]
    assert "The walk ends here and abstains: vacuity 0.5 > 0.4" in vague
    nothing = [text for text, *_ in texts(draw_walk(made_up(graph, 0, 2, ["a", "b"], features=())))]
    assert any(text.startswith("nothing: small changes of the inputs") for text in nothing)


@given(text=st.text(max_size=80), room=st.floats(20, 400), size=st.floats(8, 20))
def test_fitted_and_wrapped_text_keeps_to_its_room(text: str, room: float, size: float) -> None:
    assert width_of(fit(text, room, size), size) <= room
    lines = wrap(text, room, size)
    assert 1 <= len(lines) <= 2
    assert all(width_of(line, size) <= room for line in lines)


def test_no_text_is_wider_than_reckoned_in_the_widest_font() -> None:
    from pathlib import Path

    import matplotlib
    from PIL import ImageFont

    fonts = Path(matplotlib.__file__).parent / "mpl-data" / "fonts" / "ttf"
    for file, bold in (("DejaVuSans.ttf", False), ("DejaVuSans-Bold.ttf", True)):
        font = ImageFont.truetype(str(fonts / file), 100)
        for text in (
            "Exits here (entropy below η, −135 (−3.3 nats per class)): Peptic ulcer disease",
            "+1.12e+05 = 95.9%",
        ):
            assert font.getlength(text) <= width_of(text, 100, bold=bold)

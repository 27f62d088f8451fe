"""An explained sample as a picture: the decision graph with the walk lit up, and what every expert on it said.

Level by level from the root down: on the left the graph, on the right a card for each visited expert. Nothing is said
by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbsr_core.plots.svg import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LINE,
    MIST,
    ORANGE,
    PAPER,
    PURPLE,
    RED,
    Picture,
    Point,
    width_of,
    wrap,
)
from nbsr_core.trace.visit import Visit, counts, nats
from nbsr_platform.explain.explanation import Explanation

WIDTH, MARGIN = 1120.0, 24.0
GRAPH_LEFT, GRAPH_WIDTH = MARGIN, 524.0
CARD_LEFT, CARD_WIDTH = 572.0, WIDTH - MARGIN - 572.0
ROOT_ROW, ROW, CARD_HEIGHT, STRIP = 80.0, 200.0, 164.0, 25.0
# Where nodes stand in their row: the root at its top, others below their routes and above their names.
ROOT_Y, NODE_Y = 26.0, 66.0
NAME, OTHER_NAME = 12.0, 10.5
PORTRAIT = 96.0
# A graph with a level of more nodes than this is not drawn in full, only the neighbourhood of the walk.
WIDEST_LEVEL, SHOWN_CHILDREN = 8, 7


def draw_walk(explained: Explanation) -> str:
    """The picture of an explanation, as the text of an SVG file."""
    picture = Picture(WIDTH)
    top = _header(picture, explained)
    tops = [top + ROOT_ROW + ROW * level for level in range(len(explained.visits))]
    _graph(picture, explained, [top + ROOT_Y, *(y + NODE_Y for y in tops)])
    _prior(picture, explained, top + ROOT_Y)
    for visit, y in zip(explained.visits, tops, strict=True):
        _card(picture, explained, visit, y)
    bottom = _features(picture, explained, tops[-1] + ROW + 20)
    bottom = _legend(picture, explained, bottom + 10)
    return picture.document(
        bottom, f"The walk of sample {explained.sample}, of class {explained.true_class}: model {explained.verdict}"
    )


def number(value: float, digits: int = 3, sign: str = "") -> str:
    """A number with a real minus."""
    return f"{value:{sign}.{digits}g}".replace("-", "−")


def _header(picture: Picture, explained: Explanation) -> float:
    """Title, origin and notes; returns where the walk begins."""
    room = WIDTH - 2 * MARGIN
    if explained.portrait is not None:
        picture.image((WIDTH - MARGIN - PORTRAIT, 12), PORTRAIT, explained.portrait)
        room -= PORTRAIT + 3 * MARGIN  # fonts may be wider than reckoned
    picture.text((MARGIN, 38), f"Sample {explained.sample}: the model {explained.verdict}", 20, bold=True, room=room)
    truth = f"True class: {explained.true_class}"
    picture.diamond((MARGIN + 4, 58), GREEN)
    picture.text((MARGIN + 14, 62), truth, 13, bold=True, room=room)
    source = f"{explained.source}{', synthetic' if explained.synthetic else ''}"
    origin = f"{explained.study}: {explained.name} (trial {explained.trial}) on {source}"
    picture.text((MARGIN, 82), origin, 12, GREY, room=room)
    y = 82.0
    if explained.density is not None:
        y += 18
        said = f"closeness to the training data {explained.density:.3g}; all evidence is scaled by it"
        picture.text((MARGIN, y), said, 12, GREY, room=room)
    for note in explained.notes:
        y += 18
        picture.text((MARGIN, y), f"Note: {note}", 12, RED, bold=True, room=room)
    if explained.portrait is not None:
        y = max(y, PORTRAIT + 8)
    picture.line((MARGIN, y + 14), (WIDTH - MARGIN, y + 14), LINE)
    return y + 22


@dataclass(frozen=True)
class _DrawnLevel:
    """The drawn nodes of one level, side by side; `hidden` others share the last slot."""

    nodes: Sequence[int]
    hidden: int
    y: float

    @property
    def slot(self) -> float:
        return GRAPH_WIDTH / (len(self.nodes) + bool(self.hidden))

    def place(self, node: int) -> Point:
        return (GRAPH_LEFT + self.slot * (self.nodes.index(node) + 0.5), self.y)

    def label(self, name: str, visited: bool) -> Sequence[str]:
        return wrap(name, self.slot - 6, NAME if visited else OTHER_NAME, bold=visited)

    def foot(self, node: int, name: str, visited: bool) -> Point:
        """Where edges leave a node: below its name."""
        x, y = self.place(node)
        lines = len(self.label(name, visited))
        return (x, y + (26 + (NAME + 2) * lines if visited else 15 + (OTHER_NAME + 2) * lines))


def _graph(picture: Picture, explained: Explanation, ys: Sequence[float]) -> None:
    """Edges first, so that nodes and labels stand on top of them."""
    nodes = explained.graph.nodes
    path = [0, *(explained.graph.index(visit.node) for visit in explained.visits)]
    rows = [_DrawnLevel(drawn, hidden, y) for (drawn, hidden), y in zip(_drawn(explained, path), ys, strict=True)]
    for above, row, before, visit in zip(rows, rows[1:], path, explained.visits, strict=False):
        for parent in sorted(above.nodes, key=lambda node: node == before):
            start = above.foot(parent, nodes[parent].name, parent == before)
            for child in sorted(nodes[parent].children, key=lambda child: nodes[child].name == visit.node):
                if child in row.nodes and parent == before:
                    _route(picture, start, row.place(child), visit, nodes[child].name)
                elif child in row.nodes:
                    picture.line(start, row.place(child), LINE)
    for level, (row, visited) in enumerate(zip(rows, path, strict=True)):
        for node in row.nodes:
            _node(picture, explained, row, node, level, node == visited)
        if row.hidden:
            at = (GRAPH_LEFT + GRAPH_WIDTH - row.slot / 2, row.y + 4)
            picture.text(at, f"… {row.hidden} more", 11, GREY, anchor="middle")


def _drawn(explained: Explanation, path: Sequence[int]) -> list[tuple[list[int], int]]:
    """Which nodes of each level are drawn, and how many are not: all of a small graph, else the walk's siblings."""
    graph = explained.graph
    levels = [list(level) for level in graph.levels[: len(path)]]
    if all(len(level) <= WIDEST_LEVEL for level in levels):
        return [(level, 0) for level in levels]
    drawn = [[0]]
    for before, node, visit in zip(path, path[1:], explained.visits, strict=False):
        others = [child for child in graph.nodes[before].children if child != node]
        others.sort(key=lambda child: -visit.alternatives[graph.nodes[child].name])
        drawn.append(sorted([node, *others[: SHOWN_CHILDREN - 1]]))
    return [(row, len(level) - len(row)) for row, level in zip(drawn, levels, strict=True)]


def _route(picture: Picture, start: Point, end: Point, visit: Visit, child: str) -> None:
    probability, lit = visit.alternatives[child], child == visit.node
    width = (3 if lit else 1) + 2 * probability
    picture.line(start, end, BLUE if lit else MIST, width, dashed=lit and not visit.consulted)
    # Nearer to the child, where the edges of a fan are further apart.
    at = (start[0] + 0.6 * (end[0] - start[0]), start[1] + 0.6 * (end[1] - start[1]) + 4)
    shown = "<0.01" if probability < 0.005 else f"{probability:.2f}"
    picture.text(at, shown, 12 if lit else 10, INK if lit else GREY, anchor="middle", bold=lit, halo=True)


def _node(picture: Picture, explained: Explanation, row: _DrawnLevel, node: int, level: int, visited: bool) -> None:
    name, (x, y) = explained.graph.nodes[node].name, row.place(node)
    asked = level <= explained.exit_depth
    if visited and level == explained.exit_depth:
        picture.dot((x, y), 20, PAPER, PURPLE if explained.abstained else RED, 3, name)
    if visited:
        picture.dot((x, y), 14, BLUE if asked else PAPER, BLUE, 2, name)
        picture.text((x, y + 4.5), str(level), 12, PAPER if asked else BLUE, anchor="middle", bold=True)
    else:
        picture.dot((x, y), 7, "#eef1f4", "#8a94a3", 1, name)
    size = NAME if visited else OTHER_NAME
    for line, text in enumerate(row.label(name, visited)):
        at = (x, y + (34 if visited else 23) + (size + 2) * line)
        picture.text(at, text, size, INK if visited else GREY, anchor="middle", bold=visited, halo=True)


def _prior(picture: Picture, explained: Explanation, y: float) -> None:
    said = f"Before any evidence: a prior over {explained.num_classes} classes"
    picture.text((CARD_LEFT + 16, y - 4), said, 13, bold=True, room=CARD_WIDTH - 30)
    entropy = nats(explained.prior_entropy, explained.num_classes)
    measures = f"{counts(explained.prior_weight)} pseudo-counts, vacuity 1, entropy {entropy}"
    picture.text((CARD_LEFT + 16, y + 14), measures, 12, GREY, room=CARD_WIDTH - 30)


def _card(picture: Picture, explained: Explanation, visit: Visit, top: float) -> None:
    """What one expert said, and the belief after it."""
    stops = visit.depth == explained.exit_depth
    colour = (PURPLE if explained.abstained else RED) if stops else BLUE if visit.consulted else MIST
    left, y, right = CARD_LEFT + 16, top + 6, CARD_LEFT + CARD_WIDTH - 14
    picture.box((CARD_LEFT, y), CARD_WIDTH, CARD_HEIGHT + STRIP * stops, "#fafbfc", edge=LINE, corner=6)
    picture.box((CARD_LEFT, y), 5, CARD_HEIGHT + STRIP * stops, colour, corner=2)
    route = f"route p = {visit.route_probability:.3f}"
    if not visit.consulted:
        route += ", not asked after the exit"
    picture.text((right, y + 22), route, 12, GREY, anchor="end")
    picture.text(
        (left, y + 22), f"{visit.depth}. {visit.node}", 14, bold=True, room=right - left - width_of(route, 12) - 12
    )
    picture.text((left, y + 41), visit.measures, 11, GREY, room=right - left)
    _ledger(picture, (left, y + 61), right - left, visit, explained.true_class)
    if stops:
        picture.box(
            (CARD_LEFT + 5, y + CARD_HEIGHT), CARD_WIDTH - 6, STRIP - 1, "#f7edf3" if explained.abstained else "#fcefe6"
        )
        picture.text((left, y + CARD_HEIGHT + 17), _stop(explained, visit), 12, bold=True, room=right - left)


def _stop(explained: Explanation, visit: Visit) -> str:
    where = "Exits here" if explained.exits_early else "The walk ends here"
    why = f" (entropy below η, {explained.threshold})" if explained.exits_early else ""
    if explained.abstained:
        return f"{where} and abstains: vacuity {visit.vacuity:.3g} > {explained.max_vacuity:g}{why}"
    return f"{where}: {explained.answer}, {'right' if explained.answer == explained.true_class else 'wrong'}{why}"


def _ledger(picture: Picture, at: Point, room: float, visit: Visit, true: str) -> None:
    """Class by class: the belief before, what was added, the sum, its share, and what calibration makes of it."""
    names, calibrated = 118.0, visit.temperature is not None
    ends = [at[0] + names + end for end in (52.0, 122.0, 186.0, 252.0)]
    heads = visit.ledger_heads
    bar = ends[-1] + 10.0
    for head, end in zip(heads, ends, strict=False):
        picture.text((end, at[1]), head, 10, GREY, anchor="end")
    if calibrated:
        picture.text((bar, at[1]), heads[-1], 10, GREY)
    for row, entry in enumerate(visit.ledger):
        x, y = at[0], at[1] + 15.5 * (row + 1)
        known = entry.name == true
        if known:
            picture.diamond((x + 4, y - 4), GREEN)
        indent = 12 if known else 0
        picture.text((x + indent, y), entry.name, 11, bold=known, room=names - indent - 4)
        for cell, end in zip(visit.ledger_cells(entry), ends, strict=False):
            picture.text((end, y), cell, 10, anchor="end")
        width = max((at[0] + room - bar - 46) * entry.calibrated, 1)
        picture.box((bar, y - 9), width, 10, BLUE, corner=1)
        if calibrated:
            picture.text((bar + width + 4, y), f"{entry.calibrated:.1%}", 10)


def _features(picture: Picture, explained: Explanation, top: float) -> float:
    picture.line((MARGIN, top - 14), (WIDTH - MARGIN, top - 14), LINE)
    title = f"What drove the belief in {explained.prediction} ({explained.method})"
    picture.text((MARGIN, top + 8), title, 13, bold=True, room=WIDTH - 2 * MARGIN)
    if not explained.features:
        picture.text((MARGIN, top + 30), explained.no_features, 12, GREY)
        return top + 40
    high = max(0.0, *(feature.attribution for feature in explained.features))
    low = -min(0.0, *(feature.attribution for feature in explained.features))
    names, values = 300.0, 76.0
    scale = (WIDTH - 2 * MARGIN - names - values * (1 + bool(low))) / (high + low)
    zero = MARGIN + names + (values + low * scale if low else 0)
    y = top + 30
    for feature in explained.features:
        name = f"{feature.name} ({feature.reading})"
        picture.text((MARGIN + names - 10, y + 4), name, 12, anchor="end", room=names - 10)
        width = scale * abs(feature.attribution)
        forward = feature.attribution >= 0
        picture.box((zero if forward else zero - width, y - 6), width, 12, BLUE if forward else ORANGE, corner=1)
        end = zero + width + 5 if forward else zero - width - 5
        anchor = "start" if forward else "end"
        picture.text((end, y + 4), number(feature.attribution, sign="+"), 11, anchor=anchor)
        y += 20
    picture.line((zero, top + 20), (zero, y - 8), GREY)
    return y


def _legend(picture: Picture, explained: Explanation, top: float) -> float:
    y, x = top + 12, MARGIN
    picture.line((MARGIN, top - 8), (WIDTH - MARGIN, top - 8), LINE)
    picture.dot((x + 8, y), 7, BLUE, BLUE)
    picture.text((x + 22, y + 4), "expert on the walk", 11, GREY)
    picture.dot((x + 158, y), 6, "#eef1f4", "#8a94a3")
    picture.text((x + 170, y + 4), "not visited", 11, GREY)
    picture.dot((x + 262, y), 8, PAPER, PURPLE if explained.abstained else RED, 3)
    picture.text((x + 276, y + 4), "where it stops", 11, GREY)
    picture.line((x + 374, y), (x + 400, y), BLUE, 3, dashed=True)
    picture.text((x + 408, y + 4), "not asked after the exit", 11, GREY)
    picture.diamond((x + 560, y), GREEN)
    picture.text((x + 570, y + 4), "true class", 11, GREY)
    picture.text((x + 650, y + 4), "numbers on edges: route probabilities", 11, GREY)
    if any(visit.temperature is not None for visit in explained.visits):
        y += 18
        said = (
            "before + evidence = alpha; alpha / sum = p, the expected probability; T: calibrated with this temperature"
        )
        picture.text((x, y + 4), said, 11, GREY, room=WIDTH - 2 * MARGIN)
    return y + 22

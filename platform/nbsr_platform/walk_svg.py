"""An explained sample as a picture: the decision graph with the walk lit up, and what every expert on it said.

Level by level from the root down: on the left the graph, on the right a card for each visited expert. Nothing is said
by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from nbsr_platform.explanation import Amount, Explanation, Visit
from nbsr_platform.svg import (
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

WIDTH, MARGIN = 1120.0, 24.0
GRAPH_LEFT, GRAPH_RIGHT = MARGIN, 548.0
CARD_LEFT, CARD_WIDTH = 572.0, WIDTH - MARGIN - 572.0
ROOT_ROW, ROW, CARD_HEIGHT, STRIP = 96.0, 186.0, 146.0, 25.0
# Where nodes stand in their row: below their routes, above their names.
NODE_Y = 66.0
# A graph with a level of more nodes than this is not drawn in full, only the neighbourhood of the walk.
WIDEST_LEVEL, SHOWN_CHILDREN = 8, 7


def draw_walk(told: Explanation) -> str:
    """The picture of an explanation, as the text of an SVG file."""
    picture = Picture(WIDTH)
    top = _header(picture, told)
    tops = [top, *(top + ROOT_ROW + ROW * level for level in range(len(told.visits)))]
    _graph(picture, told, tops)
    _prior(picture, told, tops[0])
    for visit, y in zip(told.visits, tops[1:], strict=True):
        _card(picture, told, visit, y)
    bottom = _features(picture, told, tops[-1] + ROW + 20)
    bottom = _legend(picture, told, bottom + 10)
    return picture.document(
        bottom, f"The walk of sample {told.sample}, of class {told.true_class}: model {told.verdict}"
    )


def _header(picture: Picture, told: Explanation) -> float:
    """Title, origin and notes; returns where the walk begins."""
    room = WIDTH - 2 * MARGIN
    picture.text((MARGIN, 38), f"Sample {told.sample}: the model {told.verdict}", 20, bold=True, room=room)
    truth = f"True class: {told.true_class}"
    picture.diamond((MARGIN + 4, 58), GREEN)
    picture.text((MARGIN + 14, 62), truth, 13, bold=True, room=room)
    origin = f"{told.study}: {told.name} (trial {told.trial}) on {told.source}{', synthetic' if told.synthetic else ''}"
    picture.text((MARGIN, 82), origin, 12, GREY, room=room)
    y = 82.0
    notes = list(told.notes)
    if told.density is not None:
        notes.append(f"closeness to the training data {told.density:.3g}; all evidence is scaled by it")
    for note in notes:
        y += 18
        picture.text((MARGIN, y), f"Note: {note}", 12, RED, room=room)
    picture.line((MARGIN, y + 14), (WIDTH - MARGIN, y + 14), LINE)
    return y + 22


def _graph(picture: Picture, told: Explanation, tops: Sequence[float]) -> None:
    """Edges first, so that nodes and labels stand on top of them."""
    graph = told.graph
    path = [0, *(graph.index(visit.node) for visit in told.visits)]
    rows, hidden = _rows(told, path)
    places = [_places(nodes, hidden[level], tops[level]) for level, nodes in enumerate(rows)]
    for level, row in enumerate(places[1:], start=1):
        above, visit = places[level - 1], told.visits[level - 1]
        for parent, start in above.items():
            if parent != path[level - 1]:
                for child in graph.nodes[parent].children:
                    if child in row:
                        picture.line(start, row[child], LINE)
        start = above[path[level - 1]]
        for child in sorted(graph.nodes[path[level - 1]].children, key=lambda child: child == path[level]):
            if child in row:
                _route(picture, start, row[child], visit, graph.nodes[child].name)
    for level, row in enumerate(places):
        slot = (GRAPH_RIGHT - GRAPH_LEFT) / (len(row) + bool(hidden[level]))
        for node, at in row.items():
            _node(picture, told, graph.nodes[node].name, at, level, node == path[level], slot - 6)
        if hidden[level]:
            picture.text(
                (GRAPH_RIGHT - slot / 2, tops[level] + NODE_Y + 4), f"… {hidden[level]} more", 11, GREY, anchor="middle"
            )


def _rows(told: Explanation, path: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Which nodes of each level are drawn, and how many are not: all of a small graph, else the walk's siblings."""
    graph = told.graph
    levels = [list(level) for level in graph.levels[: len(path)]]
    if all(len(level) <= WIDEST_LEVEL for level in levels):
        return levels, [0] * len(levels)
    rows = [[0]]
    for before, node, visit in zip(path, path[1:], told.visits, strict=False):
        others = [child for child in graph.nodes[before].children if child != node]
        others.sort(key=lambda child: -visit.alternatives[graph.nodes[child].name])
        rows.append(sorted([node, *others[: SHOWN_CHILDREN - 1]]))
    return rows, [len(level) - len(row) for level, row in zip(levels, rows, strict=True)]


def _places(nodes: Sequence[int], hidden: int, top: float) -> dict[int, Point]:
    slot = (GRAPH_RIGHT - GRAPH_LEFT) / (len(nodes) + bool(hidden))
    return {node: (GRAPH_LEFT + slot * (i + 0.5), top + NODE_Y) for i, node in enumerate(nodes)}


def _route(picture: Picture, start: Point, end: Point, visit: Visit, child: str) -> None:
    probability, lit = visit.alternatives[child], child == visit.node
    colour = BLUE if lit else MIST
    picture.line(start, end, colour, (3 if lit else 1) + 2 * probability, dashed=lit and not visit.consulted)
    # Close to the child, where the edges of a fan are furthest apart.
    share = 0.66
    at = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]) + 4)
    shown = "<0.01" if probability < 0.005 else f"{probability:.2f}"
    picture.text(at, shown, 12 if lit else 10, INK if lit else GREY, anchor="middle", bold=lit, halo=True)


def _node(picture: Picture, told: Explanation, name: str, at: Point, level: int, visited: bool, room: float) -> None:
    asked = visited and level <= told.exit_depth
    if visited and level == told.exit_depth:
        picture.dot(at, 20, PAPER, PURPLE if told.abstained else RED, 3, name)
    if visited:
        picture.dot(at, 14, BLUE if asked else PAPER, BLUE, 2, name)
        picture.text((at[0], at[1] + 4.5), str(level), 12, PAPER if asked else BLUE, anchor="middle", bold=True)
    else:
        picture.dot(at, 7, "#eef1f4", "#8a94a3", 1, name)
    size = 12 if visited else 10.5
    y = at[1] + (36 if visited else 24)
    for line in wrap(name, room, size, bold=visited):
        picture.text((at[0], y), line, size, INK if visited else GREY, anchor="middle", bold=visited, halo=True)
        y += size + 2


def _prior(picture: Picture, told: Explanation, top: float) -> None:
    y = top + NODE_Y
    said = f"Before any evidence: a prior over {told.num_classes} classes"
    picture.text((CARD_LEFT + 16, y - 4), said, 13, bold=True, room=CARD_WIDTH - 30)
    picture.text((CARD_LEFT + 16, y + 14), f"entropy {told.prior_entropy:.4g}, vacuity 1", 12, GREY)


def _card(picture: Picture, told: Explanation, visit: Visit, top: float) -> None:
    """What one expert said, and the belief after it."""
    stops = visit.depth == told.exit_depth
    colour = (PURPLE if told.abstained else RED) if stops else BLUE if visit.consulted else MIST
    left, y, right = CARD_LEFT + 16, top + 6, CARD_LEFT + CARD_WIDTH - 14
    picture.box((CARD_LEFT, y), CARD_WIDTH, CARD_HEIGHT + STRIP * stops, "#fafbfc", edge=LINE, corner=6)
    picture.box((CARD_LEFT, y), 5, CARD_HEIGHT + STRIP * stops, colour, corner=2)
    route = f"route p = {visit.route_probability:.3f}"
    if not visit.consulted:
        route += ", not asked after the exit"
    picture.text((right, y + 22), route, 12, GREY, anchor="end")
    picture.text(
        (left, y + 22), f"{visit.depth}  {visit.node}", 14, bold=True, room=right - left - width_of(route, 12) - 12
    )
    measures = f"belief shift {visit.belief_shift:.3g} nats, entropy {visit.entropy:.4g}, vacuity {visit.vacuity:.3g}"
    picture.text((left, y + 41), measures, 12, GREY)
    half = (right - left - 22) / 2
    strongest = max(said.value for each in told.visits for said in each.evidence)
    picture.text((left, y + 61), "evidence added", 10.5, GREY)
    _bars(picture, (left, y + 77), half, visit.evidence, strongest, ORANGE, "+{:.3g}", told.true_class)
    picture.text((left + half + 22, y + 61), "belief afterwards", 10.5, GREY)
    _bars(picture, (left + half + 22, y + 77), half, visit.belief, 1.0, BLUE, "{:.1%}", told.true_class)
    if stops:
        picture.box(
            (CARD_LEFT + 5, y + CARD_HEIGHT), CARD_WIDTH - 6, STRIP - 1, "#f7edf3" if told.abstained else "#fcefe6"
        )
        picture.text((left, y + CARD_HEIGHT + 17), _stop(told, visit), 12, bold=True, room=right - left)


def _stop(told: Explanation, visit: Visit) -> str:
    why = f"Exits here (entropy < η = {number(told.eta or 0.0)})" if told.exits_early else "The walk ends here"
    if told.abstained:
        return f"{why} and abstains: vacuity {visit.vacuity:.3g} > {told.max_vacuity:g}"
    return f"{why}: {told.answer}, {'right' if told.answer == told.true_class else 'wrong'}"


def _bars(
    picture: Picture,
    at: Point,
    room: float,
    amounts: Sequence[Amount],
    largest: float,
    colour: str,
    form: str,
    true: str,
) -> None:
    names, values = 118.0, 46.0
    for row, amount in enumerate(amounts):
        x, y = at[0], at[1] + 17.5 * row
        known = amount.name == true
        if known:
            picture.diamond((x + 4, y), GREEN)
        indent = 12 if known else 0
        picture.text((x + indent, y + 4), amount.name, 11, bold=known, room=names - indent - 4)
        width = (room - names - values) * amount.value / largest if largest > 0 else 0
        picture.box((x + names, y - 5), max(width, 1), 10, colour, corner=1)
        picture.text((x + names + max(width, 1) + 4, y + 4), form.format(amount.value), 10.5)


def _features(picture: Picture, told: Explanation, top: float) -> float:
    picture.line((MARGIN, top - 14), (WIDTH - MARGIN, top - 14), LINE)
    title = f"What drove the belief in {told.prediction} (input × gradient, all experts of the walk together)"
    picture.text((MARGIN, top + 8), title, 13, bold=True, room=WIDTH - 2 * MARGIN)
    if not told.features:
        picture.text((MARGIN, top + 30), "nothing: no input has an influence along this path", 12, GREY)
        return top + 40
    largest = max(abs(feature.attribution) for feature in told.features)
    negative = any(feature.attribution < 0 for feature in told.features)
    names, values = 300.0, 60.0
    room = WIDTH - 2 * MARGIN - names - values * (1 + negative)
    zero = MARGIN + names + (values + room / 2 if negative else 0)
    longest = (room / 2 if negative else room) * 0.9
    y = top + 30
    for feature in told.features:
        name = f"{feature.name} ({feature.reading})"
        picture.text((MARGIN + names - 10, y + 4), name, 12, anchor="end", room=names - 10)
        width = longest * abs(feature.attribution) / largest
        forward = feature.attribution >= 0
        picture.box((zero if forward else zero - width, y - 6), width, 12, BLUE if forward else ORANGE, corner=1)
        end = zero + width + 5 if forward else zero - width - 5
        value = f"{feature.attribution:+.3g}".replace("-", "−")
        picture.text((end, y + 4), value, 11, anchor="start" if forward else "end")
        y += 20
    picture.line((zero, top + 20), (zero, y - 8), GREY)
    return y


def _legend(picture: Picture, told: Explanation, top: float) -> float:
    y, x = top + 12, MARGIN
    picture.line((MARGIN, top - 8), (WIDTH - MARGIN, top - 8), LINE)
    picture.dot((x + 8, y), 7, BLUE, BLUE)
    picture.text((x + 22, y + 4), "expert on the walk", 11, GREY)
    picture.dot((x + 158, y), 6, "#eef1f4", "#8a94a3")
    picture.text((x + 170, y + 4), "not visited", 11, GREY)
    picture.dot((x + 262, y), 8, PAPER, PURPLE if told.abstained else RED, 3)
    picture.text((x + 276, y + 4), "where it stops", 11, GREY)
    picture.line((x + 374, y), (x + 400, y), BLUE, 3, dashed=True)
    picture.text((x + 408, y + 4), "not asked after the exit", 11, GREY)
    picture.diamond((x + 560, y), GREEN)
    picture.text((x + 570, y + 4), "true class", 11, GREY)
    picture.text((x + 650, y + 4), "numbers on edges: route probabilities", 11, GREY)
    return y + 22

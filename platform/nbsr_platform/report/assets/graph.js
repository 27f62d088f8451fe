// The decision graph, level by level from left to right, with the share of the walks on every node and edge.
// With `walk`, a list of node names, that path is lit and the rest stands back.

function drawGraph(place, graph, walk = null, exitDepth = null) {
  const levels = [];
  graph.nodes.forEach(([name, level, share], index) => (levels[level] ||= []).push({ name, share, index }));
  const columns = levels.filter(Boolean), tallest = Math.max(...columns.map((column) => column.length));
  const height = tallest * (tallest > 16 ? 26 : 34) + 34;
  const draw = () => {
    const first = Math.min(140, Math.max(36, place.clientWidth * 0.1));
    const width = Math.max(place.clientWidth, first + 130 * (columns.length - 1));
    const gap = (width - first - 18) / Math.max(1, columns.length - 1);
    const spots = [];
    columns.forEach((column, level) => column.forEach((node, index) => {
      spots[node.index] = { x: level ? 18 + first + gap * (level - 1) : 18, y: 22 + ((index + 0.5) * (height - 34)) / column.length, level, ...node };
    }));
    const root = svg("svg", { width, height, role: "img", "aria-label": walk ? `walk: ${walk.join(", ")}` : "decision graph with usage" });
    const lit = new Set(walk ? [graph.nodes[0]?.[0], ...walk] : []);
    const order = walk ? [graph.nodes[0]?.[0], ...walk] : [];
    const onPath = (from, to) => order.some((name, index) => name === from && order[index + 1] === to);
    const edges = graph.edges.map(([from, to, share]) => ({ from: spots[from], to: spots[to], share, lit: onPath(graph.nodes[from][0], graph.nodes[to][0]) }));
    for (const edge of edges.sort((a, b) => a.lit - b.lit)) {
      const { from, to } = edge, middle = (from.x + to.x) / 2;
      root.append(svg("path", {
        class: edge.lit ? "lit" : "edge", fill: "none", d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
        stroke: walk ? (edge.lit ? "var(--c0)" : "var(--line)") : edge.share ? "var(--c0)" : "var(--line)",
        "stroke-width": walk ? (edge.lit ? 4 : 1) : edge.share ? 1 + 7 * edge.share : 1,
        opacity: walk || !edge.share ? 1 : 0.45,
        "stroke-dasharray": edge.lit && exitDepth !== null && to.level > exitDepth ? "6 5" : edge.share || walk ? null : "2 4",
      }));
    }
    for (const spot of spots) {
      const visited = walk ? lit.has(spot.name) : spot.share > 0, stop = walk && visited && spot.level === exitDepth;
      const asked = !walk || exitDepth === null || spot.level <= exitDepth;
      if (stop) root.append(svg("circle", { cx: spot.x, cy: spot.y, r: 11, fill: "none", stroke: "var(--c1)", "stroke-width": 2.5 }));
      root.append(svg("circle", {
        cx: spot.x, cy: spot.y, r: walk ? (visited ? 7 : 4) : 3 + 5 * Math.sqrt(spot.share),
        fill: visited && asked ? "var(--c0)" : "var(--paper)", stroke: visited ? "var(--c0)" : "var(--soft)", "stroke-width": 1.5,
      }));
      const last = spot.level === columns.length - 1;
      // Between levels edges run on: the name stands above them.
      const text = svg("text", { x: spot.x + (last ? 14 : 8), y: spot.y + (last ? 4 : -9), "font-weight": walk && visited ? 700 : 400, class: visited ? "" : "soft",
        stroke: "var(--paper)", "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke" });
      const note = walk || spot.level === 0 ? "" : ` ${say(spot.share, true)}`;
      const room = Math.floor((gap - 26 - note.length * 6.4) / (walk && visited ? 6.9 : 6.3));
      text.textContent = (spot.name.length > room ? `${spot.name.slice(0, Math.max(3, room - 1))}…` : spot.name) + note;
      if (spot.level === 0) { text.setAttribute("x", 6); text.setAttribute("y", spot.y - 14); }
      text.append(svg("title", {}, `${spot.name}: ${say(spot.share, true)} of the walks`));
      root.append(text);
    }
    for (const { level, count } of graph.hidden) {
      const spot = spots.find((candidate) => candidate.level === level);
      root.append(svg("text", { class: "soft", x: spot.x, y: height - 4 }, `… ${count} more`));
    }
    place.replaceChildren(root);
  };
  place.className = "scroll";
  let drawn = place.clientWidth;
  new ResizeObserver(() => { if (place.clientWidth !== drawn) { drawn = place.clientWidth; draw(); } }).observe(place);
  draw();
}

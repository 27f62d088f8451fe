// What a search tried: parallel coordinates, history and importance.

function drawParallel(place, found) {
  const controls = html("div", { className: "controls" }), box = html("div", { className: "scroll" });
  place.append(controls, box);
  let by = 0;
  controls.append(chooser("coloured by", found.objectives.map((objective) => objective.name), (index) => { by = index; draw(); }));
  controls.append(html("span", {}, "thick: on the Pareto set; dashed: pruned or failed"));
  const axes = [
    ...found.parameters.map((name, index) => ({ name, log: found.logarithmic.includes(name), of: (p) => p.parameters[index] })),
    ...found.objectives.map(({ name }, index) => ({ name, log: false, of: (p) => p.values[index] ?? null })),
  ];
  const draw = () => {
    const width = Math.max(box.clientWidth, 92 * axes.length), height = 330, top = 46, bottom = height - 16;
    const gap = (width - 130) / Math.max(1, axes.length - 1), root = svg("svg", { width, height, role: "img", "aria-label": "parallel coordinates of the search" });
    const places = axes.map((axis, index) => {
      const x = 60 + gap * index, values = found.proposals.map(axis.of).filter((value) => value !== null && value !== undefined);
      const numbers = values.every((value) => typeof value === "number"), options = [...new Set(values.map(String))].sort();
      const at = numbers ? scale({ log: axis.log }, values, bottom, top) : null;
      const spot = (value) => (numbers ? at.place(value) : top + ((options.indexOf(String(value)) + 0.5) * (bottom - top)) / options.length);
      root.append(svg("line", { class: "axis", x1: x, x2: x, y1: top, y2: bottom }));
      const [head, tail] = axis.name.includes("/") || axis.name.includes(".") ? [axis.name.replace(/[./][^./]*$/, (m) => m[0]), axis.name.match(/[^./]*$/)[0]] : ["", axis.name];
      root.append(svg("text", { x, y: 14, "text-anchor": "middle", class: "soft" }, cut(head, gap)), svg("text", { x, y: 29, "text-anchor": "middle", "font-weight": 600 }, cut(tail, gap), svg("title", {}, axis.name)));
      const whole = numbers && values.every(Number.isInteger);
      const ticks = numbers ? (axis.log ? logTicks : niceTicks)(at.low, at.high, 5).filter((tick) => !whole || Number.isInteger(tick)) : options;
      for (const tick of ticks) {
        root.append(svg("text", { class: "soft", x: x + 5, y: spot(tick) + 4, stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke" }, numbers ? (axis.log ? tickText(tick, axis, ticks) : say(tick)) : cut(String(tick), gap)));
      }
      return { x, spot };
    });
    const values = found.proposals.map((p) => p.values[by]).filter((value) => value !== undefined && value !== null);
    const low = Math.min(...values), high = Math.max(...values), better = found.objectives[by].direction === "maximize";
    const lines = svg("g");
    for (const proposal of [...found.proposals].sort((a, b) => a.pareto - b.pareto)) {
      const known = axes.map((axis, index) => [axis.of(proposal), places[index]]).filter(([value]) => value !== null && value !== undefined);
      const good = proposal.values.length ? (high > low ? (proposal.values[by] - low) / (high - low) : 0.5) : 0;
      const line = svg("path", {
        d: known.map(([value, at], index) => `${index ? "L" : "M"}${at.x} ${at.spot(value).toFixed(1)}`).join(""), fill: "none",
        stroke: proposal.state === "COMPLETE" ? "var(--c0)" : "var(--soft)", "stroke-width": proposal.pareto ? 3 : 1.2,
        opacity: proposal.state === "COMPLETE" ? 0.2 + 0.8 * (better ? good : 1 - good) : 0.35, "stroke-dasharray": proposal.state === "COMPLETE" ? null : "3 4",
      });
      line.onpointermove = (event) => { line.setAttribute("stroke", "var(--c1)"); showTip(about(found, proposal), event); };
      line.onpointerleave = () => { line.setAttribute("stroke", proposal.state === "COMPLETE" ? "var(--c0)" : "var(--soft)"); hideTip(); };
      lines.append(line);
    }
    root.prepend(lines);
    box.replaceChildren(root);
  };
  let drawn = box.clientWidth;
  new ResizeObserver(() => { if (box.clientWidth !== drawn) { drawn = box.clientWidth; draw(); } }).observe(box);
  draw();
}

const cut = (text, room) => (text.length * 6.4 > room - 12 ? `${text.slice(0, Math.max(3, Math.floor((room - 12) / 6.4) - 1))}…` : text);

function about(found, proposal) {
  const parameters = found.parameters.map((name, index) => [name, proposal.parameters[index]]).filter(([, value]) => value !== null);
  const values = found.objectives.map(({ name }, index) => [name, proposal.values[index]]).filter(([, value]) => value !== undefined);
  return [`#${proposal.number} ${proposal.state.toLowerCase()}${proposal.pareto ? ", Pareto" : ""}`, ...[...values, ...parameters].map(([name, value]) => `${name} ${say(value)}`)].join("\n");
}

function drawHistory(place, found) {
  const panels = html("div", { className: "panels" });
  place.append(panels);
  found.objectives.forEach(({ name, direction }, index) => {
    const done = found.proposals.filter((proposal) => proposal.values.length), pick = direction === "maximize" ? Math.max : Math.min;
    let best = null;
    const record = done.map((proposal) => { best = best === null ? proposal.values[index] : pick(best, proposal.values[index]); return [proposal.number, best, ""]; });
    const dots = (pareto) => done.filter((proposal) => proposal.pareto === pareto).map((proposal) => [proposal.number, proposal.values[index], about(found, proposal)]);
    chart(panels, {
      title: `${name} (${direction})`, x: { label: "proposal", whole: true }, y: { label: name }, height: 250, legend: true,
      series: [
        { name: "best so far", hue: 1, line: true, points: record },
        { name: "proposal", hue: 0, mark: "circle", points: dots(false), faint: true },
        { name: "Pareto", hue: 2, mark: "diamond", size: 4.5, points: dots(true) },
      ],
    });
  });
}

function drawImportance(place, found) {
  const panels = html("div", { className: "panels" });
  place.append(panels);
  for (const { name } of found.objectives) {
    const panel = html("div", { className: "panel" }, html("h4", {}, name)), items = found.importance[name];
    if (!items.length) panel.append(html("p", {}, "too few finished proposals to say"));
    const rows = html("div", { className: "bars" });
    for (const item of items) {
      const drawn = svg("svg", { width: "100%", height: 14, viewBox: "0 0 100 14", preserveAspectRatio: "none" });
      drawn.append(svg("rect", { x: 0, y: 3, width: 100 * item.share, height: 8, fill: "var(--c0)" }));
      drawn.append(svg("line", { x1: 100 * item.low, x2: 100 * item.high, y1: 7, y2: 7, stroke: "var(--ink)", "stroke-width": 2 }));
      const words = `${item.name}: ${say(item.share, true)} (95% ${say(item.low, true)} to ${say(item.high, true)}), ${item.count} proposals`;
      const holder = html("span", { title: words, className: "bar" }, drawn);
      holder.onpointermove = (event) => showTip(words, event);
      holder.onpointerleave = hideTip;
      rows.append(html("span", { title: item.name }, item.name), holder);
    }
    panel.append(rows, html("p", { className: "question" }, "bar: share of variance, 0 to 100%; line: 95% band"));
    panels.append(panel);
  }
}

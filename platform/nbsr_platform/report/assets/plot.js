// A small plotter: lines, dots, bands and bars in SVG, with axes, a legend that switches series and a tip on hover.
// A series without a name that is `of` another one comes and goes with it.
// Nothing is told by colour alone: every series has a marker or a dash of its own.

const SVG = "http://www.w3.org/2000/svg";
const MARKS = ["circle", "square", "triangle", "diamond", "down", "cross"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "4 2", "1 3"];
const colour = (index) => `var(--c${index % 8})`;

function html(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function say(value, percent) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (percent) return `${trim((100 * value).toPrecision(4))}%`;
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e7) return Math.round(value).toLocaleString("en").replace("-", "−");
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("-", "−").replace("e+", "e");
  return trim(value.toPrecision(4)).replace("-", "−");
}

const trim = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);

function niceTicks(low, high, most) {
  const span = high - low || 1;
  const raw = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const ticks = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    ticks.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return ticks;
}

function logTicks(low, high, most) {
  const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((to - from + 1) / most));
  const ticks = [];
  for (let power = from; power <= to; power += every) ticks.push(10 ** power);
  return ticks.length > 1 ? ticks : niceTicks(low, high, most).filter((tick) => tick > 0);
}

function tickText(value, axis, ticks) {
  if (axis.log) return value >= 1e5 || value < 1e-3 ? value.toExponential(0).replace("e+", "e").replace("-", "−") : trim(String(value));
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1;
  const scaled = axis.percent ? value * 100 : value, width = axis.percent ? step * 100 : step;
  if (Math.abs(scaled) >= 1e5) return scaled.toExponential(1).replace("e+", "e").replace("-", "−");
  return scaled.toFixed(Math.max(0, -Math.floor(Math.log10(width) + 1e-9))).replace("-", "−") + (axis.percent ? "%" : "");
}

function scale(axis, values, from, to) {
  const known = values.filter((value) => value !== null && Number.isFinite(value) && (!axis.log || value > 0));
  let low = axis.min ?? Math.min(...known), high = axis.max ?? Math.max(...known);
  if (!known.length) { low = axis.min ?? (axis.log ? 0.1 : 0); high = axis.max ?? 1; }
  if (low === high) { const pad = axis.log ? 0 : Math.abs(low) * 0.05 || 0.5; low = axis.log ? low / 2 : low - pad; high = axis.log ? high * 2 : high + pad; }
  const change = axis.log ? Math.log : (value) => value;
  const room = (change(high) - change(low)) * 0.04;
  const start = axis.min === undefined ? change(low) - room : change(low);
  const end = axis.max === undefined ? change(high) + room : change(high);
  const place = (value) => from + ((change(value) - start) / (end - start)) * (to - from);
  const back = axis.log ? Math.exp : (value) => value;
  return { place, low: back(start), high: back(end) };
}

function mark(kind, x, y, size, paint) {
  const s = size, shapes = {
    square: `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    triangle: `M${x} ${y - 1.2 * s}l${1.15 * s} ${2.1 * s}h${-2.3 * s}z`,
    down: `M${x} ${y + 1.2 * s}l${1.15 * s} ${-2.1 * s}h${-2.3 * s}z`,
    diamond: `M${x} ${y - 1.35 * s}l${1.35 * s} ${1.35 * s}l${-1.35 * s} ${1.35 * s}l${-1.35 * s} ${-1.35 * s}z`,
    cross: `M${x - s} ${y - s}l${2 * s} ${2 * s}M${x - s} ${y + s}l${2 * s} ${-2 * s}`,
    star: star(x, y, 1.9 * s),
  };
  if (kind === "circle") return svg("circle", { cx: x, cy: y, r: s, ...paint });
  if (kind === "cross") return svg("path", { d: shapes.cross, ...paint, fill: "none", "stroke-width": 2, stroke: paint.fill });
  return svg("path", { d: shapes[kind], ...paint });
}

function star(x, y, r) {
  const at = (index) => {
    const angle = (Math.PI * index) / 5 - Math.PI / 2, reach = index % 2 ? r * 0.45 : r;
    return `${(x + reach * Math.cos(angle)).toFixed(1)} ${(y + reach * Math.sin(angle)).toFixed(1)}`;
  };
  return `M${Array.from({ length: 10 }, (_, index) => at(index)).join("L")}z`;
}

const tip = () => document.getElementById("tip");
function showTip(text, event) {
  const box = tip();
  box.textContent = text;
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
  box.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16}px`;
}
const hideTip = () => { tip().hidden = true; };

// Draw `spec` into `place`, again whenever its width changes. A series has `name`, `hue`, and any of `points`
// ([x, y, tip, size]), `line`, `band` ([x, low, high]), `bars` ([from, to, y, tip]); `mark` and `dash` style it.
function chart(place, spec) {
  const hidden = new Set();
  const panel = html("div", { className: "panel" });
  const legend = html("div", { className: "legend" }), canvas = html("div");
  if (spec.title) panel.append(html("h4", {}, spec.title));
  panel.append(legend, canvas);
  place.append(panel);
  const named = spec.series.filter((series) => series.name);
  if (named.length > 1 || spec.legend) {
    for (const series of named) {
      const button = html("button", { type: "button", ariaPressed: "true" }, sample(series), series.name);
      button.onclick = () => {
        if (!hidden.delete(series.name)) hidden.add(series.name);
        button.ariaPressed = String(!hidden.has(series.name));
        draw();
      };
      legend.append(button);
    }
  }
  let drawn = 0;
  const draw = () => {
    drawn = canvas.clientWidth;
    if (drawn > 0) canvas.replaceChildren(drawing(spec, hidden, drawn));
  };
  new ResizeObserver(() => { if (canvas.clientWidth !== drawn) draw(); }).observe(canvas);
  draw();
  return panel;
}

function sample(series) {
  const paint = { fill: colour(series.hue), stroke: "none" };
  const drawn = svg("svg", { width: 22, height: 12, "aria-hidden": "true" });
  if (series.bars || series.band) drawn.append(svg("rect", { x: 2, y: 2, width: 18, height: 8, fill: colour(series.hue), opacity: series.bars ? 0.7 : 0.25 }));
  if (series.line) drawn.append(svg("line", { x1: 0, x2: 22, y1: 6, y2: 6, stroke: colour(series.hue), "stroke-width": 2, "stroke-dasharray": series.dash || null }));
  if (series.mark) drawn.append(mark(series.mark, 11, 6, 4, paint));
  return drawn;
}

function drawing(spec, hidden, width) {
  const shown = spec.series.filter((series) => !hidden.has(series.of || series.name));
  const height = spec.height || Math.min(360, Math.max(240, width * 0.62));
  const xs = shown.flatMap((s) => [...(s.points || []).map((p) => p[0]), ...(s.band || []).map((p) => p[0]), ...(s.bars || []).flatMap((b) => [b[0], b[1]])]);
  const ys = shown.flatMap((s) => [...(s.points || []).map((p) => p[1]), ...(s.band || []).flatMap((p) => [p[1], p[2]]), ...(s.bars || []).map((b) => b[2])]);
  const top = 8, bottom = height - 40;
  const y = scale(spec.y, ys, bottom, top);
  const yTicks = (spec.y.log ? logTicks : niceTicks)(y.low, y.high, Math.floor(height / 48));
  const yTexts = yTicks.map((tick) => tickText(tick, spec.y, yTicks));
  const left = 34 + 6.6 * Math.max(1, ...yTexts.map((text) => text.length)), right = width - 20;
  const x = scale(spec.x, xs, left, right);
  let xTicks = spec.x.ticks || (spec.x.log ? logTicks : niceTicks)(x.low, x.high, Math.floor((right - left) / 64));
  if (spec.x.whole) xTicks = xTicks.filter(Number.isInteger);
  const root = svg("svg", { width, height, role: "img", "aria-label": `${spec.y.label} against ${spec.x.label}` });
  for (const [index, tick] of yTicks.entries()) {
    const at = y.place(tick);
    root.append(svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    root.append(svg("text", { class: "soft", x: left - 6, y: at + 4, "text-anchor": "end" }, yTexts[index]));
  }
  for (const tick of xTicks) {
    const at = x.place(tick);
    root.append(svg("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
    root.append(svg("text", { class: "soft", x: at, y: bottom + 17, "text-anchor": "middle" }, tickText(tick, spec.x, xTicks)));
  }
  root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  root.append(svg("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, spec.x.label));
  root.append(svg("text", { x: 12, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` }, spec.y.label));
  if (spec.diagonal) {
    const low = Math.max(x.low, y.low), high = Math.min(x.high, y.high);
    root.append(svg("line", { class: "axis", x1: x.place(low), y1: y.place(low), x2: x.place(high), y2: y.place(high), "stroke-dasharray": "4 4" }));
  }
  const spots = [];
  for (const series of shown) paintBand(root, series, x, y); // below all lines
  for (const series of shown) paint(root, series, x, y, bottom, spots);
  const ring = svg("circle", { r: 8, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, visibility: "hidden" });
  root.append(ring);
  const find = (event) => {
    const box = root.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, near = 26;
    for (const spot of spots) {
      const away = spot.box ? (px >= spot.box[0] && px <= spot.box[1] && py <= bottom && py >= top ? 0 : 1e9) : Math.hypot(spot.x - px, spot.y - py);
      if (away < near) { near = away; best = spot; }
    }
    ring.setAttribute("visibility", best && !best.box ? "visible" : "hidden");
    if (!best) return hideTip();
    ring.setAttribute("cx", best.x);
    ring.setAttribute("cy", best.y);
    showTip(best.text, event);
  };
  root.onpointermove = find;
  root.onpointerdown = find;
  root.onpointerleave = () => { ring.setAttribute("visibility", "hidden"); hideTip(); };
  return root;
}

function paintBand(root, series, x, y) {
  if (!series.band || !series.band.length) return;
  const known = series.band.filter((p) => p[1] !== null && p[2] !== null && Number.isFinite(y.place(p[1])));
  const edge = [...known.map((p) => [p[0], p[2]]), ...known.slice().reverse().map((p) => [p[0], p[1]])];
  root.append(svg("path", { d: path(edge, x, y) + "z", fill: colour(series.hue), opacity: 0.18 }));
}

function paint(root, series, x, y, bottom, spots) {
  const stroke = colour(series.hue), fits = (p) => p[0] !== null && p[1] !== null && Number.isFinite(x.place(p[0])) && Number.isFinite(y.place(p[1]));
  for (const bar of series.bars || []) {
    const from = x.place(bar[0]), to = x.place(bar[1]), at = y.place(bar[2]);
    root.append(svg("rect", { x: from, y: at, width: Math.max(1, to - from), height: Math.max(0, bottom - at), fill: stroke, opacity: 0.55, stroke, "stroke-dasharray": series.dash || null }));
    spots.push({ box: [from, to], x: from, y: at, text: bar[3] });
  }
  const points = (series.points || []).filter(fits);
  if (series.line && points.length > 1) {
    root.append(svg("path", { d: path(points, x, y), fill: "none", stroke, "stroke-width": series.thin ? 1 : 2, opacity: series.thin ? 0.55 : 1, "stroke-dasharray": series.dash || null, "stroke-linejoin": "round" }));
  }
  for (const point of points) {
    const at = { x: x.place(point[0]), y: y.place(point[1]), text: point[2] };
    if (series.mark) root.append(mark(series.mark, at.x, at.y, point[3] || series.size || 3.5, { fill: stroke, stroke: series.outline ? "var(--paper)" : "none", opacity: series.faint ? 0.65 : 1 }));
    if (point[2]) spots.push(at);
  }
}

const path = (points, x, y) => points.map((p, index) => `${index ? "L" : "M"}${x.place(p[0]).toFixed(1)} ${y.place(p[1]).toFixed(1)}`).join("");

// A labelled list to choose from; `names` are shown, `then` gets the index.
function chooser(label, names, then, chosen = 0) {
  const list = html("select", { ariaLabel: label }, ...names.map((name, index) => html("option", { value: index, selected: index === chosen }, name)));
  list.onchange = () => then(Number(list.value));
  return html("label", {}, `${label} `, list);
}

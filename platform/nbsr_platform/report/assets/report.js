// Each figure names its kind and its data; here is what each kind looks like.

const AXES = [
  { label: "mean depth", at: 1 }, { label: "mean cost", at: 2 }, { label: "ECE", at: 3 }, { label: "share of early exits", at: 4, percent: true },
  { label: "mean multiply-adds", at: 6 },
];

function drawFrontier(place, { models, costly }) {
  const controls = html("div", { className: "controls" }), body = html("div");
  place.append(controls, body);
  const axes = AXES.filter((axis) => axis.label !== "mean cost" || costly).filter((axis) => models.some((model) => model.trials.some((trial) => trial.points.some((point) => point[axis.at] !== null))));
  const words = (name, point) => `${name}\naccuracy ${say(point[0], true)}${point[1] === null ? "" : `, depth ${say(point[1])}`}${costly && point[2] !== null ? `, cost ${say(point[2])}` : ""}${point[6] === null ? "" : `, ${say(point[6])} multiply-adds`}\nECE ${say(point[3])}${point[4] === null ? "" : `, ${say(point[4], true)} exit early\nη = ${point[5] === null ? "never exit" : say(point[5])}`}`;
  const draw = (chosen) => {
    const axis = axes[chosen], series = [];
    models.forEach((model, hue) => {
      const walks = model.trials.some((trial) => trial.points.length > 1), place = (point) => [point[axis.at], point[0]];
      const points = model.trials.flatMap((trial) => trial.points.map((point) => [...place(point), words(trial.name, point)]));
      const known = points.filter((point) => point[0] !== null);
      if (known.length) {
        if (walks && axis.at !== 3) for (const trial of model.trials) series.push({ name: "", of: model.name, hue, line: true, thin: true, points: trial.points.map(place).filter((p) => p[0] !== null).sort((a, b) => a[0] - b[0]) });
        series.push({ name: model.name, hue, mark: walks ? MARKS[hue % 5] : "cross", faint: walks, size: walks ? 2.6 : 5, points: known });
      } else {
        // A model without depth: its accuracy as a level to beat.
        const levels = points.map((point) => point[1]).filter((value) => value !== null), mean = levels.reduce((a, b) => a + b, 0) / levels.length;
        const xs = models.flatMap((each) => each.trials.flatMap((trial) => trial.points.map((point) => point[axis.at]))).filter((value) => value !== null);
        const tip = `${model.name}: mean accuracy ${say(mean, true)}`, low = Math.min(...xs), high = Math.max(...xs);
        if (levels.length) series.push({ name: `${model.name} (mean, no ${axis.label})`, hue, line: true, dash: DASHES[1 + (hue % 5)], points: [[low, mean, tip], [(low + high) / 2, mean, tip], [high, mean, tip]] });
      }
    });
    models.forEach((model, hue) => {
      const stars = model.trials.filter((trial) => trial.chosen).map((trial) => [trial.chosen[axis.at], trial.chosen[0], `chosen operating point of ${words(trial.name, trial.chosen)}`]).filter((point) => point[0] !== null && point[1] !== null);
      if (stars.length) series.push({ name: `${model.name}, chosen`, hue, mark: "star", size: 5.5, outline: true, points: stars });
    });
    body.replaceChildren();
    chart(body, { x: { label: axis.label, percent: axis.percent }, y: { label: "accuracy", percent: true }, series, height: 400, legend: true });
  };
  controls.append(chooser("accuracy against", axes.map((axis) => axis.label), draw));
  draw(0);
}

function perModel(place, models, draw) {
  const controls = html("div", { className: "controls" }), body = html("div", { className: "panels" });
  place.append(controls, body);
  const show = (index) => { body.replaceChildren(); draw(body, models[index]); };
  if (models.length > 1) controls.append(chooser("model", models.map((model) => model.name), show));
  show(0);
}

function drawReliability(place, models) {
  perModel(place, models, (body, model) => {
    const sides = [["before calibration", model.before], ["after calibration", model.after]].filter(([, side]) => Object.keys(side).length);
    if (sides.length === 1) sides[0][0] = "as trained (no calibration)";
    for (const [title, side] of sides) {
      const most = Math.max(...Object.values(side).flatMap(({ bins }) => bins.map((bin) => bin[2])));
      const series = Object.entries(side).map(([depth, { bins, ece }], index) => ({
        name: `${depth === "final" ? "final answer" : `depth ${depth}`}, ECE ${say(ece)}`, hue: depth === "final" ? 1 : index + (index > 0 ? 1 : 0), line: true, dash: DASHES[index % 6], mark: MARKS[index % 5],
        points: bins.map(([said, right, count]) => [said, right, `confidence ${say(said, true)}\naccuracy ${say(right, true)}\n${count} samples`, 2.5 + 5 * Math.sqrt(count / most)]),
      }));
      chart(body, { title: `${model.name}: ${title}`, x: { label: "confidence", percent: true, min: 0, max: 1 }, y: { label: "accuracy", percent: true, min: 0, max: 1.02 }, diagonal: true, series, height: 330, legend: true });
    }
  });
}

function drawRisk(place, models) {
  const series = models.flatMap((model, hue) => Object.entries(model.risk).map(([score, points], index) => ({
    name: `${model.name}, by ${score}`, hue, line: true, dash: DASHES[index % 6],
    points: points.map(([coverage, risk]) => [coverage, risk, `${model.name}, by ${score}\nanswers ${say(coverage, true)}\nof these wrong ${say(risk, true)}`]),
  })));
  if (series.length) chart(place, { x: { label: "share answered (coverage)", percent: true }, y: { label: "error rate", percent: true, min: 0 }, series, legend: true });
}

function drawBelief(place, models) {
  const panels = html("div", { className: "panels" });
  place.append(panels);
  for (const [name, label] of [["precision", "precision α₀"], ["entropy", "entropy (nats)"]]) {
    const all = models.flatMap((model) => model.depths.map((row) => row[name]));
    const log = name === "precision" && Math.max(...all) > 50 * Math.min(...all);
    chart(panels, {
      title: label, x: { label: "depth (0 is the prior)", whole: true }, y: { label, log, ...(name === "precision" && !log ? { min: 0 } : {}) }, legend: true,
      series: models.map((model, hue) => ({
        name: model.name, hue, line: true, mark: MARKS[hue % 5], size: 4.5, dash: DASHES[hue % 6],
        band: models.length <= 3 ? model.depths.map((row) => [row.depth, row[`${name}_low`], row[`${name}_high`]]) : [],
        points: model.depths.map((row) => [row.depth, row[name], `${model.name}, depth ${row.depth}\n${label} ${say(row[name])}${row[`${name}_low`] === null ? "" : `\n90% of samples ${say(row[`${name}_low`])} to ${say(row[`${name}_high`])}`}\nvacuity ${say(row.vacuity)}`]),
      })),
    });
  }
}

function drawEntropy(place, models) {
  perModel(place, models.filter((model) => Object.keys(model.entropy).length), (body, model) => {
    if (!model) return;
    const aurocs = Object.fromEntries(model.separation.map((row) => [row.set, row.entropy_auroc]));
    chart(body, {
      title: model.name, x: { label: "terminal entropy (nats)" }, y: { label: "share of samples", percent: true, min: 0 }, legend: true,
      series: Object.entries(model.entropy).map(([set, rows], hue) => ({
        name: set + (aurocs[set] === undefined ? "" : `, AUROC against test ${say(aurocs[set])}`), hue, dash: DASHES[hue % 6],
        bars: rows.map(([low, high, share]) => [low, high, share, `${set}\nentropy ${say(low)} to ${say(high)}\n${say(share, true)} of its samples`]),
      })),
    });
  });
}

function drawUsage(place, models) {
  perModel(place, models, (body, model) => {
    body.className = "";
    const graph = html("div"), unused = model.graph.nodes.filter(([, , share]) => share === 0).length;
    body.append(html("p", { className: "question" }, `${model.name}: ${unused ? `${unused} of the nodes shown are never visited` : "every node shown is visited"}`), graph);
    drawGraph(graph, model.graph);
  });
}

function drawTraining(place, models) {
  const validation = html("div", { className: "panels" }), terms = html("div");
  place.append(validation, terms);
  const together = (title, name, options) => {
    const known = models.filter((model) => name in model.curves);
    const line = (model, values, series) => ({
      line: true, mark: model.epochs.length < 3 ? "circle" : null, ...series,
      points: model.epochs.map((epoch, index) => [epoch, values[index], `${model.name}, epoch ${epoch}: ${say(values[index], options.percent)}`]),
    });
    const series = known.flatMap((model, hue) => [
      ...(model.seeds[name] || []).map((values) => line(model, values, { name: "", of: model.name, hue, thin: true, mark: null })),
      line(model, model.curves[name], { name: model.name, hue, dash: DASHES[hue % 6] }),
    ]);
    if (known.length) chart(validation, { title, x: { label: "epoch", whole: true }, y: options, legend: true, series });
  };
  together("validation NLL", "valid/nll", { label: "nats" });
  together("validation accuracy", "valid/accuracy", { label: "accuracy", percent: true });
  perModel(terms, models, (body, model) => {
    const draw = (title, names, options) => {
      if (!names.length) return;
      chart(body, {
        title: `${model.name}: ${title}`, x: { label: "epoch", whole: true }, y: options, legend: true,
        series: names.map((name, hue) => ({
          name: label(name), hue, line: true, dash: DASHES[hue % 6], mark: model.epochs.length < 3 ? "circle" : null,
          points: model.epochs.map((epoch, index) => { const value = model.curves[name][index]; return [epoch, value === null ? null : options.size ? Math.abs(value) : value, `${label(name)}, epoch ${epoch}: ${say(value)}`]; }),
        })),
      });
    };
    const named = Object.keys(model.curves).filter((name) => name.startsWith("train/") && name !== "train/loss" && name !== "train/cost");
    const parts = named.length ? named : ["train/loss"].filter((name) => name in model.curves);
    const values = parts.flatMap((name) => model.curves[name]).filter((value) => value).map(Math.abs);
    draw("terms of the loss", parts, { label: "|term|", size: true, log: Math.max(...values) > 30 * Math.min(...values) });
    draw("cost", ["train/cost"].filter((name) => name in model.curves), { label: "γ · cost", min: 0 });
  });
}

const TERMS = { "train/nll": "NLL", "train/entropy": "|λ H|", "train/every_depth": "NLL at earlier depths", "train/concept": "concept", "train/balance": "load balance" };
const label = (name) => TERMS[name] || name.replace(/^train\//, "").replace(/_/g, " ");

function drawStories(place, models) {
  perModel(place, models, (body, model) => {
    body.className = "";
    const text = html("pre"), show = (index) => { text.textContent = model.told[index][1]; };
    body.append(html("div", { className: "controls" }, chooser("sample", model.told.map(([name]) => name), show)), text);
    show(0);
  });
}

const KINDS = {
  frontier: drawFrontier, reliability: drawReliability, risk: drawRisk, belief: drawBelief, entropy: drawEntropy, usage: drawUsage,
  walks: drawWalks, stories: drawStories, training: drawTraining, parallel: drawParallel, history: drawHistory, importance: drawImportance,
  decomposition: drawDecomposition,
};

{
  const theme = (name) => { document.documentElement.dataset.theme = name; };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.onchange = () => theme(dark.matches ? "dark" : "light");
  document.getElementById("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const figure of document.querySelectorAll("figure[data-kind]")) KINDS[figure.dataset.kind](figure.querySelector(".plot"), data[figure.dataset.of]);
}

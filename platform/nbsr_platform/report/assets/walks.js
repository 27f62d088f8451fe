// The walk explorer: choose a model and a sample, see its path, what each expert said, and the features behind it.

function drawWalks(place, models) {
  let model = 0, kind = "all", number = 0;
  const controls = html("div", { className: "controls" }), body = html("div");
  place.append(controls, body);
  const matching = () => models[model].samples.filter((sample) => kind === "all" || sample.verdict === kind);
  const build = () => {
    const kinds = ["all", ...new Set(models[model].samples.map((sample) => sample.verdict))];
    if (!kinds.includes(kind)) kind = "all";
    const samples = matching();
    number = Math.min(number, samples.length - 1);
    const named = samples.map((sample) => `${sample.sample}: ${sample.true}${sample.verdict === "right" ? "" : ` (${sample.verdict})`}`);
    const step = (by) => html("button", { type: "button", onclick: () => { number = (number + by + samples.length) % samples.length; build(); } }, by < 0 ? "◀ previous" : "next ▶");
    const focused = [...controls.querySelectorAll("select, button")].indexOf(document.activeElement);
    controls.replaceChildren(
      ...(models.length > 1 ? [chooser("model", models.map((each) => each.name), (index) => { model = index; number = 0; build(); }, model)] : []),
      chooser("show", kinds, (index) => { kind = kinds[index]; number = 0; build(); }, kinds.indexOf(kind)),
      chooser("sample", named, (index) => { number = index; build(); }, number), step(-1), step(1),
    );
    controls.querySelectorAll("select, button")[focused]?.focus(); // the controls are new, the hand is where it was
    show(samples[number]);
  };
  const show = (sample) => {
    const left = html("div"), right = html("div"), graph = html("div");
    const ends = sample.exit_depth ?? sample.steps.length;
    left.append(html("p", {}, "Sample ", html("strong", {}, String(sample.sample)), `, true class ${sample.true}: the model says ${sample.predicted}, `,
      html("span", { className: `verdict ${sample.verdict}` }, sample.verdict),
      ends < sample.steps.length ? `; with early exit it stops at depth ${ends} and says ${sample.exit_prediction}.` : "; no early exit.",
      sample.density !== null && sample.density !== undefined ? ` Closeness to the training data ${say(sample.density)}: all evidence is scaled by it.` : ""));
    left.append(graph);
    if (sample.features?.length) {
      left.append(html("h4", {}, `What drove the belief in ${sample.predicted}`), html("p", { className: "question" }, "input × gradient, all experts together"));
      left.append(bars(sample.features.map((feature) => [feature.name, feature.attribution]), null, (value) => (value >= 0 ? "var(--c0)" : "var(--c1)"), (value) => (value > 0 ? "+" : "") + say(value)));
    }
    sample.steps.forEach((step, index) => {
      const card = html("div", { className: index < ends ? "step" : "step after" });
      card.append(html("h4", {}, `${index + 1}. ${step.node}`));
      const others = Object.entries(step.alternatives || {}).filter(([name]) => name !== step.node).slice(0, 3);
      card.append(html("p", {}, `route p = ${say(step.route_probability)}${others.length ? ` (${others.map(([name, p]) => `${name} ${say(p)}`).join(", ")})` : ""}${index < ends ? "" : "; not asked after an early exit"}`));
      card.append(html("p", {}, step.measures ?? `belief shift ${say(step.belief_shift)} nats, entropy ${say(step.entropy)}, vacuity ${say(step.vacuity)}`));
      if (step.ledger) card.append(ledger(step, sample.true));
      else if (step.evidence) { // results from before there were ledgers
        const strongest = Math.max(...sample.steps.flatMap((each) => Object.values(each.evidence)));
        card.append(html("p", {}, "evidence added"), bars(Object.entries(step.evidence), strongest, () => "var(--c4)", (value) => `+${say(value)}`, sample.true));
        card.append(html("p", {}, "belief afterwards"), bars(Object.entries(step.belief), 1, () => "var(--c0)", (value) => say(value, true), sample.true));
      }
      const behind = sample.features_by_step?.[index];
      if (behind?.length) card.append(html("p", {}, `rests on ${behind.map((feature) => feature.name).join(", ")}`));
      right.append(card);
    });
    body.replaceChildren(html("div", { className: "walk" }, left, right));
    drawGraph(graph, models[model].graph, sample.steps.map((step) => step.node), ends);
  };
  build();
}

// What a reader can add up: belief before + evidence = alpha; alpha / sum = expected; and that calibrated, if it is.
function ledger(step, truth) {
  const calibrated = step.temperature !== null && step.temperature !== undefined;
  const count = (value) => (value === null ? "–" : Math.abs(value) < 1e5 ? value.toFixed(2) : say(value));
  const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)}%`);
  const heads = ["", "before", "+ evidence", "= α", `/ ${count(step.precision)}`, ...(calibrated ? [`calibrated, T = ${say(step.temperature)}`] : [])];
  const body = step.ledger.map((entry) => {
    const share = html("td", { className: "share" }, percent(calibrated ? entry.calibrated : entry.expected));
    share.style.setProperty("--share", calibrated ? entry.calibrated : entry.expected);
    const cells = [count(entry.before), `+${count(entry.evidence)}`, count(entry.alpha), ...(calibrated ? [percent(entry.expected)] : [])];
    const name = html("th", { scope: "row", title: entry.name, className: entry.name === truth ? "true" : "" }, entry.name === truth ? `◆ ${entry.name}` : entry.name);
    return html("tr", {}, name, ...cells.map((cell) => html("td", {}, cell)), share);
  });
  return html("div", { className: "scroll" }, html("table", { className: "ledger" }, html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))), html("tbody", {}, ...body)));
}

function bars(entries, largest, hue, words, truth = null) {
  const top = largest ?? Math.max(...entries.map(([, value]) => Math.abs(value)));
  const list = html("div", { className: "bars" });
  for (const [name, value] of entries) {
    const known = name === truth;
    list.append(html("span", { title: name, className: known ? "true" : "" }, known ? `◆ ${name}` : name));
    const bar = html("i");
    bar.style.width = `calc((100% - 4.6rem) * ${top > 0 ? Math.abs(value) / top : 0})`;
    bar.style.background = hue(value);
    list.append(html("span", { className: "bar" }, bar, words(value)));
  }
  return list;
}

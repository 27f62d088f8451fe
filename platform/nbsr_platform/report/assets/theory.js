// Bias, variance and risk of models that differ in a few options, against one of these.

function drawDecomposition(place, { options, models }) {
  const controls = html("div", { className: "controls" }), body = html("div", { className: "panels" });
  place.append(controls, body);
  const configs = [...new Set(models.map((model) => model.config))];
  let against = 0, config = 0;
  const draw = () => {
    const shown = models.filter((model) => model.config === configs[config]), lines = new Map();
    for (const model of shown) {
      const name = options.map((option, index) => (index === against ? null : `${option} ${say(model.options[index])}`)).filter((part) => part).join(", ") || "all";
      lines.set(name, [...(lines.get(name) || []), model]);
    }
    body.replaceChildren();
    for (const term of ["bias", "variance", "risk"]) {
      const series = [...lines].map(([name, members], hue) => {
        const sorted = [...members].sort((a, b) => a.options[against] - b.options[against]), at = (model) => model.options[against];
        return {
          name, hue, line: true, dash: DASHES[hue % 6], mark: MARKS[hue % 5], size: 4.5,
          band: sorted.map((model) => [at(model), model.terms[term][1], model.terms[term][2]]),
          points: sorted.map((model) => { const [value, low, high] = model.terms[term]; return [at(model), value, `${model.name} ${model.config}\n${term} ${say(value)}\n95% ${say(low)} to ${say(high)}`]; }),
        };
      });
      const noise = shown[0].terms.noise[0], xs = shown.map((model) => model.options[against]);
      if (term === "risk") series.push({ name: "noise", hue: 7, line: true, dash: "2 3", points: [Math.min(...xs), Math.max(...xs)].map((x) => [x, noise, `noise ${say(noise)}`]) });
      chart(body, { title: `${term} (nats)`, x: { label: options[against], ticks: [...new Set(xs)].sort((a, b) => a - b) }, y: { label: term }, height: 300, legend: true, series });
    }
  };
  controls.append(chooser("against", options, (index) => { against = index; draw(); }));
  if (configs.length > 1) controls.append(chooser("walks", configs, (index) => { config = index; draw(); }));
  draw();
}

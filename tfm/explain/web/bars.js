// The bars of the next token: temperature, top-k and top-p act on the logits, here in the page.

// Probabilities of all logits. What top-k and top-p leave out has 0, the rest is divided by its sum.
// top-k: the k greatest; 0 keeps all. top-p: the fewest that together reach p.
function probabilities(logits, temperature, topk, topp) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const raw = Float64Array.from(logits, (x) => Math.exp((x - most) / temperature));
  const total = raw.reduce((a, b) => a + b, 0);
  const plain = raw.map((x) => x / total);
  const order = Array.from(plain.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
  let kept = topk > 0 ? Math.min(topk, order.length) : order.length;
  if (topp < 1) {
    const within = order.slice(0, kept).reduce((sum, i) => sum + plain[i], 0);
    let sum = 0, count = 0;
    while (count < kept && sum < topp * within) sum += plain[order[count++]];
    kept = Math.max(1, count);
  }
  const mass = order.slice(0, kept).reduce((sum, i) => sum + plain[i], 0);
  const filtered = new Float64Array(plain.length);
  for (const i of order.slice(0, kept)) filtered[i] = plain[i] / mass;
  return { plain, filtered, order, kept };
}

const SHOWN_BARS = 14;

function positionNow(next) {
  return next.rows.includes(state.position) ? state.position : next.start;
}

function slider(name, label, low, high, step, word) {
  const input = make("input", { type: "range", min: low, max: high, step, id: `slider-${name}`, "aria-label": label });
  const output = make("output", { for: `slider-${name}` });
  input.addEventListener("input", () => set({ [name]: Number(input.value) }));
  const update = () => {
    input.value = state[name];
    output.textContent = word(state[name]);
  };
  return { element: make("label", {}, label, input, output), update };
}

function nextPanel(runIndex) {
  const next = RUNS[runIndex].next, pieces = RUNS[runIndex].sequences[next.written];
  const sliders = [
    slider("temperature", "temperature T", 0.1, 3, 0.05, (x) => x.toFixed(2)),
    slider("topk", "top-k", 0, Math.min(50, next.logits[0].shape[1]), 1, (x) => (x ? String(x) : "all")),
    slider("topp", "top-p", 0.05, 1, 0.01, (x) => (x < 1 ? x.toFixed(2) : "all")),
  ];
  const count = Math.min(SHOWN_BARS, next.logits[0].shape[1]);
  const bars = make("div", { class: "bars", role: "group", "aria-label": "Probabilities", style: `min-height:${count * 27}px` });
  const after = make("div", { class: "goes-on", "aria-live": "polite" });
  const chooser = make("select", { id: "position", "aria-label": "Position", onchange: (event) => set({ position: Number(event.target.value), pick: null }) });
  for (const t of next.rows) chooser.append(make("option", { value: t }, `${t}: ${next.follows ? "after" : "at"} “${visible(pieces[t][0])}”`));
  const reset = make("button", { id: "reset-bars", onclick: () => set({ temperature: 1, topk: 0, topp: 1, pick: null }) }, "reset");
  const element = make("div", {},
    make("div", { class: "sliders" }, ...sliders.map((one) => one.element),
      next.rows.length > 1 ? make("label", { style: "display:flex" }, "position", chooser) : null, reset),
    bars, after);

  async function update() {
    for (const one of sliders) one.update();
    const position = positionNow(next);
    if (position !== null) chooser.value = position;
    const row = position === null ? 0 : next.rows.indexOf(position);
    const logits = (await unpack(next.logits[row])).values;
    const found = probabilities(logits, state.temperature, state.topk, state.topp);
    refill(bars, ...found.order.slice(0, SHOWN_BARS).map((id) => {
      const p = found.filtered[id], name = next.names[id] ?? `#${id}`;
      return make("button", {
        class: p ? "bar" : "bar cut", "data-id": id, "data-p": p.toFixed(4), "aria-pressed": state.pick === id,
        title: `id ${id}, logit ${show(logits[id])}, p ${p.toFixed(4)}`,
        onclick: () => set({ pick: state.pick === id ? null : id }),
      }, make("b", {}, visible(name)), make("div", { class: "track" }, make("i", { style: `width:${100 * p}%` })), make("span", {}, p.toFixed(4)));
    }));
    const rest = found.order.slice(SHOWN_BARS).reduce((sum, id) => sum + found.filtered[id], 0);
    if (found.order.length > SHOWN_BARS) bars.append(make("div", { class: "soft" }, `${found.order.length - SHOWN_BARS} more: ${rest.toFixed(4)} together`));
    after.replaceChildren(...continuation(next, pieces, position));
  }
  return { element, update };
}

function continuation(next, pieces, position) {
  if (state.pick === null) {
    const hint = next.continuations.length ? "Pick a bar to see how the text would go on." : "";
    return [make("span", { class: "soft" }, hint)];
  }
  const chip = (text, p) => make("span", { class: "token" }, visible(text), make("small", {}, p === null ? "" : p.toFixed(2)));
  const known = position === pieces.length - 1 && next.continuations.find((one) => one.ids[0] === state.pick);
  if (!known) {
    const why = position === pieces.length - 1 || position === null
      ? `The page knows how the ${next.continuations.length} most probable tokens go on.`
      : "The page knows how the text goes on after its last token.";
    return next.continuations.length ? [make("span", { class: "soft" }, why)] : [];
  }
  return [
    make("span", { class: "soft" }, "… goes on, each time by the most probable token:"),
    ...known.ids.map((id, i) => chip(next.names[id] ?? `#${id}`, known.probabilities[i])),
  ];
}

// The bars as a figure, for a file.
async function barsFigure(runIndex) {
  const next = RUNS[runIndex].next, position = positionNow(next);
  const logits = (await unpack(next.logits[position === null ? 0 : next.rows.indexOf(position)])).values;
  const found = probabilities(logits, state.temperature, state.topk, state.topp);
  const shown = found.order.slice(0, SHOWN_BARS);
  return {
    width: 560,
    height: 20 * shown.length + 26,
    draw(pen) {
      const ink = variable("--ink");
      pen.text(0, 8, `T = ${state.temperature}, top-k ${state.topk || "all"}, top-p ${state.topp < 1 ? state.topp : "all"}`, { fill: variable("--soft"), font: SANS });
      shown.forEach((id, i) => {
        const y = 24 + 20 * i, p = found.filtered[id];
        pen.text(120, y + 8, shortened(visible(next.names[id] ?? `#${id}`), 16), { anchor: "end", fill: ink });
        pen.rect(130, y, 340, 15, variable("--hidden"));
        pen.rect(130, y, 340 * p, 15, variable("--bar"));
        pen.text(556, y + 8, p.toFixed(4), { anchor: "end", fill: ink });
      });
    },
  };
}

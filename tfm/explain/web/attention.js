// The attention: all heads in a grid, one of them as a heat map and as lines between tokens.

function attentionView(root) {
  const site = () => siteNow();
  if (!RUNS.some((run) => run.sites.length)) {
    root.append(make("div", { class: "card" }, make("p", {}, "This model has no weights between tokens. The walk shows its states.")));
    return { update: async () => {}, figures: async () => [] };
  }
  const two = RUNS.length > 1;
  const toolbar = make("div", { class: "toolbar" });
  const grid = make("div", { class: "grid", role: "group", "aria-label": "Layers and heads" });
  const gridNote = make("p", { class: "soft" });
  const maps = make("div", { class: "maps" });
  const readout = make("div", { class: "readout", "aria-live": "polite" });
  const legendBox = make("div");
  const lineCanvas = make("canvas", { id: "lines", "aria-label": "Lines between tokens" });
  const strip = make("div", { class: "strip", id: "strip-rows" }), source = make("div", { class: "strip", id: "strip-cols" });
  const stripTitle = make("h3"), sourceTitle = make("h3");
  const facts = make("div"), ranking = make("div"), order = make("div", { class: "pictures" });
  const mapTitle = make("h3"), formula = make("p", { class: "math" });
  const gridCard = make("div", { class: "card" }, make("h3", {}, "Layers × heads"), gridNote, grid);
  const mapCard = make("div", { class: "card center" }, mapTitle, formula, maps, legendBox, readout);
  const lineCard = make("div", { class: "card" }, make("h3", {}, "Who looks at whom"), lineCanvas);
  const stripCard = make("div", { class: "card wide" }, stripTitle, strip, sourceTitle, source);
  const rule = make("details", {}, make("summary", {}, "How tags and measures are made"), make("p", { class: "soft" }, DATA.rule));
  root.append(toolbar, make("div", { class: two ? "attention both" : "attention" }, gridCard, mapCard, lineCard, stripCard,
    make("div", { class: "two" }, make("div", { class: "card" }, make("h3", {}, "This head"), facts, rule), make("div", { class: "card" }, ranking),
      RUNS.some((run) => run.pictures.length) ? make("div", { class: "card" }, make("h3", {}, "Where order enters"), order) : null)));

  // One canvas for each run, and one for the difference.
  const panels = (two ? [...RUNS.map((run) => run.name), "difference"] : [null]).map((title, i) => {
    const canvas = make("canvas", { tabindex: 0, role: "img", id: i ? `map-${i}` : "map", "aria-label": title ? `Heat map: ${title}` : "Heat map" });
    const holder = make("div", {}, title ? make("p", { class: "soft" }, i === 2 ? `${RUNS[1].name} − ${RUNS[0].name}` : title) : null, canvas);
    maps.append(holder);
    const panel = { canvas, holder, figure: null };
    const pair = (event) => {
      const box = canvas.getBoundingClientRect();
      return panel.figure && pairAt(panel.figure.box, site().factor, event.clientX - box.left, event.clientY - box.top, names(site().rows).length, names(site().cols).length);
    };
    canvas.addEventListener("pointermove", (event) => {
      const found = pair(event);
      setHover(found && found.row, found && found.col);
      tip(event, found && told(panel, found));
    });
    canvas.addEventListener("pointerleave", (event) => { setHover(null, null); tip(event, ""); });
    canvas.addEventListener("click", (event) => {
      const found = pair(event);
      if (!found) return;
      const same = state.row === found.row && state.col === found.col;
      set(same ? { row: null, col: null } : found);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const within = (x, count) => Math.max(0, Math.min(count - 1, x));
      const now = state.row === null ? [0, 0] : [state.row + step[0], (state.col ?? 0) + step[1]];
      set({ row: within(now[0], names(site().rows).length), col: within(now[1], names(site().cols).length) });
    });
    return panel;
  });

  const names = (sequence, run = state.run) => RUNS[run].sequences[sequence].map(([text]) => visible(text));

  function told(panel, { row, col }) {
    const i = Math.floor(row / site().factor), j = Math.floor(col / site().factor), shown = panel.shown;
    if (!shown) return "";
    const words = `${names(site().rows)[row]} → ${names(site().cols)[col]}`;
    return `${words}\n${shown.mask && !at(shown.mask, i, j) ? "hidden by the mask" : `${MAP_NAMES[state.map]} ${show(at(shown.matrix, i, j), shown.matrix)}`}`;
  }

  lineCanvas.addEventListener("pointermove", (event) => {
    const box = lineCanvas.getBoundingClientRect(), figure = lineCanvas.figure;
    if (!figure) return;
    const i = Math.floor((event.clientY - box.top - 8) / figure.step), isRow = event.clientX - box.left < box.width / 2;
    const count = names(isRow ? site().rows : site().cols).length;
    setHover(isRow && i >= 0 && i < count ? i : null, !isRow && i >= 0 && i < count ? i : null);
  });
  lineCanvas.addEventListener("pointerleave", () => setHover(null, null));
  lineCanvas.addEventListener("click", () => {
    if (hover.row !== null) set({ row: state.row === hover.row ? null : hover.row });
    else if (hover.col !== null) set({ col: state.col === hover.col ? null : hover.col });
  });

  function segments(items, now, choose, label, id) {
    return make("div", { class: "segments", role: "group", "aria-label": label, id },
      ...items.map(([value, text]) => make("button", { "aria-pressed": value === now, "data-value": value, onclick: () => choose(value) }, text)));
  }

  function drawToolbar() {
    const run = RUNS[state.run];
    refill(toolbar,
      ...(run.sites.length > 1 ? [segments(run.sites.map((one, i) => [i, one.title]), state.site, (i) => set({ site: i, row: null, col: null, layer: 0, head: 0 }), "Attention", "choose-site")] : []),
      segments(mapsOf(site()).map((name) => [name, MAP_NAMES[name]]), state.map, (map) => set({ map }), "Map", "choose-map"),
      ...(two ? [segments(RUNS.map((one, i) => [i, one.name]).filter(([i]) => RUNS[i].sites.length), state.run, (i) => set({ run: i }), "Run", "choose-run")] : []),
      ...RUNS.filter((one) => two && !matching(one)).map((one) => make("span", { class: "soft" }, one.sites.length ? `${one.name} has no “${site().title}”` : `${one.name} has no weights between tokens`)),
      make("button", { id: "clear", onclick: () => set({ row: null, col: null }), disabled: state.row === null && state.col === null }, "clear pins"));
  }

  async function drawGrid() {
    const own = site(), key = `${state.run} ${state.site} ${isDark()}`;
    if (grid.dataset.key !== key) {
      grid.dataset.key = key;
      grid.style.gridTemplateColumns = `auto repeat(${own.heads}, minmax(14px, 68px))`;
      grid.replaceChildren(make("span", { class: "label" }), ...Array.from({ length: own.heads }, (_, h) => make("span", { class: "label" }, `h${h}`)));
      own.layers.forEach((number, n) => {
        grid.append(make("span", { class: "label" }, `L${number}`));
        for (let h = 0; h < own.heads; h++) {
          const canvas = make("canvas", { width: 32, height: 32 });
          const tag = own.stats[n][h].tag;
          const button = make("button", {
            class: "head", "data-layer": n, "data-head": h, title: `layer ${number}, head ${h}: ${tag}`, "aria-label": `layer ${number}, head ${h}, ${tag}`,
            onclick: () => set({ layer: n, head: h }),
            onkeydown: (event) => {
              const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
              const other = step && grid.querySelector(`[data-layer="${n + step[0]}"][data-head="${h + step[1]}"]`);
              if (!other) return;
              event.preventDefault();
              other.focus();
              other.click();
            },
          }, canvas);
          grid.append(button);
          unpack(own.thumbs[n][h]).then((matrix) => {
            Object.assign(canvas, { width: matrix.cols, height: matrix.rows });
            canvas.getContext("2d").drawImage(pixelsOf(matrix, null, scaleOf(0, matrix.high, matrix.low < 0)), 0, 0);
          });
        }
      });
    }
    for (const button of grid.querySelectorAll(".head")) {
      const here = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
      button.setAttribute("aria-pressed", here);
      button.tabIndex = here ? 0 : -1;
    }
  }

  const matching = (run) => run.sites.find((one) => one.name === site().name && one.rows === site().rows) ?? null;

  async function shownMaps() {
    const found = two
      ? await Promise.all(RUNS.map((run) => { const own = matching(run); return own && mapOf(own, state.map, state.layer, state.head); }))
      : [await mapOf(site(), state.map, state.layer, state.head)];
    if (!two) return found;
    const [a, b] = found;
    if (!a || !b || a.matrix.rows !== b.matrix.rows || a.matrix.cols !== b.matrix.cols) return [a, b, null];
    return [a, b, difference(a, b)];
  }

  const differences = new WeakMap();
  function difference(a, b) {
    const known = differences.get(a.matrix);
    if (known && known.other === b.matrix) return known.shown;
    const values = a.matrix.values.map((x, i) => b.matrix.values[i] - x), gap = [a, b].some((one) => one.matrix.least) ? Math.max(...[a, b].map(({ matrix }) => matrix.gap || (matrix.high - matrix.low) / 127)) : null;
    const mask = a.mask && b.mask && { ...a.mask, values: a.mask.values.map((x, i) => x && b.mask.values[i]) };
    const inside = mask ? values.filter((_, i) => mask.values[i]) : values;
    const low = inside.reduce((x, y) => Math.min(x, y), 0), high = inside.reduce((x, y) => Math.max(x, y), 0);
    const shown = { matrix: { ...a.matrix, values, low, high, gap }, mask };
    differences.set(a.matrix, { other: b.matrix, shown });
    return shown;
  }

  const marksNow = () => ({ row: hover.row, col: hover.col, pinnedRow: state.row, pinnedCol: state.col });

  function scaleFor(shown, i) {
    const { matrix } = shown[i];
    if (i === 2) return scaleOf(matrix.low, matrix.high, true);
    const both = shown.slice(0, 2).filter((one) => one).map((one) => one.matrix);
    const low = Math.min(...both.map((m) => m.low)), high = Math.max(...both.map((m) => m.high));
    return scaleOf(low, high, SIGNED.has(state.map) || low < 0);
  }

  function mapFigures(shown, width) {
    return shown.map((one, i) => one && heatMap({
      ...one, scale: scaleFor(shown, i), width, factor: site().factor, marks: marksNow(), rowNames: names(site().rows), colNames: names(site().cols),
    }));
  }

  function lineFigure(shown, width) {
    const own = shown[two ? state.run : 0];
    return own && lines({ ...own, scale: scaleFor(shown, two ? state.run : 0), width, factor: site().factor, rowNames: names(site().rows), colNames: names(site().cols), marks: { ...marksNow(), row: activeRow(), col: activeCol() } });
  }

  let turn = 0;
  async function update(before) {
    const now = ++turn;
    const shown = await shownMaps();
    if (now !== turn) return; // something newer is being drawn
    const own = site(), layer = own.layers[state.layer];
    if (before !== null) {
      drawToolbar();
      await drawGrid();
      gridNote.textContent = own.layers.length * own.heads > 1 ? `${own.layers.length} × ${own.heads}: click one` : "";
      mapTitle.textContent = `Layer ${layer}, head ${state.head}: ${MAP_NAMES[state.map]}`;
      formula.replaceChildren(...math(own.formulas[state.map] ?? own.terms[state.map] ?? ""));
    }
    const room = (panel) => Math.max(200, Math.min(panel.holder.clientWidth || 500, 680));
    mapFigures(shown, room(panels[0])).forEach((figure, i) => {
      panels[i].figure = figure;
      panels[i].shown = shown[i];
      if (figure) paint(panels[i].canvas, figure);
      panels[i].holder.hidden = !figure;
    });
    if (before !== null && shown[0]) legendBox.replaceChildren(...[0, 2].filter((i) => shown[i]).map((i) => legend(scaleFor(shown, i))));
    const figure = lineFigure(shown, Math.max(220, (lineCanvas.parentElement.clientWidth || 300) - 32));
    if (figure) paint(lineCanvas, figure);
    drawStrips(shown[two ? state.run : 0], before !== null);
    drawReadout(shown[two ? state.run : 0]);
    if (before !== null) drawFacts();
    await drawRanking(now);
    if (before !== null) await drawOrder();
  }

  function drawReadout(shown) {
    const row = activeRow(), col = activeCol();
    if (row === null || !shown) {
      readout.textContent = "Hover over a cell or a token to preview, click to pin.";
      return;
    }
    const i = Math.floor(row / site().factor), values = Array.from({ length: shown.matrix.cols }, (_, s) => [shown.mask && !at(shown.mask, i, s) ? -Infinity : at(shown.matrix, i, s), s]);
    const best = values.filter(([x]) => x > -Infinity).sort((a, b) => b[0] - a[0]).slice(0, 3);
    const place = (s) => names(site().cols)[Math.min(s * site().factor, names(site().cols).length - 1)];
    const chosen = col === null ? null : values[Math.floor(col / site().factor)][0];
    const pair = col === null ? "" : ` · ${names(site().cols)[col]}: ${chosen === -Infinity ? "hidden" : show(chosen, shown.matrix)}`;
    readout.textContent = `${names(site().rows)[row]} (${row}) looks most at ${best.map(([x, s]) => `${place(s)} ${show(x, shown.matrix)}`).join(", ")}${pair}`;
  }

  function drawStrips(shown, rebuild) {
    const own = site(), self = own.rows === own.cols;
    stripTitle.textContent = self ? "The text, shaded by what the active token looks at" : `${own.rows} (what looks)`;
    sourceTitle.textContent = self ? "" : `${own.cols} (what is looked at)`;
    const key = `${state.run} ${own.rows} ${own.cols}`;
    if (strip.dataset.key !== key) {
      strip.dataset.key = key;
      const fill = (box, sequence, which) => box.replaceChildren(...RUNS[state.run].sequences[sequence].map(([text, id], i) => make("button", {
        class: "token", "data-index": i, title: `${i}: id ${id}`, tabindex: i ? -1 : 0,
        onpointerenter: () => setHover(...(which === "row" ? [i, null] : [null, i])), onpointerleave: () => setHover(null, null),
        onclick: () => set({ [which]: state[which] === i ? null : i }),
        onkeydown: (event) => {
          const other = box.children[i + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? NaN)];
          if (other) other.focus();
        },
      }, visible(text))));
      fill(strip, own.rows, "row");
      if (self) source.replaceChildren(); else fill(source, own.cols, "col");
    }
    const row = activeRow(), target = self ? strip : source;
    const scale = shown && scaleOf(shown.matrix.low, shown.matrix.high, SIGNED.has(state.map) || shown.matrix.low < 0);
    [...target.children].forEach((token, s) => {
      let color = null;
      if (row !== null && shown) {
        const i = Math.floor(row / own.factor), j = Math.floor(s / own.factor);
        if (!shown.mask || at(shown.mask, i, j)) color = colorAt(scale, at(shown.matrix, i, j));
      }
      token.style.background = color ? css(color) : "";
      token.style.color = color ? inkOn(color) : "";
    });
    const mark = (box, active, pinned) => [...box.children].forEach((token, i) => {
      token.classList.toggle("active", i === active);
      token.classList.toggle("pinned", i === pinned);
    });
    mark(strip, row, state.row);
    if (!self) mark(source, activeCol(), state.col);
  }

  const MEASURES = [["itself", "mass on itself"], ["previous", "on the previous token"], ["next", "on the next token"], ["first", "on the first token"], ["last", "on the last token"], ["induction", "induction"], ["same", "on the same token before"], ["monotone", "along the diagonal"]];

  function drawFacts() {
    const own = site(), found = own.stats[state.layer][state.head], rows = [];
    const row = (label, text, share) => rows.push(make("tr", {}, make("td", {}, label), make("td", {}, text),
      make("td", { class: "meter" }, share === null ? "" : make("i", { style: `width:${Math.max(0, Math.min(1, share)) * 100}%` }))));
    row("entropy", found.entropy === null ? "–" : `${found.entropy.toFixed(2)} bits`, found.entropy_share);
    for (const [kind, label] of MEASURES) if (kind in found) row(label, found[kind] === null ? "–" : found[kind].toFixed(3), found[kind]);
    const loss = RUNS[state.run].loss;
    if (loss !== null) row("loss without this head", found.silenced === null ? "–" : `${found.silenced >= 0 ? "+" : "−"}${Math.abs(found.silenced).toFixed(4)}`, null);
    const about = DATA.tags[found.tag] ?? { spread: "its mass is spread over all that is visible", mixed: "no single pattern" }[found.tag];
    facts.replaceChildren(make("p", {}, make("span", { class: "badge", id: "tag" }, found.tag), " ", make("span", { class: "soft" }, about)),
      make("table", { class: "measures" }, ...rows),
      make("p", { class: "soft" }, loss === null ? "" : `The loss is ${loss.toFixed(4)}, the mean −log p of ${RUNS[state.run].loss_of}. “Without”: ${own.muted}.`));
  }

  async function drawRanking(now) {
    const own = site(), row = activeRow(), col = activeCol(), items = [];
    let title = "What heads are worth: the loss without each";
    if (row !== null && col !== null) {
      title = `Heads that look from ${names(own.rows)[row]} to ${names(own.cols)[col]}`;
      const i = Math.floor(row / own.factor), j = Math.floor(col / own.factor);
      const every = await Promise.all(own.maps.weights.flatMap((layer, n) => layer.map(async (about, h) => { const matrix = await unpack(about); return [at(matrix, i, j), n, h, matrix]; })));
      if (now !== turn) return;
      items.push(...every.sort((a, b) => b[0] - a[0]).slice(0, 8).map(([x, n, h, matrix]) => [n, h, show(x, matrix)]));
    } else if (state.row !== null) {
      title = `What heads look at most, from ${names(own.rows)[state.row]}`;
      const i = Math.floor(state.row / own.factor);
      const every = await Promise.all(own.maps.weights.flatMap((layer, n) => layer.map(async (about, h) => {
        const matrix = await unpack(about), weights = matrix.values.subarray(i * matrix.cols, (i + 1) * matrix.cols);
        const best = weights.reduce((b, x, s) => (x > weights[b] ? s : b), 0);
        return [weights[best], n, h, best, matrix];
      })));
      if (now !== turn) return;
      items.push(...every.sort((a, b) => b[0] - a[0]).slice(0, 8).map(([x, n, h, s, matrix]) => [n, h, `${names(own.cols)[Math.min(s * own.factor, names(own.cols).length - 1)]} ${show(x, matrix)}`]));
    } else if (own.stats[0][0].silenced !== null) {
      const every = own.stats.flatMap((layer, n) => layer.map((one, h) => [one.silenced, n, h]));
      items.push(...every.sort((a, b) => b[0] - a[0]).slice(0, 8).map(([x, n, h]) => [n, h, `${x >= 0 ? "+" : "−"}${Math.abs(x).toFixed(4)}`]));
    } else {
      title = "What heads are worth";
      items.length = 0;
    }
    const entries = items.map(([n, h, text]) => make("li", {}, make("button", { "data-id": `${n}-${h}`, onclick: () => set({ layer: n, head: h }) }, `layer ${own.layers[n]}, head ${h}`), make("span", { class: "soft" }, own.stats[n][h].tag), make("span", {}, text)));
    refill(ranking, make("h3", {}, title), make("ul", { class: "list" }, ...entries),
      make("p", { class: "soft" }, items.length ? "" : "Not measured: the model gives no prediction, or the page does not know how its heads are joined."));
  }

  async function drawOrder() {
    const parts = await Promise.all(RUNS[state.run].pictures.map(async (picture) => {
      const matrix = await unpack(picture.data), scale = scaleOf(matrix.low, matrix.high, true), canvas = make("canvas", { role: "img", "aria-label": picture.title });
      paint(canvas, matrixFigure({ matrix, scale, width: 320, names: null, mark: null, pinned: null }));
      return make("div", { class: "picture" }, make("b", {}, picture.title), make("p", { class: "soft" }, picture.text), canvas, legend(scale));
    }));
    order.replaceChildren(...parts);
  }

  // For a file: what is on the screen.
  async function figures() {
    const shown = await shownMaps(), own = site(), out = [];
    const where = `layer ${own.layers[state.layer]}, head ${state.head}: ${MAP_NAMES[state.map]}`;
    mapFigures(shown, 680).forEach((figure, i) => {
      if (figure) out.push({ title: two ? `${["", "", "difference, "][i]}${i < 2 ? `${RUNS[i].name}, ` : ""}${where}` : `${own.title}, ${where}`, formula: own.formulas[state.map] ?? "", text: "", figure, scale: scaleFor(shown, i) });
    });
    const figure = lineFigure(shown, 420);
    if (figure) out.push({ title: "Who looks at whom", text: "", figure });
    const thumbs = await Promise.all(own.thumbs.map((layer) => Promise.all(layer.map(unpack))));
    out.push({ title: "All heads", text: "rows are layers", figure: {
      width: own.heads * 46 + 30, height: own.layers.length * 46,
      draw(pen) {
        thumbs.forEach((layer, n) => {
          pen.text(0, n * 46 + 21, `L${own.layers[n]}`, { fill: variable("--soft"), font: SANS });
          layer.forEach((matrix, h) => pen.image(pixelsOf(matrix, null, scaleOf(0, matrix.high, matrix.low < 0)), 30 + h * 46, n * 46, 42, 42));
        });
        pen.frame(30 + state.head * 46 - 1, state.layer * 46 - 1, 44, 44, variable("--pin"), 2);
      },
    } });
    return out;
  }
  return { update, figures };
}

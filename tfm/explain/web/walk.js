// The walk: every stage from the text to the next token, with its formula, its shape, its numbers.

const SIZE_WORDS = { N: "layers", H: "heads", T: "tokens", S: "keys", D: "width", K: "head width", E: "value width", F: "hidden", V: "vocabulary", R: "distances" };

function walkView(root) {
  const toolbar = make("div", { class: "toolbar sticky" });
  const steps = make("nav", { class: "steps", "aria-label": "Stages" });
  const stages = make("div", { class: "stages" });
  root.append(toolbar, make("div", { class: "walk" }, steps, stages));
  let cards = [], built = "", panel = null;

  const walkNow = () => RUNS[state.run].walks[state.walk];
  const siteOf = (name) => RUNS[state.run].sites.findIndex((one) => one.name === name);

  function chooser(label, id, count, now, word, choose) {
    const select = make("select", { id, "aria-label": label, onchange: (event) => choose(event.target.value === "" ? null : Number(event.target.value)) });
    for (let i = 0; i < count; i++) select.append(make("option", { value: i, selected: i === now }, word(i)));
    return make("label", {}, label, select);
  }

  function drawToolbar() {
    const run = RUNS[state.run], walk = walkNow(), layers = layersOf(walk), heads = headsOf(run, walk);
    const site = run.sites.find((one) => walk.stages.some((stage) => stage.site === one.name)) ?? run.sites[state.site];
    const pieces = run.sequences[rowsOf(RUNS[state.run], walk)];
    const token = chooser("token", "choose-token", pieces.length, state.row, (i) => `${i}: ${visible(pieces[i][0])}`, (row) => set({ row }));
    token.lastChild.prepend(make("option", { value: "", selected: state.row === null }, "none"));
    refill(toolbar,
      ...(RUNS.length > 1 ? [chooser("run", "choose-walk-run", RUNS.length, state.run, (i) => RUNS[i].name, (i) => set({ run: i }))] : []),
      ...(run.walks.length > 1 ? [chooser("side", "choose-walk", run.walks.length, state.walk, (i) => run.walks[i].title, (i) => set({ walk: i, layer: 0, head: 0, row: null, site: Math.max(0, run.sites.findIndex((one) => one.name === run.walks[i].name)) }))] : []),
      ...(layers > 1 ? [chooser("layer", "choose-layer", layers, state.layer, (i) => String(site?.layers[i] ?? i), (i) => set({ layer: i }))] : []),
      ...(heads > 1 ? [chooser("head", "choose-head", heads, state.head, String, (i) => set({ head: i }))] : []),
      token);
  }

  function build() {
    const key = `${state.run} ${state.walk}`;
    if (built === key) return;
    built = key;
    panel = null;
    const walk = walkNow();
    cards = walk.stages.map((stage, i) => {
      const shapes = stage.pictures.map((p) => `${p.label.split(":")[0]}_${p.axes} = ${p.sizes.join(" × ")}`).join(",  ");
      const body = make("div", { class: "pictures" });
      const readout = make("div", { class: "readout" });
      const element = make("section", { class: "card stage", id: `stage-${stage.name}` },
        make("header", {}, make("span", { class: "number" }, String(i + 1)), make("h2", {}, stage.title), make("span", { class: "math" }, ...math(stage.formula))),
        stage.text ? make("p", { class: "soft" }, stage.text) : null,
        make("div", { class: "shape", title: [...new Set(stage.pictures.flatMap((p) => [...p.axes]))].map((axis) => `${axis}: ${SIZE_WORDS[axis] ?? axis}`).join(", ") }, shapes), body, readout);
      const card = { stage, element, body, readout, near: false, holders: [] };
      if (stage.shows === "bars") {
        panel = RUNS[state.run].next ? nextPanel(state.run) : null;
        body.append(panel ? panel.element : make("p", {}, "The model gives one number, and no choice."));
        body.style.display = "block";
      } else if (stage.shows === "pieces") body.append(pieceList(walk));
      else if (stage.shows) card.holders = [mapHolder(card)];
      card.holders.push(...stage.pictures.map((picture) => pictureHolder(card, picture)));
      return card;
    });
    stages.replaceChildren(...cards.map((card) => card.element));
    steps.replaceChildren(...cards.map((card, i) => make("a", { href: `#stage-${card.stage.name}`, onclick: (event) => { event.preventDefault(); card.element.scrollIntoView({ behavior: "auto" }); } }, `${i + 1}  ${card.stage.title}`)));
    for (const card of cards) {
      reserve(card);
      watcher.observe(card.element);
    }
  }

  // What is far from the screen is drawn when it comes near.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const card = cards.find((one) => one.element === entry.target);
      if (!card) continue;
      card.near = entry.isIntersecting;
      if (card.near) drawCard(card);
    }
    const first = cards.findIndex((card) => card.element.getBoundingClientRect().bottom > 140);
    [...steps.children].forEach((link, i) => link.classList.toggle("here", i === first));
  }, { rootMargin: "300px" });

  function pieceList(walk) {
    const pieces = RUNS[state.run].sequences[rowsOf(RUNS[state.run], walk)];
    return make("div", { class: "pieces" }, ...pieces.map(([text, id], i) => make("button", {
      class: "piece", "data-index": i, onclick: () => set({ row: state.row === i ? null : i }),
      onpointerenter: () => setHover(i, null), onpointerleave: () => setHover(null, null),
    }, make("b", {}, visible(text)), make("span", {}, String(id)))));
  }

  function pictureHolder(card, picture) {
    const canvas = make("canvas", { role: "img", "aria-label": picture.label }), values = make("div", { class: "values" });
    const note = picture.group > 1 ? ` (each cell: the mean of ${picture.group} features)` : picture.total ? ` (${picture.names.length} columns of ${picture.total})` : "";
    const holder = { picture, canvas, values, figure: null, legend: make("div") };
    card.body.append(make("div", { class: "picture" }, make("b", { class: "math" }, picture.label), make("span", { class: "soft" }, note), canvas, holder.legend, values));
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect(), f = holder.figure;
      if (!f) return;
      const col = Math.floor((event.clientX - box.left - f.box.left) / f.box.cell), row = Math.floor((event.clientY - box.top - f.box.top) / f.box.height);
      const inside = row >= 0 && col >= 0 && row < f.box.rows && col < f.box.cols;
      if (picture.rows === rowsOf(RUNS[state.run], walkNow())) setHover(inside ? row : null, null);
      const name = picture.rows && inside ? `${visible(RUNS[state.run].sequences[picture.rows][row][0])}, ` : "";
      const column = picture.names ? visible(picture.names[col] ?? "") : `feature ${col * picture.group}`;
      tip(event, inside && `${picture.label}: ${name}${column}: ${show(at(holder.matrix, row, col), holder.matrix)}`);
    });
    canvas.addEventListener("pointerleave", (event) => { setHover(null, null); tip(event, ""); });
    canvas.addEventListener("click", () => { if (picture.rows === rowsOf(RUNS[state.run], walkNow()) && hover.row !== null) set({ row: state.row === hover.row ? null : hover.row }); });
    return holder;
  }

  function mapHolder(card) {
    const canvas = make("canvas", { role: "img", "aria-label": card.stage.title });
    const holder = { site: card.stage.site, map: card.stage.shows, canvas, figure: null, legend: make("div") };
    const more = make("button", { onclick: () => set({ view: "attention", site: siteOf(holder.site), map: mapsOf(RUNS[state.run].sites[siteOf(holder.site)]).includes(holder.map) ? holder.map : "logits" }) }, "show in the attention view");
    card.body.append(make("div", { class: "picture" }, canvas, holder.legend, more));
    const pair = (event) => {
      const box = canvas.getBoundingClientRect(), own = RUNS[state.run].sites[siteOf(holder.site)];
      return holder.figure && pairAt(holder.figure.box, own.factor, event.clientX - box.left, event.clientY - box.top, RUNS[state.run].sequences[own.rows].length, RUNS[state.run].sequences[own.cols].length);
    };
    canvas.addEventListener("pointermove", (event) => {
      const found = pair(event), own = RUNS[state.run].sites[siteOf(holder.site)];
      setHover(found && found.row, found && found.col);
      if (!found) return tip(event, "");
      const i = Math.floor(found.row / own.factor), j = Math.floor(found.col / own.factor);
      const words = `${visible(RUNS[state.run].sequences[own.rows][found.row][0])} → ${visible(RUNS[state.run].sequences[own.cols][found.col][0])}`;
      tip(event, `${words}\n${holder.shown.mask && !at(holder.shown.mask, i, j) ? "hidden" : show(at(holder.shown.matrix, i, j), holder.shown.matrix)}`);
    });
    canvas.addEventListener("pointerleave", (event) => { setHover(null, null); tip(event, ""); });
    canvas.addEventListener("click", (event) => { const found = pair(event); if (found) set({ row: state.row === found.row ? null : found.row }); });
    return holder;
  }

  // The matrix of a picture for the chosen layer and head.
  function chosen(picture) {
    let data = picture.data;
    if (picture.lead > 0) data = data[Math.min(state.layer, data.length - 1)];
    if (picture.lead > 1) data = data[Math.min(state.head, data.length - 1)];
    return data;
  }

  // Room for what is not drawn yet, so that nothing moves when it is.
  function reserve(card) {
    const width = widthOf(card), run = RUNS[state.run], marks = {};
    for (const holder of card.holders) {
      if (holder.figure) continue;
      let figure;
      if (holder.picture) {
        const [rows, cols] = chosen(holder.picture).shape, sequence = run.sequences[holder.picture.rows];
        const names = sequence && sequence.length === rows ? sequence.map(([text]) => visible(text)) : null;
        figure = matrixFigure({ matrix: { rows, cols }, width, names, columns: holder.picture.names });
      } else {
        const own = run.sites[siteOf(holder.site)], texts = (sequence) => run.sequences[sequence].map(([text]) => visible(text));
        const [rows, cols] = own.maps.weights[0][0].shape;
        figure = heatMap({ matrix: { rows, cols }, width: Math.min(width, 520), factor: own.factor, rowNames: texts(own.rows), colNames: texts(own.cols), marks });
      }
      Object.assign(holder.canvas.style, { width: `${figure.width}px`, height: `${figure.height}px` });
    }
  }

  const widthOf = (card) => Math.max(220, Math.min(card.element.clientWidth - 34, 900));

  async function figureOf(holder, width) {
    if (holder.picture) {
      const matrix = await unpack(chosen(holder.picture)), sequence = RUNS[state.run].sequences[holder.picture.rows];
      holder.matrix = matrix;
      holder.scale = scaleOf(matrix.low, matrix.high, matrix.low < 0);
      const named = sequence && sequence.length === matrix.rows, own = named && holder.picture.rows === rowsOf(RUNS[state.run], walkNow());
      return matrixFigure({ matrix, scale: holder.scale, width, columns: holder.picture.names, names: named ? sequence.map(([text]) => visible(text)) : null, mark: own ? hover.row : null, pinned: own ? state.row : null });
    }
    const own = RUNS[state.run].sites[siteOf(holder.site)];
    const shown = await mapOf(own, own.maps[holder.map] || holder.map === "mask" ? holder.map : "logits", Math.min(state.layer, own.layers.length - 1), Math.min(state.head, own.heads - 1));
    holder.shown = shown;
    holder.scale = scaleOf(shown.matrix.low, shown.matrix.high, SIGNED.has(holder.map) || shown.matrix.low < 0);
    const texts = (sequence) => RUNS[state.run].sequences[sequence].map(([text]) => visible(text));
    return heatMap({ ...shown, scale: holder.scale, width: Math.min(width, 520), factor: own.factor, rowNames: texts(own.rows), colNames: texts(own.cols), marks: { row: hover.row, col: hover.col, pinnedRow: state.row, pinnedCol: null } });
  }

  async function drawCard(card, quick = false) {
    const width = widthOf(card);
    for (const holder of card.holders) {
      holder.figure = await figureOf(holder, width);
      paint(holder.canvas, holder.figure);
      if (!quick) holder.legend.replaceChildren(legend(holder.scale));
      if (holder.values) {
        const row = !holder.picture.rows ? 0 : holder.picture.rows === rowsOf(RUNS[state.run], walkNow()) ? activeRow() : null;
        const texts = row === null || row >= holder.matrix.rows ? [] : Array.from({ length: Math.min(8, holder.matrix.cols) }, (_, i) => show(at(holder.matrix, row, i), holder.matrix));
        holder.values.style.maxWidth = `${Math.max(150, holder.figure.width)}px`;
        holder.values.textContent = texts.length ? `[${texts.join(", ")}${holder.matrix.cols > 8 ? ", …" : ""}]` : "";
      }
    }
    if (card.stage.shows === "bars" && panel && !quick) await panel.update();
    if (card.stage.shows === "pieces") {
      for (const piece of card.body.querySelectorAll(".piece")) piece.classList.toggle("pinned", Number(piece.dataset.index) === state.row);
    }
  }

  async function update(before) {
    if (before !== null) {
      build();
      drawToolbar();
    }
    await Promise.all(cards.filter((card) => card.near).map((card) => drawCard(card, before === null)));
  }

  // For a file: all stages.
  async function figures() {
    const out = [], run = RUNS[state.run], walk = walkNow();
    const site = run.sites.find((one) => walk.stages.some((stage) => stage.site === one.name));
    const where = [`layer ${site?.layers[state.layer] ?? state.layer}`, `head ${state.head}`];
    for (const card of cards) {
      const { title, formula, shows } = card.stage;
      if (shows === "pieces") out.push({ title, text: "", figure: piecesFigure(run.sequences[rowsOf(run, walk)]) });
      let first = true;
      for (const holder of card.holders) {
        const figure = await figureOf(holder, 680), label = holder.picture ? `${holder.picture.label.split(":")[0]}_${holder.picture.axes}` : "";
        const lead = holder.site ? 2 : holder.picture.lead, chosen = lead ? ` (${where.slice(0, lead).join(", ")})` : "";
        out.push({ title: first ? `${title}${chosen}` : "", formula: first ? formula : "", text: label, figure, scale: holder.scale });
        first = false;
      }
      if (shows === "bars" && run.next) out.push({ title, formula, text: "", figure: await barsFigure(state.run) });
    }
    return out;
  }
  return { update, figures };
}

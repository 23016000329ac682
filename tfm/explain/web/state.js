// What is shown. It is written to the address, so that a link reopens the view.

const FIRST_STATE = {
  view: "walk", run: 0, walk: 0, site: 0, layer: 0, head: 0, map: "weights",
  row: null, col: null, // pinned tokens
  temperature: 1, topk: 0, topp: 1, position: null, pick: null, theme: "auto",
};
const WORDS = new Set(["view", "map", "theme"]);
const state = { ...FIRST_STATE };
const hover = { row: null, col: null };
const listeners = [];

function readHash() {
  const next = { ...FIRST_STATE };
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in next)) continue;
    const number = Number(text);
    if (WORDS.has(name)) next[name] = text;
    else if (text !== "" && Number.isFinite(number)) next[name] = number;
  }
  return next;
}

// Bring what a link asks for within what there is.
function fit(next) {
  const whole = (x, count, otherwise) => (Number.isInteger(x) && x >= 0 && x < count ? x : otherwise);
  next.run = whole(next.run, RUNS.length, 0);
  if (!["walk", "attention"].includes(next.view)) next.view = "walk";
  const attends = RUNS.findIndex((one) => one.sites.length);
  if (next.view === "attention" && !RUNS[next.run].sites.length && attends >= 0) next.run = attends;
  const run = RUNS[next.run];
  if (!["auto", "light", "dark"].includes(next.theme)) next.theme = "auto";
  next.walk = whole(next.walk, run.walks.length, 0);
  next.site = whole(next.site, run.sites.length, 0);
  const site = run.sites[next.site], walk = run.walks[next.walk];
  const limits = next.view === "walk" || !site
    ? { layers: layersOf(walk), heads: headsOf(run, walk), rows: rowsOf(run, walk) }
    : { layers: site.layers.length, heads: site.heads, rows: site.rows };
  next.layer = whole(next.layer, limits.layers, 0);
  next.head = whole(next.head, limits.heads, 0);
  if (site && !mapsOf(site).includes(next.map)) next.map = "weights";
  next.row = whole(next.row, run.sequences[limits.rows].length, null);
  next.col = whole(next.col, site ? run.sequences[site.cols].length : 1e9, null);
  next.temperature = Math.min(3, Math.max(0.05, next.temperature));
  next.topp = Math.min(1, Math.max(0.01, next.topp));
  next.topk = Math.max(0, Math.round(next.topk));
  return next;
}

// Of a walk: its layers, its heads, and the sequence whose tokens its rows are.
function layersOf(walk) {
  const counts = walk.stages.flatMap((stage) => stage.pictures.map((p) => (p.lead ? p.data.length : 1)));
  return Math.max(1, ...counts);
}

function headsOf(run, walk) {
  const pictures = walk.stages.flatMap((stage) => stage.pictures.filter((p) => p.lead === 2).map((p) => p.data[0].length));
  const maps = walk.stages.map((stage) => run.sites.find((one) => one.name === stage.site)?.heads ?? 1);
  return Math.max(1, ...pictures, ...maps);
}

function rowsOf(run, walk) {
  return walk.stages.flatMap((stage) => stage.pictures).find((p) => p.rows)?.rows ?? Object.keys(run.sequences)[0];
}

function set(changes) {
  const before = { ...state };
  Object.assign(state, fit({ ...state, ...changes }));
  const shown = Object.entries(state).filter(([name, x]) => x !== FIRST_STATE[name]);
  const hash = new URLSearchParams(shown.map(([name, x]) => [name, x === null ? "" : String(x)]));
  history.replaceState(null, "", `#${hash}`);
  for (const listen of listeners) listen(before);
}

function setHover(row, col) {
  if (hover.row === row && hover.col === col) return;
  Object.assign(hover, { row, col });
  for (const listen of listeners) listen(null);
}

const activeRow = () => hover.row ?? state.row;
const activeCol = () => hover.col ?? state.col;
const siteNow = () => RUNS[state.run].sites[state.site];

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
  const run = RUNS[next.run];
  if (!["walk", "attention"].includes(next.view)) next.view = "walk";
  if (!["auto", "light", "dark"].includes(next.theme)) next.theme = "auto";
  next.walk = whole(next.walk, run.walks.length, 0);
  next.site = whole(next.site, run.sites.length, 0);
  const site = run.sites[next.site];
  const layers = site ? site.layers.length : layersOf(run.walks[next.walk]);
  next.layer = whole(next.layer, layers, 0);
  next.head = whole(next.head, site ? site.heads : 1, 0);
  if (site && !mapsOf(site).includes(next.map)) next.map = "weights";
  next.row = whole(next.row, site ? run.sequences[site.rows].length : 1e9, null);
  next.col = whole(next.col, site ? run.sequences[site.cols].length : 1e9, null);
  next.temperature = Math.min(3, Math.max(0.05, next.temperature));
  next.topp = Math.min(1, Math.max(0.01, next.topp));
  next.topk = Math.max(0, Math.round(next.topk));
  return next;
}

function layersOf(walk) {
  const counts = walk.stages.flatMap((stage) => stage.pictures.map((p) => (p.lead ? p.data.length : 1)));
  return Math.max(1, ...counts);
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

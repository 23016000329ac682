// The page as a whole: tabs, theme, keys, and when what is drawn.

const views = {
  walk: walkView(document.getElementById("view-walk")),
  attention: attentionView(document.getElementById("view-attention")),
};
let drawing = Promise.resolve();

function applyTheme() {
  const dark = state.theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : state.theme === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[state.theme];
}

function update(before) {
  if (before !== null) {
    applyTheme();
    for (const name of Object.keys(views)) {
      document.getElementById(`view-${name}`).hidden = name !== state.view;
      document.getElementById(`tab-${name}`).setAttribute("aria-selected", name === state.view);
    }
  }
  drawing = views[state.view].update(before);
}
listeners.push(update);

for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => set({ view: button.dataset.view }));
}
document.getElementById("theme").addEventListener("click", cycleTheme);
document.getElementById("keys").addEventListener("click", () => document.getElementById("help").showModal());
document.getElementById("save-svg").addEventListener("click", async () => save(new Blob([await svgText(views[state.view])], { type: "image/svg+xml" }), `${state.view}.svg`));
document.getElementById("save-png").addEventListener("click", async () => save(await pngBlob(views[state.view]), `${state.view}.png`));

function cycleTheme() {
  set({ theme: { auto: "light", light: "dark", dark: "auto" }[state.theme] });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const site = siteNow(), layers = site ? site.layers.length : layersOf(RUNS[state.run].walks[state.walk]), heads = site ? site.heads : 1;
  const around = (x, step, count) => (x + step + count) % count;
  const act = {
    1: () => set({ view: "walk" }),
    2: () => set({ view: "attention" }),
    "[": () => set({ layer: around(state.layer, -1, layers) }),
    "]": () => set({ layer: around(state.layer, 1, layers) }),
    ",": () => set({ head: around(state.head, -1, heads) }),
    ".": () => set({ head: around(state.head, 1, heads) }),
    m: () => { const maps = site ? mapsOf(site) : ["weights"]; set({ map: maps[around(maps.indexOf(state.map), 1, maps.length)] }); },
    t: cycleTheme,
    "?": () => document.getElementById("help").showModal(),
    Escape: () => { setHover(null, null); set({ row: null, col: null, pick: null }); },
  }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (act) act();
});

window.addEventListener("hashchange", () => set(readHash()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => set({}));
let resizing = 0;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => set({}), 80);
});

document.getElementById("run-names").textContent = RUNS.map((run) => run.name).join(" and ");
document.getElementById("text").textContent = DATA.text;
document.getElementById("facts").append(...RUNS.flatMap((run, i) => [
  ...(RUNS.length > 1 ? [make("div", {}, make("dt", {}, `${i ? "| " : ""}run`), make("dd", {}, run.name))] : []),
  ...run.facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  ...(run.loss === null ? [] : [make("div", {}, make("dt", {}, "loss"), make("dd", {}, run.loss.toFixed(4)))]),
]));
document.getElementById("notes").append(...DATA.notes.map((note) => make("li", {}, note)));
// For a console, and for tests: what is shown, how to change it, and when it is drawn.
window.tfmExplain = { state, set, drawn: () => drawing, probabilities, svg: () => svgText(views[state.view]) };
set(readHash());

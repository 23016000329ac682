// The data of the page, unpacked when something is drawn.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const unpacked = new Map(); // blob number → promise of a matrix
const ready = new Map(); // blob number → the matrix itself, once it is there

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function decode(about) {
  const buffer = await inflate(DATA.blobs[about.blob]);
  const [rows, cols] = about.shape;
  const { low, high, base, power } = about;
  if (about.type === "f4") {
    return { rows, cols, values: new Float32Array(buffer), low, high };
  }
  const codes = new Uint8Array(buffer);
  if (about.type === "bits") return { rows, cols, values: Float32Array.from(codes), low, high };
  const known = Float32Array.from({ length: 256 }, (_, c) => base + (c / 255) ** power * (high - base));
  const values = Float32Array.from(codes, (c) => known[c]);
  return { rows, cols, values, low, high, gap: power === 1 ? known[1] - known[0] : null, least: known[1] };
}

// A promise of {rows, cols, values, low, high}.
function unpack(about) {
  if (!unpacked.has(about.blob)) {
    unpacked.set(about.blob, decode(about).then((matrix) => {
      ready.set(about.blob, matrix);
      return matrix;
    }));
  }
  return unpacked.get(about.blob);
}

const at = (matrix, row, col) => matrix.values[row * matrix.cols + col];

// Which maps a site has, in the order in which they are offered.
const MAP_NAMES = {
  weights: "weights", value: "value-weighted", logits: "logits", mask: "mask", score: "scores",
  bias: "bias", content_content: "content · content", content_position: "content · position",
  position_content: "position · content", position_position: "position · position",
};
const SIGNED = new Set(["logits", "score", "bias", "content_content", "content_position",
  "position_content", "position_position"]);

function mapsOf(site) {
  return Object.keys(MAP_NAMES).filter((name) =>
    name === "mask" ? site.mask : name === "value" ? site.norms : site.maps[name]);
}

function maskOf(site, layer, head) {
  if (!site.mask) return null;
  const row = site.mask[site.mask.length > 1 ? layer : 0];
  return row[row.length > 1 ? head : 0];
}

const weighted = new Map(); // weights times what their values move
const products = new Map(); // terms of the score

// The product of two matrices of vectors, as a map.
function product(left, right, mask) {
  const values = new Float32Array(left.rows * right.rows);
  let low = Infinity, high = -Infinity;
  for (let t = 0; t < left.rows; t++) {
    for (let s = 0; s < right.rows; s++) {
      let sum = 0;
      for (let k = 0; k < left.cols; k++) sum += at(left, t, k) * at(right, s, k);
      const i = t * right.rows + s;
      values[i] = sum;
      if (!mask || mask.values[i]) { low = Math.min(low, sum); high = Math.max(high, sum); }
    }
  }
  return { rows: left.rows, cols: right.rows, values, low, high };
}

// A promise of {matrix, mask}: mask is null, or a matrix of 0 and 1. Null where there is no such map.
async function mapOf(site, name, layer, head) {
  const hidden = maskOf(site, layer, head), mask = hidden && await unpack(hidden);
  if (name === "mask") return mask && { matrix: { ...mask, low: 0, high: 1 }, mask: null };
  const own = name === "value" ? site.maps.weights : site.maps[name];
  if (!own || !own[layer] || !own[layer][head]) return null;
  const about = own[layer][head];
  if (about.left) {
    const key = `${about.left.blob} ${about.right.blob}`;
    if (!products.has(key)) products.set(key, product(await unpack(about.left), await unpack(about.right), mask));
    return { matrix: products.get(key), mask };
  }
  const matrix = await unpack(about);
  if (name !== "value") return { matrix, mask };
  const key = own[layer][head].blob;
  if (!weighted.has(key)) {
    const norms = await unpack(site.norms[layer]), f = site.factor, values = new Float32Array(matrix.values.length);
    let high = 0;
    for (let s = 0; s < matrix.cols; s++) {
      let norm = 0, count = 0;
      for (let u = s * f; u < Math.min((s + 1) * f, norms.cols); u++) { norm += at(norms, head, u); count++; }
      for (let t = 0; t < matrix.rows; t++) {
        const value = at(matrix, t, s) * norm / count;
        values[t * matrix.cols + s] = value;
        high = Math.max(high, value);
      }
    }
    weighted.set(key, { ...matrix, values, low: 0, high, least: matrix.high ? matrix.least * high / matrix.high : matrix.least });
  }
  return { matrix: weighted.get(key), mask };
}

// How a number is written: as exactly as `matrix`, which it was read off, holds it. One of 8 bits has
// a `gap` between two numbers, or, where small numbers are nearer to each other, a `least` above 0.
function show(x, matrix = {}) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (matrix.gap) return `≈${x.toFixed(Math.max(0, Math.round(-Math.log10(matrix.gap))))}`.replace("-", "−");
  if (matrix.least) return size < matrix.least ? `<${matrix.least.toPrecision(1)}` : `≈${Number(x.toPrecision(2))}`.replace("-", "−");
  const text = size === 0 ? "0" : size >= 1000 || size < 0.001 ? x.toExponential(1)
    : x.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return text.replace("-", "−");
}

// Spaces and control characters, as signs that can be seen.
const SIGNS = { "\n": "⏎", "\t": "⇥", " ": "·", "\x7f": "␡" };
const visible = (text) => text.replace(/[\0-\x20\x7f]/g, (c) => SIGNS[c] ?? String.fromCharCode(0x2400 + c.charCodeAt(0)));

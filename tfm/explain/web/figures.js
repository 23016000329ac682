// Figures: objects {width, height, draw(pen)}, for the screen and for a file alike.

const pixels = new WeakMap(); // matrix → its picture, one pixel for each cell

function pixelsOf(matrix, mask, scale) {
  const key = `${isDark()} ${scale.kind} ${scale.low} ${scale.high}`;
  const known = pixels.get(matrix);
  if (known && known.key === key && known.mask === mask) return known.canvas;
  const canvas = make("canvas", { width: matrix.cols, height: matrix.rows });
  const context = canvas.getContext("2d"), image = context.createImageData(matrix.cols, matrix.rows);
  const hidden = variable("--hidden"), none = [1, 3, 5].map((i) => parseInt(hidden.slice(i, i + 2), 16));
  const colors = table(scale.kind), share = 255 / (scale.high - scale.low), { values } = matrix;
  for (let i = 0; i < values.length; i++) {
    const code = Math.max(0, Math.min(255, Math.round((values[i] - scale.low) * share)));
    const color = mask && !mask.values[i] ? none : colors[code];
    image.data[4 * i] = color[0];
    image.data[4 * i + 1] = color[1];
    image.data[4 * i + 2] = color[2];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  pixels.set(matrix, { key, mask, canvas });
  return canvas;
}

const shortened = (text, most = 12) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const LABELLED = 10; // pixels that a row needs for a label

// A map with tokens at its sides. Marked are rows and columns that are active or pinned.
function heatMap({ matrix, mask, scale, width, rowNames, colNames, factor, marks }) {
  const longest = (names) => Math.max(...names.map((name) => shortened(name).length)) * 6.6 + 10;
  let left = longest(rowNames), top = longest(colNames);
  const square = matrix.rows === matrix.cols;
  const size = (space) => Math.min(44, space / matrix.cols);
  const rowsFit = factor === 1 && (width - left) / matrix.cols >= LABELLED;
  if (!rowsFit) left = top = 6;
  const cell = size(width - left - 2), height = square ? cell : Math.max(Math.min(cell, 620 / matrix.rows), 0.5);
  const box = { left, top, cell, height, rows: matrix.rows, cols: matrix.cols };
  return {
    box,
    width: left + cell * matrix.cols + 2,
    height: top + height * matrix.rows + 2,
    draw(pen) {
      const ink = variable("--soft"), strong = variable("--ink");
      pen.image(pixelsOf(matrix, mask, scale), left, top, cell * matrix.cols, height * matrix.rows);
      pen.frame(left, top, cell * matrix.cols, height * matrix.rows, variable("--line"), 1);
      if (rowsFit) {
        rowNames.forEach((name, t) => {
          if (height >= LABELLED) pen.text(left - 5, top + (t + 0.5) * height, shortened(name), { size: 11, anchor: "end", fill: t === marks.row ? strong : ink, weight: t === marks.row ? 700 : 400 });
        });
        colNames.forEach((name, s) => {
          pen.text(left + (s + 0.5) * cell, top - 5, shortened(name), { size: 11, turn: -90, fill: s === marks.col ? strong : ink, weight: s === marks.col ? 700 : 400 });
        });
      }
      const frame = (row, col, color) => {
        const y = row === null ? top : top + Math.floor(row / factor) * height;
        const x = col === null ? left : left + Math.floor(col / factor) * cell;
        if (row !== null) pen.frame(left, y, cell * matrix.cols, Math.max(height, 2), color);
        if (col !== null) pen.frame(x, top, Math.max(cell, 2), height * matrix.rows, color);
      };
      frame(marks.row, marks.col, variable("--accent"));
      frame(marks.pinnedRow, marks.pinnedCol, variable("--pin"));
    },
  };
}

// Which token pair is at a point of a heat map, or null.
function pairAt(box, factor, x, y, rows, cols) {
  const s = Math.floor((x - box.left) / box.cell), t = Math.floor((y - box.top) / box.height);
  if (s < 0 || t < 0 || s >= box.cols || t >= box.rows) return null;
  return { row: Math.min(t * factor, rows - 1), col: Math.min(s * factor, cols - 1) };
}

const MANY = 64; // tokens: beyond that, lines are drawn for one token only

// Lines from the tokens that look (left) to those that are looked at (right).
function lines({ matrix, mask, scale, width, rowNames, colNames, factor, marks }) {
  const count = Math.max(rowNames.length, colNames.length);
  const step = Math.max(Math.min(20, 620 / count), 1);
  const labelled = step >= LABELLED, side = labelled ? Math.min(100, width / 3.2) : 74;
  const left = side, right = width - side, most = Math.max(...matrix.values.subarray(0, 65536), 1e-9) || 1;
  const y = (i) => 8 + (i + 0.5) * step;
  const row = marks.row, col = marks.col;
  return {
    step,
    width,
    height: 16 + count * step,
    draw(pen) {
      const ink = variable("--ink"), soft = variable("--soft"), accent = variable("--accent");
      const value = (t, s) => {
        const i = Math.floor(t / factor), j = Math.floor(s / factor);
        return mask && !at(mask, i, j) ? 0 : Math.max(at(matrix, i, j), 0);
      };
      const drawn = [];
      const from = row !== null ? [row] : rowNames.length <= MANY ? rowNames.map((_, t) => t) : col !== null ? rowNames.map((_, t) => t) : [];
      for (const t of from) {
        colNames.forEach((_, s) => {
          if (row === null && col !== null && s !== col) return;
          const share = value(t, s) / most;
          if (share > (from.length > 1 ? 0.04 : 0.01)) drawn.push([share, t, s]);
        });
      }
      drawn.sort((a, b) => a[0] - b[0]);
      for (const [share, t, s] of drawn.slice(-4000)) {
        pen.curve(left, y(t), right, y(s), accent, 0.6 + 3 * share, Math.min(1, 0.12 + 0.88 * share));
      }
      const named = new Set(); // the strongest, as far as their labels do not cover each other
      for (const [, , s] of drawn.slice(-12).reverse()) {
        if ([...named].every((other) => Math.abs(y(other) - y(s)) >= 12)) named.add(s);
      }
      const label = (names, x, anchor, mark, pinned, extra) => names.forEach((name, i) => {
        const strong = i === mark || i === pinned;
        if (!labelled && !strong && !extra.has(i)) return;
        const color = i === pinned ? variable("--pin") : strong ? ink : soft;
        pen.text(x, y(i), shortened(name, 13), { size: labelled ? Math.min(12, step) : 11, anchor, fill: color, weight: strong ? 700 : 400 });
      });
      label(rowNames, left - 6, "end", row, marks.pinnedRow, new Set());
      label(colNames, right + 6, "start", col, marks.pinnedCol, row === null ? new Set() : named);
      if (!drawn.length) pen.text(width / 2, 8 + (count * step) / 2, "hover or pin a token", { anchor: "center", fill: soft, font: SANS, size: 13 });
    },
  };
}

// A matrix of the walk: rows are tokens (or nothing), columns features, or what `columns` names.
function matrixFigure({ matrix, scale, width, names, mark, pinned, columns }) {
  const labelled = names && names.length === matrix.rows;
  const left = labelled && matrix.rows <= 40 ? Math.min(110, Math.max(...names.map((name) => shortened(name).length)) * 6.6 + 10) : 4;
  const cell = Math.max(0.5, Math.min(16, (width - left - 4) / matrix.cols));
  const texts = columns && cell >= LABELLED ? columns.map((name) => shortened(visible(name))) : [];
  const top = texts.length ? Math.max(...texts.map((text) => text.length)) * 6.6 + 10 : 2;
  const height = Math.max(1, Math.min(matrix.rows === 1 ? 26 : 15, 460 / matrix.rows));
  return {
    box: { left, top, cell, height, rows: matrix.rows, cols: matrix.cols },
    width: left + cell * matrix.cols + 4,
    height: top + height * matrix.rows + 2,
    draw(pen) {
      if (left > 4) {
        names.forEach((name, t) => pen.text(left - 5, top + (t + 0.5) * height, shortened(name), { size: Math.min(11, height), anchor: "end", fill: variable(t === mark ? "--ink" : "--soft"), weight: t === mark ? 700 : 400 }));
      }
      texts.forEach((text, i) => pen.text(left + (i + 0.5) * cell, top - 5, text, { size: 11, turn: -90, fill: variable("--soft") }));
      pen.image(pixelsOf(matrix, null, scale), left, top, cell * matrix.cols, height * matrix.rows);
      pen.frame(left, top, cell * matrix.cols, height * matrix.rows, variable("--line"), 1);
      if (labelled && mark !== null) pen.frame(left, top + mark * height, cell * matrix.cols, Math.max(height, 2), variable("--accent"));
      if (labelled && pinned !== null) pen.frame(left, top + pinned * height, cell * matrix.cols, Math.max(height, 2), variable("--pin"));
    },
  };
}

// Pieces and their ids, in lines.
function piecesFigure(pieces, width = 680) {
  let x = 0, y = 0;
  const placed = pieces.map(([text, id]) => {
    const own = Math.max(8 * visible(text).length, 7 * String(id).length) + 12;
    if (x + own > width) { x = 0; y += 40; }
    const place = { text: visible(text), id, x, y, width: own - 4 };
    x += own;
    return place;
  });
  return {
    width,
    height: y + 40,
    draw(pen) {
      for (const one of placed) {
        pen.frame(one.x, one.y, one.width, 34, variable("--line"), 1);
        pen.text(one.x + one.width / 2, one.y + 11, one.text, { anchor: "center", fill: variable("--ink"), size: 13 });
        pen.text(one.x + one.width / 2, one.y + 26, String(one.id), { anchor: "center", fill: variable("--soft"), size: 11 });
      }
    },
  };
}

// The colours of a scale, in a file.
function drawScale(pen, x, y, scale) {
  const style = { fill: variable("--soft"), font: SANS, size: 11 }, left = widthOfText(show(scale.low), 11, SANS) + 6;
  pen.text(x, y + 5, show(scale.low), style);
  pen.image(pixelsOf(stripOf(scale), null, scale), x + left, y, 110, 10);
  pen.text(x + left + 116, y + 5, show(scale.high), style);
}

const stripOf = (scale) => ({ rows: 1, cols: 64, values: Float32Array.from({ length: 64 }, (_, i) => scale.low + (i / 63) * (scale.high - scale.low)) });

// The colours of a scale, with its ends.
function legend(scale) {
  const strip = stripOf(scale), canvas = make("canvas", { "aria-hidden": "true" });
  paint(canvas, { width: 110, height: 10, draw: (pen) => pen.image(pixelsOf(strip, null, scale), 0, 0, 110, 10) });
  return make("div", { class: "legend" }, show(scale.low), canvas, show(scale.high));
}

// A few words beside the pointer.
function tip(event, text) {
  const box = document.getElementById("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

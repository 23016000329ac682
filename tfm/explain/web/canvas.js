// Two pens with the same strokes: one draws on a canvas, one writes SVG.

const MONO = "ui-monospace, Menlo, Consolas, monospace", SANS = "system-ui, sans-serif";

class CanvasPen {
  constructor(context) { this.context = context; }
  rect(x, y, width, height, fill) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }
  frame(x, y, width, height, stroke, thick = 1.5) {
    Object.assign(this.context, { strokeStyle: stroke, lineWidth: thick });
    this.context.strokeRect(x, y, width, height);
  }
  curve(x1, y1, x2, y2, stroke, thick, alpha) {
    const c = this.context, middle = (x1 + x2) / 2;
    Object.assign(c, { strokeStyle: stroke, lineWidth: thick, globalAlpha: alpha });
    c.beginPath();
    c.moveTo(x1, y1);
    c.bezierCurveTo(middle, y1, middle, y2, x2, y2);
    c.stroke();
    c.globalAlpha = 1;
  }
  text(x, y, text, { size = 12, anchor = "start", fill, font = MONO, turn = 0, weight = 400 } = {}) {
    const c = this.context;
    c.save();
    c.translate(x, y);
    c.rotate((turn * Math.PI) / 180);
    Object.assign(c, { fillStyle: fill, font: `${weight} ${size}px ${font}`, textAlign: anchor, textBaseline: "middle" });
    c.fillText(text, 0, 0);
    c.restore();
  }
  image(source, x, y, width, height) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(source, x, y, width, height);
  }
}

class SvgPen {
  constructor(width, height) { Object.assign(this, { width, height, parts: [] }); }
  rect(x, y, width, height, fill) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}"/>`);
  }
  frame(x, y, width, height, stroke, thick = 1.5) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="none" stroke="${stroke}" stroke-width="${thick}"/>`);
  }
  curve(x1, y1, x2, y2, stroke, thick, alpha) {
    const middle = (x1 + x2) / 2;
    this.parts.push(`<path d="M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}" fill="none" stroke="${stroke}" stroke-width="${thick}" stroke-opacity="${alpha}"/>`);
  }
  text(x, y, text, { size = 12, anchor = "start", fill, font = MONO, turn = 0, weight = 400 } = {}) {
    const where = { start: "start", center: "middle", end: "end" }[anchor];
    const turned = turn ? ` transform="rotate(${turn} ${x} ${y})"` : "";
    this.parts.push(`<text x="${x}" y="${y}" font-size="${size}" font-family="${font}" font-weight="${weight}" text-anchor="${where}" dominant-baseline="central" fill="${fill}" xml:space="preserve"${turned}>${escaped(text)}</text>`);
  }
  image(source, x, y, width, height) {
    this.parts.push(`<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${source.toDataURL()}"/>`);
  }
  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}">${this.parts.join("\n")}</svg>\n`;
  }
}

function escaped(text) {
  const signs = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  // Characters that XML does not allow become the sign for an unknown one.
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (c) => signs[c]);
}

// A pen that draws everything elsewhere.
const moved = (pen, dx, dy) => ({
  rect: (x, y, ...rest) => pen.rect(x + dx, y + dy, ...rest),
  frame: (x, y, ...rest) => pen.frame(x + dx, y + dy, ...rest),
  curve: (x1, y1, x2, y2, ...rest) => pen.curve(x1 + dx, y1 + dy, x2 + dx, y2 + dy, ...rest),
  text: (x, y, ...rest) => pen.text(x + dx, y + dy, ...rest),
  image: (source, x, y, ...rest) => pen.image(source, x + dx, y + dy, ...rest),
});

const ruler = document.createElement("canvas").getContext("2d");

function widthOfText(text, size, font) {
  ruler.font = `${size}px ${font}`;
  return ruler.measureText(text).width;
}

// A formula in a file.
function writeMath(pen, x, y, text, { size, ...style }) {
  text.split(SUBSCRIPT).forEach((part, i) => {
    const own = i % 2 ? 0.75 * size : size;
    pen.text(x, i % 2 ? y + 0.3 * size : y, part, { ...style, size: own });
    x += widthOfText(part, own, style.font);
  });
}

// Replace what an element holds. What had the keyboard's focus has it again.
function refill(box, ...children) {
  const now = box.contains(document.activeElement) ? document.activeElement : null;
  const name = now && ["value", "id"].find((one) => one in now.dataset);
  const key = now && (now.id ? `#${now.id}` : name && `${now.parentElement.id ? `#${now.parentElement.id} ` : ""}[data-${name}="${CSS.escape(now.dataset[name])}"]`);
  box.replaceChildren(...children);
  if (key) box.querySelector(key)?.focus({ preventScroll: true });
}

// Draw a figure ({width, height, draw}) on a canvas element, as sharp as the screen is.
function paint(canvas, figure) {
  const sharp = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(figure.width * sharp)), height = Math.max(1, Math.round(figure.height * sharp));
  if (canvas.width !== width || canvas.height !== height) {
    Object.assign(canvas, { width, height });
    canvas.style.width = `${figure.width}px`;
    canvas.style.height = `${figure.height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, figure.width, figure.height);
  figure.draw(new CanvasPen(context));
  canvas.figure = figure;
}

const SUBSCRIPT = /_(head|[A-Za-z]{1,2}(?![A-Za-z])|\d)/;

// A formula, with what follows "_" as a subscript.
function math(text) {
  return text.split(SUBSCRIPT).map((part, i) => (i % 2 ? make("sub", {}, part) : part));
}

// Make an element: make("button", {class: "head", onclick}, "text", child…). Text is never HTML.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

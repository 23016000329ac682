// The view as a file: its figures below each other, with their titles.

const FORMULA = { size: 13, font: SANS };

async function sheet(view) {
  const figures = await view.figures(), gap = 26, margin = 24;
  const about = `${RUNS.map((run) => run.name).join(" and ")}: ${shortened(DATA.text.replace(/\s+/g, " "), 90)}`;
  let height = margin + 30;
  const placed = figures.map(({ title, formula, text, figure, scale }) => {
    const y = height, lines = [title ? 22 : 0, formula ? 20 : 0, text ? 18 : 0];
    height += lines[0] + lines[1] + lines[2] + figure.height + (scale ? 20 : 0) + gap;
    return { title, formula, text, figure, scale, y, lines };
  });
  const wide = figures.map(({ title, formula, text, figure }) => Math.max(
    figure.width, 1.08 * widthOfText(title ?? "", 15, SANS), widthOfText(formula ?? "", FORMULA.size, FORMULA.font), widthOfText(text ?? "", 12, MONO)));
  const width = Math.ceil(Math.max(480, widthOfText(about, 13, SANS), ...wide) + 2 * margin);
  return {
    width,
    height: Math.ceil(height),
    draw(pen) {
      const ink = variable("--ink"), soft = variable("--soft");
      pen.rect(0, 0, width, Math.ceil(height), variable("--bg"));
      pen.text(margin, margin, about, { fill: soft, font: SANS, size: 13 });
      for (const { title, formula, text, figure, scale, y, lines } of placed) {
        if (title) pen.text(margin, y + 9, title, { fill: ink, font: SANS, size: 15, weight: 600 });
        if (formula) writeMath(pen, margin, y + lines[0] + 8, formula, { fill: soft, ...FORMULA });
        if (text) pen.text(margin, y + lines[0] + lines[1] + 7, text, { fill: soft, size: 12 });
        const top = y + lines[0] + lines[1] + lines[2];
        figure.draw(moved(pen, margin, top));
        if (scale) drawScale(pen, margin, top + figure.height + 6, scale);
      }
    },
  };
}

async function svgText(view) {
  const figure = await sheet(view), pen = new SvgPen(figure.width, figure.height);
  figure.draw(pen);
  return pen.toString();
}

async function pngBlob(view) {
  const figure = await sheet(view), sharp = figure.height * figure.width > 8e6 ? 1 : 2;
  const canvas = make("canvas", { width: figure.width * sharp, height: figure.height * sharp });
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  figure.draw(new CanvasPen(context));
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// The view as a file: its figures below each other, with their titles.

async function sheet(view) {
  const figures = await view.figures(), gap = 26, margin = 24;
  let height = margin + 30;
  const placed = figures.map(({ title, text, figure }) => {
    const head = (title ? 22 : 0) + (text ? 20 : 0), y = height;
    height += head + figure.height + gap;
    return { title, text, figure, y, head };
  });
  const width = Math.max(480, ...figures.map(({ figure }) => figure.width)) + 2 * margin;
  return {
    width: Math.ceil(width),
    height: Math.ceil(height),
    draw(pen) {
      pen.rect(0, 0, Math.ceil(width), Math.ceil(height), variable("--bg"));
      pen.text(margin, margin, shortened(`${RUNS.map((run) => run.name).join(" and ")}: ${DATA.text.replace(/\s+/g, " ")}`, 90), { fill: variable("--soft"), font: SANS, size: 13 });
      for (const { title, text, figure, y, head } of placed) {
        if (title) pen.text(margin, y + 9, title, { fill: variable("--ink"), font: SANS, size: 15, weight: 600 });
        if (text) pen.text(margin, y + (title ? 30 : 9), shortened(text, 110), { fill: variable("--soft"), font: SANS, size: 12 });
        figure.draw(moved(pen, margin, y + head));
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

"""Pictures of what the benches measure."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tfm.config.names import UserError

MARKS = "osD^vP*X"
MOST_TICKS = 6  # sizes that are written below an axis
# Okabe & Ito 2008: told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")


Curve = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves of points, both axes logarithmic."""

    title: str
    x: str
    y: str
    curves: Mapping[str, Curve]


def check(path: str | None) -> str | None:
    """The path of `--picture`, or None; raises at once if nothing could be written there."""
    if path is None:
        return None
    if find_spec("matplotlib") is None:
        raise UserError("--picture: matplotlib is not installed; " + extra("matplotlib"))
    from matplotlib.figure import Figure

    known, file = sorted(Figure().canvas.get_supported_filetypes()), pathlib.Path(path)
    if file.suffix[1:] not in known:
        raise UserError(f"--picture={path}: the name must end with one of .{', .'.join(known)}")
    if not file.parent.is_dir():
        raise UserError(f"--picture={path}: there is no folder {file.parent}")
    return path


def extra(package: str) -> str:
    """How to get what the benches need."""
    return f"pip install {package}, or the extra: pip install -e '.[bench]'"


def draw_steps(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Milliseconds of a step against its FLOPs, a panel for each number of cores."""
    panels = []
    for cores in dict.fromkeys(row["cores"] for row in rows):
        own = sorted((row for row in rows if row["cores"] == cores), key=lambda row: row["gflop"])
        curves = {who: [(row["gflop"], row["ms"][who]) for row in own] for who in own[0]["ms"]}
        panels.append(Panel(f"cores: {cores}", "GFLOP of a step", "milliseconds", curves))
    draw([panels], path)


def draw(rows: Sequence[Sequence[Panel]], path: str) -> None:
    """Rows of panels; a row may have fewer than another."""
    from matplotlib.figure import Figure

    columns = max(map(len, rows))
    figure = Figure(figsize=(4.5 * columns, 3.8 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for panels, axes in zip(rows, grid, strict=True):
        for axis in axes[len(panels) :]:
            axis.remove()
        for axis, panel in zip(axes, panels, strict=False):
            for n, (name, points) in enumerate(panel.curves.items()):
                xs, ys = zip(*points, strict=True)
                axis.plot(xs, ys, label=name, marker=MARKS[n], color=COLOURS[n], linewidth=1)
            axis.set(xscale="log", yscale="log", title=panel.title, xlabel=panel.x, ylabel=panel.y)
            sizes = sorted({x for points in panel.curves.values() for x, _ in points})
            if len(sizes) <= MOST_TICKS:  # else powers of ten
                axis.set_xticks(sizes, [f"{x:g}" for x in sizes])
                axis.xaxis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.legend()
    figure.savefig(path, dpi=150)

"""Pictures of what the benches measure."""

from collections.abc import Mapping, Sequence
from typing import Any

MARKS = "osD^vP*X"
# Okabe & Ito 2008: told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")


def draw_steps(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Milliseconds of a step against its FLOPs, a panel for each number of cores."""
    panels = list(dict.fromkeys(row["cores"] for row in rows))
    curves = {}
    for cores in panels:
        own = sorted((row for row in rows if row["cores"] == cores), key=lambda row: row["gflop"])
        curves[f"cores: {cores}"] = {
            who: [(row["gflop"], row["ms"][who]) for row in own] for who in own[0]["ms"]
        }
    draw(curves, "GFLOP of a step", "milliseconds", path)


def draw(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], x: str, y: str, path: str
) -> None:
    """Curves of points in panels side by side, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for n, (name, points) in enumerate(curves.items()):
            xs, ys = zip(*points, strict=True)
            axis.plot(xs, ys, label=name, marker=MARKS[n], color=COLOURS[n], linewidth=1)
        axis.set(xscale="log", yscale="log", title=title, xlabel=x, ylabel=y)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=150)

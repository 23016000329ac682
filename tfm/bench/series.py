"""Series of measurements that grow with a size: ratios, exponents, a table and a picture."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.bench import picture
from tfm.terminal import console, table

MEASURES = {  # of a row, with the title of its column and of its picture
    "ms": "milliseconds",
    "memory_mb": "MB of memory",
    "compile_s": "seconds to compile",
}


class Found(NamedTuple):
    """What was measured of one size of a series."""

    series: str
    size: int
    seconds: float | None  # None: it was not timed
    memory_mb: float
    compile_s: float | None


@dataclasses.dataclass(frozen=True)
class Row:
    axis: str
    series: str
    size: int
    ms: float | None  # the median over rounds; None: needs too much memory
    growth: float | None  # its time over that of the first row of the series
    rival: float | None  # its time over that of the first series in the same row
    memory_mb: float
    memory_rival: float | None
    compile_s: float | None


@dataclasses.dataclass(frozen=True)
class Exponent:
    """The slope of a series in logarithms: over all its rows, and between the last two."""

    axis: str
    series: str
    measure: str
    whole: float
    last: float


def rows_of(axis: str, found: Sequence[Found]) -> list[Row]:
    """The rows of one axis, in order. The first series of a size is the rival of the others."""
    first_of_series: dict[str, float | None] = {}
    first_of_row: dict[int, tuple[float | None, float]] = {}
    rows = []
    for series, size, seconds, memory, compile_s in found:
        begin = first_of_series.setdefault(series, seconds)
        rival, rival_memory = first_of_row.setdefault(size, (seconds, memory))
        rows.append(
            Row(
                axis,
                series,
                size,
                None if seconds is None else 1e3 * seconds,
                _ratio(seconds, begin),
                _ratio(seconds, rival),
                memory,
                _ratio(memory, rival_memory),
                compile_s,
            )
        )
    return rows


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def exponents(rows: Sequence[Row]) -> list[Exponent]:
    found = []
    for axis, series in dict.fromkeys((row.axis, row.series) for row in rows):
        own = [row for row in rows if (row.axis, row.series) == (axis, series)]
        for measure in MEASURES:
            points = points_of(own, measure)
            if len(points) > 1:
                found.append(Exponent(axis, series, measure, slope(points), slope(points[-2:])))
    return found


def points_of(rows: Sequence[Row], measure: str) -> list[tuple[float, float]]:
    """Size and measure of each row that has it; what is zero has no logarithm."""
    pairs = [(float(row.size), getattr(row, measure)) for row in rows]
    return [(x, y) for x, y in pairs if y]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent a of y = c·x^a, by least squares in logarithms."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def draw(rows: Sequence[Row], path: str) -> None:
    """Panels for each axis: time above, memory below, and by depth the compile time."""
    lines = []
    for measure, label in MEASURES.items():
        panels = []
        for axis in dict.fromkeys(row.axis for row in rows):
            own = [row for row in rows if row.axis == axis]
            series = dict.fromkeys(row.series for row in own)
            curves = {s: points_of([r for r in own if r.series == s], measure) for s in series}
            if any(curves.values()) and (measure != "compile_s" or axis == "depth"):
                panels.append(
                    picture.Panel(f"by {axis}", axis, label, {s: c for s, c in curves.items() if c})
                )
        lines += [panels] if panels else []
    picture.draw(lines, path)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print all rows, and the exponents of their series."""
    out = table(
        *("axis", "series", ">size", ">ms", ">growth\n×", ">rival\n×", ">memory\nMB", ">rival\n×"),
        ">compile\ns",
        title=title,
    )
    for row in rows:
        numbers = {
            "{:.1f}": (row.ms,),
            "{:.2f}": (row.growth, row.rival),
            "{:.2g}": (row.memory_mb, row.memory_rival, row.compile_s),
        }
        texts = [
            "—" if value is None else form.format(value)
            for form, values in numbers.items()
            for value in values
        ]
        out.add_row(row.axis, row.series, str(row.size), *texts)
    console().print(out, "")
    slopes = table("axis", "series", "of", ">exponent", ">of the last two rows")
    for one in exponents(rows):
        slopes.add_row(
            one.axis, one.series, MEASURES[one.measure], f"{one.whole:.2f}", f"{one.last:.2f}"
        )
    console().print(slopes)

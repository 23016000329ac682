"""Spaces of runs: the settings that are tried together.

A point is a dict of dotted keys and values; a space yields points. Axes are written as a dict of
lists, and `sweep()` of a study returns, for example,

    product({"model.attention.score": ["dot", "additive"]},
            when({"model.attention.score": "additive"}, {"model.attention.heads": [1, 4]}),
            seeds(5))

Any iterable of dicts is a space too. The key "config" chooses another base config for a point.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfm.config.names import UserError, suggest

Point = dict[str, Any]


class Space:
    """A set of points. In a product, it may depend on the values chosen before it."""

    def __init__(self, points: Callable[[Point], Iterator[Point]]):
        self.points = points

    def __iter__(self) -> Iterator[Point]:
        return self.points({})


Part = Space | Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]]


def product(*parts: Part) -> Space:
    """Combines every point of the first part with every point of the second, and so on."""
    spaces = [_space(part, "product") for part in parts]

    def points(before: Point, first: int = 0) -> Iterator[Point]:
        if first == len(spaces):
            yield {}
            return
        for point in spaces[first].points(before):
            _check_distinct("product", before, point)
            for rest in points({**before, **point}, first + 1):
                yield {**point, **rest}

    return Space(points)


def zipped(*parts: Part) -> Space:
    """Combines the first points of all parts, then the second ones, as `zip` does."""
    axes: list[Space] = []
    for part in parts:
        parts_of_it = [{key: part[key]} for key in part] if isinstance(part, Mapping) else [part]
        axes += [_space(axis, "zipped") for axis in parts_of_it]

    def points(before: Point) -> Iterator[Point]:
        columns = [list(axis.points(before)) for axis in axes]
        if len({len(column) for column in columns}) > 1:
            sizes = ", ".join(f"{len(c)} of {', '.join(c[0]) if c else '?'}" for c in columns)
            raise UserError(f"zipped: all parts must be equally long, not {sizes}")
        for row in zip(*columns, strict=True):
            joined: Point = {}
            for point in row:
                _check_distinct("zipped", joined, point)
                joined |= point
            yield joined

    return Space(points)


def chain(*parts: Part) -> Space:
    """Yields the points of the first part, then those of the second, and so on."""
    spaces = [_space(part, "chain") for part in parts]
    return Space(lambda before: itertools.chain(*(space.points(before) for space in spaces)))


def when(condition: Mapping[str, Any] | Callable[[Point], bool], part: Part) -> Space:
    """Yields the points of a part only if a condition holds for the point so far.

    The condition is a dict of keys with the value, or list of values, that they must have, or a
    function of the point so far.
    """
    space = _space(part, "when")

    def holds(before: Point) -> bool:
        if callable(condition):
            return bool(condition(dict(before)))
        for key, allowed in condition.items():
            if key not in before:
                raise UserError(
                    f"when: {key!r} has no value yet{suggest(key, before)}; "
                    "it must come earlier in the product"
                )
            if before[key] not in (allowed if isinstance(allowed, list | tuple) else (allowed,)):
                return False
        return True

    return Space(lambda before: space.points(before) if holds(before) else iter([{}]))


def seeds(count: int, first: int = 0) -> Space:
    """Yields `count` seeds, so that each point is run that often."""
    if type(count) is not int or count < 1:
        raise UserError(f"seeds({count!r}): write a whole number of at least 1")
    return _space({"seed": range(first, first + count)}, "seeds")


def _space(part: Part, where: str) -> Space:
    if isinstance(part, Space):
        return part
    if isinstance(part, Mapping):
        for key, values in part.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise UserError(f"{where}: {key!r} has {values!r}; write a list of values")
        rows = list(itertools.product(*part.values()))
        return Space(lambda _: (dict(zip(part, row, strict=True)) for row in rows))
    if isinstance(part, str) or not isinstance(part, Iterable):
        raise UserError(f"{where}: {part!r} is no space; write {{'a.key': [values]}}")
    points = list(part)
    for point in points:
        if not isinstance(point, Mapping):
            raise UserError(f"{where}: {point!r} is no point; write a dict of keys and values")
    return Space(lambda _: (dict(point) for point in points))


def within(key: str, group: str) -> bool:
    """Returns True if a dotted key is the group itself or below it."""
    return key == group or key.startswith(f"{group}.")


def _check_distinct(where: str, one: Point, other: Point) -> None:
    both = sorted(one.keys() & other.keys())
    if both:
        raise UserError(f"{where}: {', '.join(map(repr, both))} would be set twice in one point")

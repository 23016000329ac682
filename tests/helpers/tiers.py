"""Chooses the cases of the first tier; the others run in CI."""

from collections.abc import Iterable
from typing import Any

import pytest


def each_part_once(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Marks a case `ci` if each of its parts already occurs, at its place, in an earlier case."""
    seen, params = set(), []
    for case in cases:
        parts = set(enumerate(case))
        params.append(pytest.param(*case, marks=pytest.mark.ci if parts <= seen else ()))
        seen |= parts
    return params


def first_tier(names: Iterable[str], chosen: Iterable[str]) -> list[Any]:
    """Marks the names that are not chosen `ci`."""
    names, chosen = list(names), set(chosen)
    assert chosen <= set(names)
    return [pytest.param(n, marks=() if n in chosen else pytest.mark.ci) for n in names]

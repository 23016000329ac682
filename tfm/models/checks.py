"""What a family has no use for is an error: an option that does nothing would mislead."""

import dataclasses
from collections.abc import Collection
from typing import Any

from jax import Array

from tfm.names import UserError
from tfm.ops.shapes import check


def check_dropout(what: Any, places: Collection[str]) -> None:
    """Raise if something is to be dropped elsewhere than at `places`."""
    for place, rate in dataclasses.asdict(what.dropout).items():
        if rate is not None and place not in places:
            raise UserError(
                f"model.dropout.{place}={rate}: nothing is dropped there; this model drops at: "
                + ", ".join(places)
            )


def check_used(what: Any, places: Collection[str], *, attends: bool = False) -> None:
    """Raise if something is to be dropped elsewhere than at `places`, or to begin that is not."""
    check_dropout(what, places)
    if what.initial.by_depth:
        raise UserError("model.initial.by_depth: this model has no residual path")
    if what.initial.small_query and not attends:
        raise UserError("model.initial.small_query: this model does not attend")


def check_valid(name: str, valid: Array | None, sizes: dict[str, int]) -> None:
    """Raise unless `valid` is None, or booleans of the shape that its name ends in."""
    if valid is None:
        return
    check(name, valid, sizes)
    if valid.dtype != bool:
        raise UserError(f"{name} must be boolean, True = a real token, not {valid.dtype}")

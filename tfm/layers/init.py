"""Initial values of weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.nn import initializers

from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, call

Initializer = Callable[..., jax.Array]


def scaled(init: Initializer, factor: float) -> Initializer:
    return lambda key, shape, *rest: factor * init(key, shape, *rest)


def _check_positive(name: str, value: float) -> None:
    if value < 0:
        raise UserError(f"{name}={value} must be at least 0")


def normal(stddev: float = 0.02) -> Initializer:
    _check_positive("normal: stddev", stddev)
    return initializers.normal(stddev)


def truncated_normal(stddev: float = 0.02) -> Initializer:
    _check_positive("truncated_normal: stddev", stddev)
    return initializers.truncated_normal(stddev)


def uniform(limit: float = 0.1) -> Initializer:
    _check_positive("uniform: limit", limit)
    return lambda key, shape, dtype=float, *_: jax.random.uniform(key, shape, dtype, -limit, limit)


def lecun_normal() -> Initializer:
    return initializers.lecun_normal()


def he_normal() -> Initializer:
    return initializers.he_normal()


def glorot_normal() -> Initializer:
    return initializers.glorot_normal()


def glorot_uniform() -> Initializer:
    return initializers.glorot_uniform()


def orthogonal(scale: float = 1.0) -> Initializer:
    return initializers.orthogonal(scale)


INITIALIZERS: dict[str, Any] = {
    "normal": normal,
    "truncated_normal": truncated_normal,
    "uniform": uniform,
    "lecun_normal": lecun_normal,
    "he_normal": he_normal,
    "glorot_normal": glorot_normal,
    "glorot_uniform": glorot_uniform,
    "orthogonal": orthogonal,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitSpec(Spec):
    kernel: Named = call(lambda: INITIALIZERS, "lecun_normal")  # recurrent ones are orthogonal
    embedding: Named = call(lambda: INITIALIZERS, "normal(stddev=0.02)")
    scale_by_depth: bool = False  # what is added to the residual path starts at 1/√(number of sums)
    small_query: bool = False  # queries start at 1/√head_width, for the unscaled dot product (T5)

"""How weights begin."""

import dataclasses
import math

import jax
from flax.linen import initializers
from flax.typing import Initializer

from tfm.names import UserError

LECUN: Initializer = initializers.lecun_normal()
NORMAL: Initializer = initializers.normal(0.02)


def scaled(init: Initializer, factor: float) -> Initializer:
    return lambda key, shape, *rest: factor * init(key, shape, *rest)


def _positive(name: str, value: float) -> None:
    if value < 0:
        raise UserError(f"{name}={value} must be at least 0")


def normal(stddev: float = 0.02) -> Initializer:
    _positive("normal: stddev", stddev)
    return initializers.normal(stddev)


def truncated_normal(stddev: float = 0.02) -> Initializer:
    _positive("truncated_normal: stddev", stddev)
    return initializers.truncated_normal(stddev)


def uniform(limit: float = 0.1) -> Initializer:
    _positive("uniform: limit", limit)
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


@dataclasses.dataclass(frozen=True)
class Initial:
    """Where the weights of a stack begin."""

    kernel: Initializer = LECUN
    embedding: Initializer = NORMAL
    depth: int = 1  # sums on the residual path; what is added to it starts 1/√depth as large
    small_query: bool = False  # queries start 1/√head width as large, for the unscaled dot (T5)

    @property
    def residual(self) -> Initializer:
        """For the last kernel of a branch.  Radford et al. 2019, §2.3."""
        return self.kernel if self.depth == 1 else scaled(self.kernel, self.depth**-0.5)

    def query(self, head_width: int) -> Initializer:
        return scaled(self.kernel, 1 / math.sqrt(head_width)) if self.small_query else self.kernel


INITIALIZERS = {
    "normal": normal,
    "truncated_normal": truncated_normal,
    "uniform": uniform,
    "lecun_normal": lecun_normal,
    "he_normal": he_normal,
    "glorot_normal": glorot_normal,
    "glorot_uniform": glorot_uniform,
    "orthogonal": orthogonal,
}

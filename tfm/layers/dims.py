"""The sizes, precision, initial values, dropout and basic parameters that all layers share."""

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers
from jax.typing import ArrayLike

from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, call
from tfm.ops.fast import add_last, flat_product
from tfm.ops.positions import Position
from tfm.ops.reference import Dropout
from tfm.ops.scores import Score
from tfm.ops.shapes import AXES, check_number, check_positions, shape_of

Initializer = Callable[..., Array]
CODINGS = {
    "learned": "a trained vector for each token",
    "random": "a random vector for each token, which is not trained",
    "one_hot": "1 at the token's own place, 0 elsewhere; width is at least vocab",
    "scalar": "id / vocab, a point on a trained line",
}
DTYPES = {name: jnp.dtype(name) for name in ("float32", "bfloat16", "float16")}


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


scaling = initializers.variance_scaling
INITIALIZERS: dict[str, Any] = {
    "normal": normal,
    "truncated_normal": truncated_normal,
    "uniform": uniform,
    "lecun_normal": lambda: scaling(1.0, "fan_in", "truncated_normal"),
    "he_normal": lambda: scaling(2.0, "fan_in", "truncated_normal"),
    "glorot_normal": lambda: scaling(1.0, "fan_avg", "truncated_normal"),
    "glorot_uniform": lambda: scaling(1.0, "fan_avg", "uniform"),
    "orthogonal": lambda scale=1.0: initializers.orthogonal(scale),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitSpec(Spec):
    """Initial values of the weights."""

    kernel: Named = call(lambda: INITIALIZERS, "lecun_normal")  # recurrent ones are orthogonal
    embedding: Named = call(lambda: INITIALIZERS, "normal(stddev=0.02)")
    scale_by_depth: bool = False  # scales the last kernel of each branch by 1/√(number of sums)
    small_query: bool = False  # scales queries by 1/√head_width, for the unscaled dot product (T5)


def keep_bias(x: Array, kernel: Array, bias: Array | None, *, dtype: Any) -> tuple[Any, ...]:
    """Casts all but the bias to the dtype of the computation."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Affine(nn.Module):
    """A kernel (width × features), and a bias (features) or None, like `nn.DenseGeneral` has."""

    features: tuple[int, ...]
    use_bias: bool
    kernel_init: Initializer

    @nn.compact
    def __call__(self, width: int) -> tuple[Array, Array | None]:
        """Returns the weights for inputs of this width."""

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            return self.kernel_init(key, (width, math.prod(self.features))).reshape(shape)

        kernel = self.param("kernel", init, (width, *self.features))
        if not self.use_bias:
            return kernel, None
        return kernel, self.param("bias", initializers.zeros, self.features)


class Dense(nn.Module):
    """W x + b, where x and y may have several feature axes, such as heads.

    The product has the dtype of the computation; the bias is added in float32.
    """

    features: int | tuple[int, ...]
    axes: int = 1  # feature axes of the input
    use_bias: bool = True
    kernel_init: Initializer = initializers.lecun_normal()
    dtype: Any = DTYPES["float32"]
    product_dtype: Any = None  # of y; None: that of the computation

    @nn.compact
    def __call__(self, x: Array) -> Array:
        features = (self.features,) if isinstance(self.features, int) else self.features
        lead, inner = x.shape[: x.ndim - self.axes], x.shape[x.ndim - self.axes :]
        flat = math.prod(inner), math.prod(features)

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            return self.kernel_init(key, flat).reshape(shape)

        kernel = self.param("kernel", init, (*inner, *features)).reshape(flat)
        y = flat_product(
            x.reshape(*lead, -1).astype(self.dtype),
            kernel.astype(self.dtype),
            preferred_element_type=self.product_dtype,
        )
        if self.use_bias:
            bias = self.param("bias", initializers.zeros, features)
            y = add_last(y.astype(jnp.float32), bias.ravel())
        return y.astype(self.product_dtype or self.dtype).reshape(*lead, *features)


class Conv(nn.Conv):
    """A convolution whose bias is added in float32, so that its gradient is summed in float32."""

    promote_dtype: Any = keep_bias

    def __call__(self, x: Array) -> Array:
        y = super().__call__(x)
        return y.astype(self.dtype) if self.use_bias else y


@dataclasses.dataclass(frozen=True)
class Dims:
    """The settings that every layer of a model receives."""

    width: int
    max_length: int | None = None  # for parameters with an entry for each position
    causal: bool = False  # a token must not see later ones
    depth: int = 1  # number of sums on the residual path
    init: InitSpec = InitSpec()
    dtype: Any = DTYPES["float32"]  # of the computation; parameters are float32
    coding: str = "learned"  # how tokens become vectors, one of CODINGS

    @property
    def kernel_init(self) -> Initializer:
        return self.init.kernel.entry

    @property
    def residual_init(self) -> Initializer:
        """Initializer of the last kernel of a branch.  Radford et al. 2019, §2.3."""
        factor = self.depth**-0.5 if self.init.scale_by_depth else 1.0
        return self.kernel_init if factor == 1 else scaled(self.kernel_init, factor)

    def dense(self, features: int | tuple[int, ...], **options: Any) -> Dense:
        """Creates a dense layer; it belongs to the module that calls this."""
        return Dense(features, **{"dtype": self.dtype, "kernel_init": self.kernel_init, **options})


class Dropouts(NamedTuple):
    """A rate for each place where a model drops, and one key for all of them.

    The set of places is static; the rates are data.
    """

    rates: Mapping[str, ArrayLike]
    key: Array

    def at(self, place: str, site: str = "") -> Dropout | None:
        """Returns the dropout of `place`, if it is on; each site of a place has its own key."""
        if place not in self.rates:
            return None
        number = zlib.crc32(f"{site}/{place}".encode())
        return Dropout(self.rates[place], jax.random.fold_in(self.key, number))

    def within(self, number: ArrayLike | str) -> "Dropouts":
        """Returns the same rates with the key of a layer (by number) or a part (by name)."""
        data = zlib.crc32(number.encode()) if isinstance(number, str) else number
        return Dropouts(self.rates, jax.random.fold_in(self.key, data))


def drop(x: Array, dropouts: Dropouts | None, place: str, site: str = "") -> Array:
    """Sets a share of the numbers in `x` to 0 and scales up the rest."""
    dropout = None if dropouts is None else dropouts.at(place, site)
    if dropout is None:
        return x
    check_number(f"dropout.{place}", dropout.rate, lambda rate: 0 <= rate < 1, "in [0, 1)")
    rate = jax.lax.stop_gradient(jnp.asarray(dropout.rate, jnp.float32))
    kept = jax.random.uniform(dropout.key, x.shape) >= rate
    return jnp.where(kept, x / (1 - rate).astype(x.dtype), 0)


def positions(x_BTD: Array, pos_BT: Array | None) -> Array:
    """Returns the positions of x, by default its indices."""
    if pos_BT is None:
        return jnp.arange(x_BTD.shape[1])[None]
    return check_positions("pos_BT", pos_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})


def create_params(
    module: nn.Module, prefix: str, entry: Score | Position, sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Creates the parameters of `entry` in `module` as `prefix_name`; a name ends in its shape."""
    taken = sorted(set(entry.sizes) & set(AXES))
    if taken:
        axes = ", ".join(f"{axis} ({AXES[axis]})" for axis in taken)
        raise UserError(f"{prefix}: sizes={dict(entry.sizes)}: the library has {axes}")
    sizes = {**sizes, **entry.sizes}
    return {
        name: module.param(f"{prefix}_{name}", init, shape_of(name, sizes))
        for name, init in entry.params.items()
    }

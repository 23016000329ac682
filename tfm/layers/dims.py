"""What every layer of a model is given: its width, its precision, how its weights start."""

import dataclasses
import math
from typing import Any

from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.layers.init import Initializer, InitSpec, scaled
from tfm.ops.fast import add_last, flat_product

CODINGS = {
    "learned": "a vector for each token, which is trained",
    "random": "a vector for each token, which stays as it was drawn",
    "one_hot": "a 1 at the token's own place, zeros elsewhere; width is at least vocab",
    "scalar": "the id itself, as a share of vocab, along a line that is trained",
}
DTYPES = {name: jnp.dtype(name) for name in ("float32", "bfloat16", "float16")}


def keep_bias(x: Array, kernel: Array, bias: Array | None, *, dtype: Any) -> tuple[Any, ...]:
    """All but the bias in the type of the computation."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Float32Bias:
    """A layer of Flax whose bias is added in float32, so that its gradient, a sum over all tokens,
    is summed in float32."""

    def __call__(self, x: Array) -> Array:
        y = super().__call__(x)  # type: ignore[misc]
        return y.astype(self.dtype) if self.use_bias else y  # type: ignore[attr-defined]


class Dense(nn.Module):
    """W x + b, where x and y may have several axes of features, as heads.

    The product is in the type of the computation; the bias is added in float32.
    """

    features: int | tuple[int, ...]
    axes: int = 1  # of the input, that are summed over
    use_bias: bool = True
    kernel_init: Initializer = initializers.lecun_normal()
    dtype: Any = DTYPES["float32"]
    product_dtype: Any = None  # of y; None: the type of the computation

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


class Conv(Float32Bias, nn.Conv):
    promote_dtype: Any = keep_bias


@dataclasses.dataclass(frozen=True)
class Dims:
    width: int
    max_length: int | None = None  # of parameters with an entry for each position
    causal: bool = False  # a token must not see those after it
    depth: int = 1  # sums on the residual path
    init: InitSpec = InitSpec()
    dtype: Any = DTYPES["float32"]  # of the computation; parameters are float32
    coding: str = "learned"  # how tokens become vectors, one of CODINGS

    @property
    def kernel_init(self) -> Initializer:
        return self.init.kernel.entry

    @property
    def residual_init(self) -> Initializer:
        """For the last kernel of a branch.  Radford et al. 2019, §2.3."""
        factor = self.depth**-0.5 if self.init.scale_by_depth else 1.0
        return self.kernel_init if factor == 1 else scaled(self.kernel_init, factor)

    def dense(self, features: int | tuple[int, ...], **options: Any) -> Dense:
        """A dense layer; in a model it belongs to the module that calls this."""
        return Dense(features, **{"dtype": self.dtype, "kernel_init": self.kernel_init, **options})

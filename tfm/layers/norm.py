"""Norms: layer norm, RMS norm, batch norm, and a norm over whole sentences."""

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array, lax
from jax import numpy as jnp
from jax.nn import initializers
from jax.typing import DTypeLike

from tfm.config.spec import Named, Spec, choice, field
from tfm.layers.context import Context
from tfm.ops.fast import add_last, scale_last, standardize

PLACEMENTS = {
    "pre": "x + f(norm(x)): GPT-2, LLaMA, T5",
    "post": "norm(x + f(x)): the 2017 Transformer, BERT",
    "sandwich": "x + norm(f(norm(x))): Ding et al. 2021, Gemma 2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormSpec(Spec):
    """The norms of a Transformer, and where they are."""

    kind: Named = choice(lambda: NORMS, "layer", none=True)
    placement: Named = choice(lambda: PLACEMENTS, "pre")
    eps: float = field(1e-5, above=0)
    bias: bool = True  # of a LayerNorm
    embedding: bool = False  # also after the embeddings (BERT)
    final: bool | None = None  # also after the last layer; None: if placement is not "post"

    @property
    def has_final(self) -> bool:
        return self.placement != "post" if self.final is None else self.final


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm: `apply(spec, dtype, name, x_BTD, valid_BT, train)` returns the normalized x."""

    apply: Callable[..., Array]
    causal: bool = True  # the result for a token does not depend on later tokens


class TokenNorm(nn.Module):
    """Like `nn.LayerNorm` (`center`) and `nn.RMSNorm`, with a faster gradient."""

    eps: float
    dtype: DTypeLike
    center: bool
    use_bias: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        width = x.shape[-1:]
        y = standardize(x.astype(jnp.float32), self.eps, self.center)
        y = scale_last(y, self.param("scale", initializers.ones, width))
        if self.use_bias:
            y = add_last(y, self.param("bias", initializers.zeros, width))
        return y.astype(self.dtype)


def layer(spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, *_: Any) -> Array:
    """Computes (x − mean) / √(var + ε) · scale + bias over a token's features.  Ba et al. 2016."""
    return TokenNorm(spec.eps, dtype, True, spec.bias, name=name)(x_BTD)


def rms(spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, *_: Any) -> Array:
    """Computes x / √(mean x² + ε) · scale over a token's features.  Zhang & Sennrich 2019."""
    return TokenNorm(spec.eps, dtype, False, False, name=name)(x_BTD)


def batch(
    spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, valid_BT: Array | None, train: bool
) -> Array:
    """Normalizes each feature over all tokens of the batch; in evaluation by running
    averages.  Ioffe & Szegedy 2015."""
    norm = nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        epsilon=spec.eps,
        dtype=dtype,
        use_bias=spec.bias,
        use_fast_variance=False,
        name=name,
    )
    return norm(x_BTD, mask=None if valid_BT is None else valid_BT[..., None])


class SentenceNorm(nn.Module):
    """(x − mean) / √(var + ε) · scale + bias, over all features of all tokens of an example."""

    spec: NormSpec
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BTD: Array, valid_BT: Array | None) -> Array:
        where = None if valid_BT is None else valid_BT[..., None]
        x = x_BTD.astype(jnp.float32)
        mean = jnp.mean(x, (1, 2), keepdims=True, where=where)
        variance = jnp.var(x, (1, 2), keepdims=True, where=where)
        width = x_BTD.shape[-1:]
        scale_D = self.param("scale", initializers.ones, width)
        y_BTD = (x - mean) * lax.rsqrt(variance + self.spec.eps) * scale_D[None, None]
        if self.spec.bias:
            y_BTD += self.param("bias", initializers.zeros, width)[None, None]
        return y_BTD.astype(self.dtype)


def sentence(
    spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, valid_BT: Array | None, train: bool
) -> Array:
    """Computes (x − mean) / √(var + ε) · scale + bias over all features of all tokens."""
    return SentenceNorm(spec, dtype, name=name)(x_BTD, valid_BT)


def normalize(spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, context: Context) -> Array:
    """Normalizes x by the norm of a spec; the calling module owns the parameters."""
    norm: Norm | None = spec.kind.entry
    if norm is None:
        return x_BTD
    return norm.apply(spec, dtype, name, x_BTD, context.valid_BT, context.train)


NORMS: dict[str, Norm] = {
    "layer": Norm(layer),
    "rms": Norm(rms),
    "batch": Norm(batch),
    "sentence": Norm(sentence, causal=False),
}

"""Normalisation over the features of one token."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from tfm.names import pick

Norm = Callable[[str], Callable[[Array], Array]]  # a name → a layer of that name


def layer(eps: float, bias: bool, dtype: DTypeLike, name: str) -> nn.Module:
    """(x − mean) / √(var + ε) · scale + bias.  Ba et al. 2016."""
    return nn.LayerNorm(eps, dtype, use_bias=bias, use_fast_variance=False, name=name)


def rms(eps: float, bias: bool, dtype: DTypeLike, name: str) -> nn.Module:
    """x / √(mean x² + ε) · scale.  Zhang & Sennrich 2019."""
    return nn.RMSNorm(eps, dtype, name=name)


def none(eps: float, bias: bool, dtype: DTypeLike, name: str) -> Callable[[Array], Array]:
    return lambda x: x


NORMS: dict[str, Callable[..., Any]] = {"layer": layer, "rms": rms, "none": none}
PLACES = {
    "pre": "x + f(norm(x)): GPT-2, LLaMA, T5",
    "post": "norm(x + f(x)): the 2017 Transformer, BERT",
    "sandwich": "x + norm(f(norm(x))): Ding et al. 2021, Gemma 2",
}


def maker(kind: str, eps: float, bias: bool, dtype: DTypeLike) -> Norm:
    make = pick(NORMS, kind, "norm")
    return lambda name: make(eps, bias, dtype, name)

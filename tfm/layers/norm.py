"""Normalisation."""

import dataclasses
from collections.abc import Callable

from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from tfm.spec import Named, Spec, choice, field

PLACEMENTS = {
    "pre": "x + f(norm(x)): GPT-2, LLaMA, T5",
    "post": "norm(x + f(x)): the 2017 Transformer, BERT",
    "sandwich": "x + norm(f(norm(x))): Ding et al. 2021, Gemma 2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormSpec(Spec):
    kind: Named = choice(lambda: NORMS, "layer", none=True)
    placement: Named = choice(lambda: PLACEMENTS, "pre")
    eps: float = field(1e-5, above=0)
    bias: bool = True  # of a LayerNorm
    embedding: bool = False  # also after the embeddings (BERT)
    final: bool | None = None  # also after the last layer; None: unless placement is "post"

    @property
    def has_final(self) -> bool:
        return self.placement != "post" if self.final is None else self.final


@dataclasses.dataclass(frozen=True)
class Norm:
    """`apply(spec, dtype, name, x_BTD, valid_BT, train)` gives the normalised x."""

    apply: Callable[..., Array]
    causal: bool = True  # the result for a token does not depend on later tokens


def layer(
    spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, valid_BT: Array | None, train: bool
) -> Array:
    """(x − mean) / √(var + ε) · scale + bias, over the features of one token.  Ba et al. 2016."""
    norm = nn.LayerNorm(spec.eps, dtype, use_bias=spec.bias, use_fast_variance=False, name=name)
    return norm(x_BTD)


def rms(
    spec: NormSpec, dtype: DTypeLike, name: str, x_BTD: Array, valid_BT: Array | None, train: bool
) -> Array:
    """x / √(mean x² + ε) · scale, over the features of one token.  Zhang & Sennrich 2019."""
    return nn.RMSNorm(spec.eps, dtype, name=name)(x_BTD)


def normalize(
    spec: NormSpec,
    dtype: DTypeLike,
    name: str,
    x_BTD: Array,
    valid_BT: Array | None = None,
    train: bool = False,
) -> Array:
    """x as the norm of a spec leaves it. Its parameters belong to the module that calls this."""
    norm: Norm | None = spec.kind.entry
    return x_BTD if norm is None else norm.apply(spec, dtype, name, x_BTD, valid_BT, train)


NORMS: dict[str, Norm] = {"layer": Norm(layer), "rms": Norm(rms)}

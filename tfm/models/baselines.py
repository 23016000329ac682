"""Baselines for whole inputs: a bag of words and a convolutional classifier."""

from typing import TYPE_CHECKING, Any, Unpack

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.convolution import ConvolutionBlock, blank
from tfm.layers.dims import Dims, Dropouts, drop
from tfm.layers.embed import TokenEmbedding
from tfm.models.common import CallOptions, captured, check_valid, known, outputs

if TYPE_CHECKING:
    from tfm.models.spec import BagSpec, ConvolutionSpec


class Bag(nn.Module):
    """An MLP on the mean of the embeddings, which ignores order: logits (BV).  Iyyer et al. 2015.

    For two sentences it reads both means, their difference and their product.  Mou et al. 2016.
    """

    spec: "BagSpec"

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        types_BT: Array | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits. `types_BT` is 0 and 1 for tokens of two sentences. `capture` may name
        "states": the input of the MLP, and each hidden layer."""
        spec, dims, dropouts = self.spec, self.spec.dims(self.spec.width), options.get("dropouts")
        x_BTD = _embedded(spec, dims, tokens_BT, valid_BT, dropouts)
        if types_BT is None:
            x_BD = _mean(x_BTD, valid_BT)
        else:
            both_BT = jnp.ones(types_BT.shape, bool) if valid_BT is None else valid_BT
            u_BD, v_BD = (_mean(x_BTD, both_BT & (types_BT == n)) for n in (0, 1))
            x_BD = jnp.concatenate([u_BD, v_BD, jnp.abs(u_BD - v_BD), u_BD * v_BD], -1)
        states = {"states_0_BD": x_BD}
        for n, width in enumerate(spec.hidden):
            x_BD = spec.activation.entry(dims.dense(width, name=f"hidden_{n}")(x_BD))
            states[f"states_{n + 1}_BD"] = x_BD
            x_BD = drop(x_BD, dropouts, "feedforward", f"hidden_{n}")
        return _classified(spec, dims, x_BD, states, options)


def _mean(x_BTD: Array, valid_BT: Array | None) -> Array:
    if valid_BT is None:
        return jnp.mean(x_BTD, 1)
    count_B = jnp.maximum(jnp.sum(valid_BT, 1), 1).astype(x_BTD.dtype)
    return jnp.sum(x_BTD, 1, where=valid_BT[..., None]) / count_B[:, None]


class Convolution(nn.Module):
    """Blocks of convolutions, each window of which sees only its neighborhood: logits (BV) of the
    maximum of each channel over time.  Kim 2014."""

    spec: "ConvolutionSpec"

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits. With batch norm, `train` needs `mutable=["batch_stats"]`. `capture` may
        name "states": the output of each block, and the maximum of each channel."""
        spec, dims, dropouts = self.spec, self.spec.dims(self.spec.width), options.get("dropouts")
        x_BTD = _embedded(spec, dims, tokens_BT, valid_BT, dropouts)
        states, train = dict[str, Array](), options.get("train", False)
        for n, channels in enumerate(spec.channels):
            settings = spec.window, spec.pool, spec.batch_norm, spec.activation.entry
            block = ConvolutionBlock(channels, dims, *settings, name=f"block_{n}")
            within = None if dropouts is None else dropouts.within(n)
            x_BTD, valid_BT = block(x_BTD, valid_BT, train=train, dropouts=within)
            states[f"states_{n}_BTD"] = x_BTD
        x_BD = jnp.max(blank(x_BTD, valid_BT, -jnp.inf), 1)
        if valid_BT is not None:
            x_BD = jnp.where(jnp.any(valid_BT, 1)[:, None], x_BD, 0)
        states["pooled_BD"] = x_BD
        return _classified(spec, dims, x_BD, states, options)


def _embedded(
    spec: Any, dims: Dims, tokens_BT: Array, valid_BT: Array | None, dropouts: Dropouts | None
) -> Array:
    x_BTD = TokenEmbedding(known(spec.vocab), dims, name="embed")(tokens_BT)
    check_valid("valid_BT", valid_BT, {"B": x_BTD.shape[0], "T": x_BTD.shape[1]})
    return drop(x_BTD, dropouts, "embedding")


def _classified(
    spec: Any, dims: Dims, x_BD: Array, states: dict[str, Array], options: CallOptions
) -> Any:
    capture = captured(options, "states")
    x_BD = drop(x_BD, options.get("dropouts"), "head")
    logits_BV = dims.dense(known(spec.classes), name="head")(x_BD).astype(jnp.float32)
    return outputs(logits_BV, capture, states if "states" in capture else {})

"""One layer of a Transformer: attention, cross-attention and feed-forward on a residual path."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from tfm.layers.attention import MultiHeadAttention
from tfm.layers.feedforward import FeedForward
from tfm.layers.norm import Norm
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.masks import Mask

Made = dict[str, Array]  # intermediates by name


class Context(NamedTuple):
    """What every layer of a stack is given besides its input."""

    mask: Mask
    pos_BT: Array | None = None
    position_params: Mapping[str, Array] | None = None
    source_BSD: Array | None = None
    source_mask: Mask | None = None
    source_pos_BS: Array | None = None
    dropouts: Dropouts | None = None


class Block(nn.Module):
    """Each part reads the residual path and adds to it, in sequence or all at once.

    A part that is None is left out. `want` names what is returned beside the states: "states",
    "weights" (of attention, which then holds the whole matrix).
    """

    norm: Norm
    attention: Callable[..., MultiHeadAttention] | None
    cross: Callable[..., MultiHeadAttention] | None
    feedforward: Callable[..., FeedForward] | None
    place: str = "pre"  # of the norms
    residual: bool = True
    parallel: bool = False  # Wang & Komatsuzaki 2021; one norm serves all parts
    want: tuple[str, ...] = ()

    @nn.compact
    def __call__(self, x_BTD: Array, number: ArrayLike, context: Context) -> tuple[Array, Made]:
        dropouts = None if context.dropouts is None else context.dropouts.within(number)
        made: Made = {}

        def look(name: str, module: MultiHeadAttention, x_BTD: Array, **options) -> Array:
            dropout = None if dropouts is None else dropouts.at("attention", name)
            if "weights" not in self.want:
                return module(x_BTD, dropout=dropout, **options)
            out, made[name] = module(x_BTD, dropout=dropout, return_weights=True, **options)
            return out

        branches: dict[str, Callable[[Array], Array]] = {}
        if self.attention is not None:
            branches["attention"] = functools.partial(
                look,
                "weights_BHTS",
                self.attention(name="attention"),
                mask=context.mask,
                q_pos_BT=context.pos_BT,
                position_params=context.position_params,
            )
        if self.cross is not None:
            branches["cross"] = functools.partial(
                look,
                "cross_weights_BHTS",
                self.cross(name="cross"),
                source_BSD=context.source_BSD,
                mask=context.source_mask,
                q_pos_BT=context.pos_BT,
                k_pos_BS=context.source_pos_BS,
            )
        if self.feedforward is not None:
            branches["feedforward"] = functools.partial(
                self.feedforward(name="feedforward"), dropouts=dropouts
            )
        if self.parallel:
            parts = tuple(branches.values())
            branches = {"all": lambda x: functools.reduce(jnp.add, (part(x) for part in parts))}
        for name, branch in branches.items():
            prefix = "" if self.parallel else f"{name}_"
            out_BTD = x_BTD if self.place == "post" else self.norm(f"{prefix}norm")(x_BTD)
            out_BTD = branch(out_BTD)
            if self.place == "sandwich":
                out_BTD = self.norm(f"{prefix}out_norm")(out_BTD)
            out_BTD = drop(out_BTD, dropouts, "residual", name)
            x_BTD = x_BTD + out_BTD if self.residual else out_BTD
            if self.place == "post":
                x_BTD = self.norm(f"{prefix}norm")(x_BTD)
        if "states" in self.want:
            made["states_BTD"] = x_BTD
        return x_BTD, made

"""N layers, scanned (compiled once) or unrolled; their positions before, a norm after."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers import params
from tfm.layers.block import Block, Context, Made
from tfm.layers.embed import PositionTable
from tfm.layers.norm import Norm
from tfm.names import UserError, pick
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.masks import Mask
from tfm.ops.positions import Position

REMAT: dict[str, Any] = {  # what the backward pass finds kept, besides each layer's input
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}
SCANNED, UNROLLED = "layers", re.compile(r"layer_(\d+)")


class Stack(nn.Module):
    """From embeddings to states, with what was wanted on the way, stacked over layers (N).

    From one key, scanned and unrolled layers begin with different numbers of the same kind.
    """

    layers: int
    block: Mapping[str, Any]  # the fields of a Block
    norm: Norm
    sizes: Mapping[str, int]  # of what a position scheme's parameters may ask for
    table: Callable[..., PositionTable]
    position: Position
    share_position: bool = True  # one set of its parameters for all layers, as in T5
    embed_norm: bool = False
    final_norm: bool = True
    scan: bool = True
    remat: str = "none"

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        *,
        mask: Mask,
        pos_BT: Array | None = None,
        source_BSD: Array | None = None,
        source_mask: Mask | None = None,
        source_pos_BS: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Array, Made]:
        x_BTD = self.table(name="table")(x_BTD, pos_BT)
        if self.embed_norm:
            x_BTD = self.norm("embed_norm")(x_BTD)
        x_BTD = drop(x_BTD, dropouts, "embedding")
        made: Made = {"embedding_BTD": x_BTD} if "states" in want else {}
        shared = None
        if self.share_position and self.block["attention"] is not None:
            shared = params.create(self, "position", self.position, self.sizes) or None
        context = Context(mask, pos_BT, shared, source_BSD, source_mask, source_pos_BS, dropouts)
        if "weights" in want and self.block["attention"] is self.block["cross"] is None:
            raise UserError('want=("weights",): this model has no attention')

        kind: Any = Block
        policy = pick(REMAT, self.remat, "remat")
        if self.remat != "none":
            kind = nn.remat(Block, prevent_cse=not self.scan, policy=policy)
        if self.scan:
            layers = _scan(kind, self.layers)(**self.block, want=want, name=SCANNED)
            x_BTD, each = layers(x_BTD, jnp.arange(self.layers), context)
        else:
            each = []
            for n in range(self.layers):
                layer = kind(**self.block, want=want, name=f"layer_{n}")
                x_BTD, own = layer(x_BTD, n, context)
                each.append(own)
            each = jax.tree.map(lambda *xs: jnp.stack(xs), *each)
        made |= {re.sub("_B", "_NB", name): value for name, value in each.items()}
        if self.final_norm:
            x_BTD = self.norm("norm")(x_BTD)
        if "states" in want:
            made["final_BTD"] = x_BTD
        return drop(x_BTD, dropouts, "output"), made


def _scan(kind: Any, layers: int) -> Any:
    return nn.scan(
        kind,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast),
        length=layers,
    )


def scanned(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of unrolled layers (`layer_0`, `layer_1`…) as a scanned model holds them."""
    numbers = sorted(int(m[1]) for name in tree if (m := UNROLLED.fullmatch(name)))
    out = {
        name: scanned(value) if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if not UNROLLED.fullmatch(name)
    }
    if numbers:
        each = [tree[f"layer_{n}"] for n in numbers]
        if numbers != list(range(len(numbers))):
            raise UserError(f"layers {numbers} are not all that a model has: some are missing")
        out[SCANNED] = jax.tree.map(_stack, *each)
    return out


def _stack(*leaves: Any) -> Any:
    return (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves)


def unrolled(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of scanned layers as an unrolled model holds them; `scanned` undoes it."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if name == SCANNED:
            count = jax.tree.leaves(value)[0].shape[0]
            for n in range(count):
                out[f"layer_{n}"] = jax.tree.map(lambda leaf, n=n: leaf[n], value)
        else:
            out[name] = unrolled(value) if isinstance(value, Mapping) else value
    return out

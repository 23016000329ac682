"""N layers, scanned (compiled once) or unrolled, with positions before and a norm after them."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.attention import AttentionSpec, MultiHeadAttention
from tfm.layers.block import Block, BlockSpec
from tfm.layers.context import Auxiliary, Cache, Context
from tfm.layers.dims import Dims, create_params, drop
from tfm.layers.embed import PositionTable
from tfm.layers.norm import normalize
from tfm.ops.positions import Position

SCANNED, UNROLLED = "layers", re.compile(r"layer_(\d+)")
# Up to this many scanned layers are unrolled in the compiled program, with stacked parameters. It
# makes a step about a tenth faster, and compiling it half as long again. Only with pre-norm: after
# norms at the end of each part, XLA fuses the whole chain of their gradients into every reader of
# it, which is slower than the loop. 0 turns it off.
UNROLL = 6


class Stack(nn.Module):
    """Layers that map embeddings to states. Scanned and unrolled ones begin with equal values."""

    spec: BlockSpec
    count: int  # number of layers
    scheme: Position
    causal: bool
    cross: AttentionSpec | None = None

    def setup(self) -> None:
        self._check()
        block: Any = Block
        if self.spec.remat != "none":
            policy = self.spec.remat.entry
            block = nn.remat(Block, prevent_cse=not self.spec.scan, policy=policy)
        args = self.spec, self.dims, self.position, self.cross
        if self.spec.scan:
            self.layers = block(*args)
        else:
            self.layer = [block(*args) for _ in range(self.count)]

    @property
    def position(self) -> Position:
        """The part of the scheme that acts inside the layers; a table joins the embeddings."""
        return Position() if self.scheme.table else self.scheme

    @property
    def has_cross(self) -> bool:
        return self.cross is not None and self.cross.attends

    @property
    def dims(self) -> Dims:
        spec = self.spec
        parts = (spec.used_mixer is not None) + self.has_cross + (spec.feedforward.kind != "none")
        depth = max(self.count * parts, 1)
        return Dims(spec.width, spec.max_length, self.causal, depth, spec.init, spec.dtype.entry)

    def _check(self) -> None:
        spec = self.spec
        mixer, norm = spec.used_mixer, spec.norm.kind.entry
        if mixer is None and not self.has_cross and spec.feedforward.kind == "none":
            raise UserError("a layer needs a mixer or a feed-forward; this one has neither")
        if self.causal and norm is not None and not norm.causal:
            raise UserError(
                f"norm.kind={spec.norm.kind!r} sees later tokens, so it cannot be used where a "
                "token must not: in a decoder"
            )
        if self.causal and not self.scheme.causal:
            scheme = getattr(spec, "decoder_scheme", None)
            key = "position.scheme" if scheme is None else "decoder_scheme"
            raise UserError(
                f"{key}={str(scheme or spec.position.scheme)!r} depends on later tokens, so it "
                "cannot be used in a decoder"
            )
        if self.causal and mixer is not None and not mixer.causal:
            raise UserError(
                f"mixer={spec.mixer!r} sees later tokens, so it cannot be used in a decoder"
            )

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        """Returns states, the extended cache, and losses and intermediates, stacked over layers
        (N)."""
        spec, capture = self.spec, context.capture
        if self.is_initializing() and not spec.scan:
            self._begin_as_scanned(x_BTD, context)
        if "weights" in capture and not spec.attends and not self.has_cross:
            raise UserError('capture=("weights",): this model has no attention')
        mixer = spec.used_mixer
        if mixer is not None and not mixer.padding and context.valid_BT is not None:
            raise UserError(f"mixer={spec.mixer!r} is not safe with padding, and the batch has it")
        table = PositionTable(spec.position, self.scheme, spec.max_length, name="table")
        intermediates: dict[str, Array] = {}
        if "details" in capture:
            intermediates["token_BTD"] = x_BTD
            if self.scheme.table is not None:  # joined to a neutral x
                neutral = jnp.ones_like if spec.position.join == "multiply" else jnp.zeros_like
                args = neutral(x_BTD), context.pos_BT, context.valid_BT
                intermediates["table_BTD"] = table(*args)
        x_BTD = table(x_BTD, context.pos_BT, context.valid_BT)
        if spec.norm.embedding:
            x_BTD = normalize(spec.norm, self.dims.dtype, "embed_norm", x_BTD, context)
        x_BTD = drop(x_BTD, context.dropouts, "embedding")
        if "states" in capture:
            intermediates["embedding_BTD"] = x_BTD
        if spec.position.share and spec.attends and spec.attention is not None:
            sizes = MultiHeadAttention(spec.attention, self.dims, parent=None).sizes
            context = context.replace(
                position_params=create_params(self, "position", self.position, sizes)
            )
        if spec.scan:
            pre_norm = spec.norm.placement == "pre"
            run = nn.scan(
                lambda block, x_BTD, each, context: block(x_BTD, each, context),
                variable_axes={"params": 0, "batch_stats": 0},
                split_rngs={"params": True},
                in_axes=(0, nn.broadcast),
                length=self.count,
                unroll=self.count if self.count <= UNROLL and pre_norm else 1,
            )
            numbers = jnp.arange(self.count)
            x_BTD, (cache, auxiliary) = run(self.layers, x_BTD, (numbers, cache), context)
        else:
            old = [None] * self.count if cache is None else cache
            results = []
            for n, block in enumerate(self.layer):
                x_BTD, result = block(x_BTD, (n, old[n]), context)
                results.append(result)
            new, each = zip(*results, strict=True)
            cache = None if cache is None else list(new)
            auxiliary = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        intermediates |= {re.sub("_B", "_NB", k): x for k, x in auxiliary.intermediates.items()}
        if spec.norm.has_final:
            x_BTD = normalize(spec.norm, self.dims.dtype, "norm", x_BTD, context)
        if "states" in capture:
            intermediates["final_BTD"] = x_BTD
        losses = {name: jnp.sum(loss) for name, loss in auxiliary.losses.items()}
        return drop(x_BTD, context.dropouts, "output"), cache, Auxiliary(losses, intermediates)

    def _begin_as_scanned(self, x_BTD: Array, context: Context) -> None:
        """Gives unrolled layers the initial values that scanned ones draw from the same key."""
        assert self.scope is not None
        other = self.clone(spec=dataclasses.replace(self.spec, scan=True), parent=None)
        key: Any = self.scope.rngs["params"]
        variables = other.init({"params": key}, x_BTD, context)
        for collection, tree in unrolled(variables).items():
            for name, value in tree.items():
                self.put_variable(collection, name, value)

    def init_cache(self, batch: int, length: int, source: Cache = None) -> Cache:
        """Returns an empty cache for `length` tokens: stacked over scanned layers, a list for
        unrolled ones, so that each is written in place. `source` is the result of `keys_values`."""
        empty = None
        if self.spec.used_mixer is not None:
            make = self.spec.used_mixer.make
            mixer = make(self.spec, self.dims, self.position, parent=None)
            empty = mixer.init_cache(batch, length)
        if not self.spec.scan:
            sources = [None] * self.count if source is None else source
            copies = [jax.tree.map(jnp.copy, empty) for _ in sources]
            return [{"mixer": x, "source": y} for x, y in zip(copies, sources, strict=True)]
        stacked = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], self.count, 0), empty)
        return {"mixer": stacked, "source": source}

    def keys_values(self, source_BSD: Array, source_pos_BS: Array | None) -> Cache:
        """Returns the keys and values of a source for each layer: stacked or a list, like the
        cache."""
        if not self.spec.scan:
            return [block.keys_values(source_BSD, source_pos_BS) for block in self.layer]
        run = nn.scan(
            lambda block, carry: (carry, block.keys_values(source_BSD, source_pos_BS)),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.count,
        )
        return run(self.layers, None)[1]


def scanned(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Converts parameters of unrolled layers (`layer_0`, `layer_1`…) to those of scanned ones."""
    numbers = sorted(int(m[1]) for name in tree if (m := UNROLLED.fullmatch(name)))
    out = {
        name: scanned(value) if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if not UNROLLED.fullmatch(name)
    }
    if numbers:
        each = [tree[f"layer_{n}"] for n in numbers]
        if numbers != list(range(len(numbers))):
            raise UserError(f"some layers are missing: the parameters have only {numbers}")
        out[SCANNED] = jax.tree.map(_stack, *each)
    return out


def _stack(*leaves: Any) -> Any:
    return (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves)


def unrolled(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Converts parameters of scanned layers to those of unrolled ones."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if name == SCANNED:
            count = jax.tree.leaves(value)[0].shape[0]
            for n in range(count):
                out[f"layer_{n}"] = jax.tree.map(lambda leaf, n=n: leaf[n], value)
        else:
            out[name] = unrolled(value) if isinstance(value, Mapping) else value
    return out

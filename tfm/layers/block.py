"""One layer of a Transformer: a mixer, cross-attention and a feed-forward on a residual path."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from tfm.config.spec import Named, Spec, SpecError, call, choice, rate, size
from tfm.layers.attention import AttentionSpec, MultiHeadAttention
from tfm.layers.context import Auxiliary, Cache, Context
from tfm.layers.dims import DTYPES, Dims
from tfm.layers.embed import PositionSpec
from tfm.layers.feedforward import FeedForwardSpec
from tfm.layers.init import InitSpec
from tfm.layers.mixers import MIXERS, Mixer
from tfm.layers.norm import NormSpec, normalize
from tfm.ops.dropout import drop
from tfm.ops.masks import MASKS
from tfm.ops.positions import Position

REMAT: dict[str, Any] = {  # what the backward pass finds saved, besides each layer's input
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutSpec(Spec):
    """Rates. None is off, which is another model; a rate of 0 is on, and drops nothing."""

    embedding: float | None = rate(None)
    attention: float | None = rate(None)  # of the weights
    residual: float | None = rate(None)  # of what is added to the residual path
    feedforward: float | None = rate(None)  # of the hidden layer
    output: float | None = rate(None)  # of the last states (T5)
    head: float | None = rate(None)  # of what a classifier reads
    teacher: float | None = rate(None)  # of an RNN decoder's gold tokens, in training: its own
    # predictions take their place.  Bengio et al. 2015

    def check_sites(self, *sites: str) -> None:
        """Raise if something is dropped elsewhere than at `sites`."""
        for site, value in dataclasses.asdict(self).items():
            if value is not None and site not in sites:
                raise SpecError(
                    f"dropout.{site}",
                    f"{{key}}={value}: nothing is dropped there; this model drops at: "
                    + ", ".join(sites),
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSpec(Spec):
    """What the layers of a Transformer are."""

    width: int = size()
    layers: int = size()
    max_length: int = size()  # of learned tables, and of weights with an entry for each position
    mixer: Named = call(lambda: MIXERS, "attention", none=True)
    attention: AttentionSpec | None = None
    feedforward: FeedForwardSpec
    norm: NormSpec = NormSpec()
    position: PositionSpec = PositionSpec()
    mask: Named = call(lambda: MASKS, "everything")  # joined with what the batch says: padding
    residual: bool = True
    parallel: bool = False  # mixer and feed-forward side by side
    init: InitSpec = InitSpec()
    dropout: DropoutSpec = DropoutSpec()
    scan: bool = True
    remat: Named = choice(lambda: REMAT, "none")
    dtype: Named = choice(lambda: DTYPES, "float32")  # of the computation; parameters are float32

    def check(self) -> None:
        mixer: Mixer | None = self.mixer.entry
        if mixer is None:
            return
        if mixer.needs_attention and self.attention is None:
            raise SpecError("attention", f"{{key}} is missing: mixer={self.mixer!r} needs it")
        if mixer.masked:
            return
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        for key in ("mask", "decoder_mask"):
            if getattr(self, key, None) != usual.get(key):
                value = getattr(self, key)
                raise SpecError(key, f"{{key}}={value!r}: mixer={self.mixer!r} takes no mask")
        scheme = self.position.scheme.entry
        if scheme.rotate is not None or scheme.bias is not None:
            raise SpecError(
                "position.scheme",
                f"{{key}}={self.position.scheme!r} acts in attention, and mixer={self.mixer!r} is "
                "none; a table, as 'sinusoidal', joins the embeddings",
            )
        if not self.crosses and (self.dropout.attention is not None or self.init.small_query):
            key = "init.small_query" if self.init.small_query else "dropout.attention"
            raise SpecError(key, f"{{key}}: with mixer={self.mixer!r} there is no attention")

    crosses = False  # whether there is attention to a source as well

    @property
    def used_mixer(self) -> Mixer | None:
        """The mixer; None if there is none, as an attention with the score "none"."""
        mixer: Mixer | None = self.mixer.entry
        if mixer is None or not mixer.needs_attention:
            return mixer
        return mixer if self.attention is not None and self.attention.attends else None

    @property
    def attends(self) -> bool:
        """Whether the mixer is an attention."""
        return self.used_mixer is not None and self.used_mixer.masked


class Block(nn.Module):
    """Each part reads the residual path and adds to it, in sequence or all at once.

    A part that is "none" is left out.
    """

    spec: BlockSpec
    dims: Dims
    position: Position
    cross_spec: AttentionSpec | None = None

    def setup(self) -> None:
        if self.cross_spec is not None and self.cross_spec.attends:
            self.cross = MultiHeadAttention(self.cross_spec, self.dims)

    def keys_values(self, source_BSD: Any, source_pos_BS: Array | None) -> Cache:
        """What cross-attention reads of the source: made once, read at each step of decoding. As
        in the cache of self-attention, positions come last."""
        if not self.has_cross:
            return None
        found = self.cross.keys_values(source_BSD, source_pos_BS)
        return tuple(jnp.moveaxis(x, 1, -1) for x in found)

    @property
    def has_cross(self) -> bool:
        return self.cross_spec is not None and self.cross_spec.attends

    @nn.compact
    def __call__(
        self, x_BTD: Array, each: tuple[ArrayLike, Cache], context: Context
    ) -> tuple[Array, tuple[Cache, Auxiliary]]:
        """`each` is what differs between layers: the layer's number, and its cache."""
        number, cache = each
        if context.dropouts is not None:
            context = context.replace(dropouts=context.dropouts.within(number))
        losses: dict[str, Array] = {}
        intermediates: dict[str, Array] = {}
        new_cache = cache
        branches: dict[str, Callable[[Array], Array]] = {}

        if self.spec.used_mixer is not None:
            name = self.spec.mixer.names[0]
            make = self.spec.used_mixer.make
            mixer = make(self.spec, self.dims, self.position, name=name)

            def mix(x_BTD: Array) -> Array:
                nonlocal new_cache
                own = None if cache is None else cache["mixer"]
                y_BTD, own, auxiliary = mixer(x_BTD, context, own)
                new_cache = None if cache is None else {**cache, "mixer": own}
                losses.update({f"{name}_{key}": x for key, x in auxiliary.losses.items()})
                intermediates.update(auxiliary.intermediates)
                return y_BTD

            branches[name] = mix
        if self.has_cross:
            branches["cross"] = functools.partial(self._cross, context, cache, intermediates)
        if self.spec.feedforward.kind.entry is not None:
            kind = self.spec.feedforward.kind.entry
            feedforward = kind(self.spec.feedforward, self.dims, name="feedforward")

            def transform(x_BTD: Array) -> Array:
                y_BTD, own = feedforward(x_BTD, context.dropouts)
                if "details" in context.capture and hasattr(feedforward, "hidden"):
                    intermediates["hidden_BTF"] = feedforward.hidden(x_BTD)
                losses.update({f"feedforward_{key}": x for key, x in own.items()})
                return y_BTD

            branches["feedforward"] = transform

        x_BTD = self._residual_path(x_BTD, branches, context, intermediates)
        if "states" in context.capture:
            intermediates["states_BTD"] = x_BTD
        return x_BTD, (new_cache, Auxiliary(losses, intermediates))

    def _cross(
        self, context: Context, cache: Cache, intermediates: dict[str, Array], x_BTD: Array
    ) -> Array:
        if cache is None:
            source_BSD: Any = context.source_BSD
            k_BSGK, v_BSGE = self.cross.keys_values(source_BSD, context.source_pos_BS)
        else:
            k_BSGK, v_BSGE = (jnp.moveaxis(x, -1, 1) for x in cache["source"])
        dropouts, name = context.dropouts, "cross_weights_BHTS"
        y_BTD, found = self.cross.attend(
            x_BTD,
            k_BSGK,
            v_BSGE,
            mask=context.source_mask,
            dropout=None if dropouts is None else dropouts.at("attention", name),
            q_pos_BT=context.pos_BT,
            k_pos_BS=context.source_pos_BS,
            capture=context.capture,
        )
        intermediates.update({f"cross_{key}": x for key, x in found.items()})
        return y_BTD

    def _residual_path(
        self,
        x_BTD: Array,
        branches: dict[str, Callable[[Array], Array]],
        context: Context,
        intermediates: dict[str, Array],
    ) -> Array:
        """With "details" captured: what each part reads (`in`), what it gives (`out`), and the
        residual path after it (`sum`)."""
        spec, placement = self.spec, self.spec.norm.placement
        details = "details" in context.capture

        def shown(name: str, branch: Callable[[Array], Array], x_BTD: Array) -> Array:
            y_BTD = branch(x_BTD)
            intermediates.update({f"{name}_in_BTD": x_BTD, f"{name}_out_BTD": y_BTD})
            return y_BTD

        if details:
            branches = {
                name: functools.partial(shown, name, branch) for name, branch in branches.items()
            }

        def norm(name: str, x_BTD: Array) -> Array:
            return normalize(
                spec.norm, self.dims.dtype, name, x_BTD, context.valid_BT, context.train
            )

        if spec.parallel:  # one norm serves all parts.  Wang & Komatsuzaki 2021
            parts = tuple(branches.values())
            branches = {"": lambda x: functools.reduce(jnp.add, (part(x) for part in parts))}
        for name, branch in branches.items():
            prefix = f"{name}_" if name else ""
            y_BTD = branch(x_BTD if placement == "post" else norm(f"{prefix}norm", x_BTD))
            if placement == "sandwich":
                y_BTD = norm(f"{prefix}out_norm", y_BTD)
            y_BTD = drop(y_BTD, context.dropouts, "residual", name or "all")
            x_BTD = x_BTD + y_BTD if spec.residual else y_BTD
            if placement == "post":
                x_BTD = norm(f"{prefix}norm", x_BTD)
            if details:
                intermediates[f"{name or 'all'}_sum_BTD"] = x_BTD
        return x_BTD

"""A Transformer layer: a mixer, cross-attention and a feed-forward on a residual path."""

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
from tfm.layers.attention import AttentionSpec, MultiHeadAttention, attention
from tfm.layers.context import Auxiliary, Cache, Context, Mixer
from tfm.layers.convolution import convolution
from tfm.layers.dims import DTYPES, Dims, Dropouts, InitSpec, drop
from tfm.layers.embed import PositionSpec
from tfm.layers.linear_attention import linear_attention
from tfm.layers.norm import NormSpec, normalize
from tfm.layers.recurrent import recurrent
from tfm.layers.state_space import state_space
from tfm.layers.token_mlp import token_mlp
from tfm.ops.fast import gelu
from tfm.ops.masks import MASKS
from tfm.ops.positions import Position

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}
GATED = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
MIXERS: dict[str, Any] = {
    "attention": attention,
    "convolution": convolution,
    "token_mlp": token_mlp,
    "linear_attention": linear_attention,
    "state_space": state_space,
    "recurrent": recurrent,
}
REMAT: dict[str, Any] = {  # saved for the backward pass, besides each layer's input
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardSpec(Spec):
    """A feed-forward, applied to each token by itself."""

    width: int = size()
    kind: Named = choice(lambda: FEEDFORWARDS, "gelu", none=True)
    bias: bool = True

    @property
    def activation(self) -> Callable[[Array], Array]:
        """The activation of a built-in kind."""
        return ACTIVATIONS[GATED.get(self.kind, self.kind)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutSpec(Spec):
    """Dropout rates. None turns a site off, which is another model; 0 is on and drops nothing."""

    embedding: float | None = rate(None)
    attention: float | None = rate(None)  # of the weights
    residual: float | None = rate(None)  # of the branches added to the residual path
    feedforward: float | None = rate(None)  # of the hidden layer
    output: float | None = rate(None)  # of the final states (T5)
    head: float | None = rate(None)  # of a classifier's inputs
    scheduled_sampling: float | None = rate(None)  # share of an RNN decoder's input tokens that its
    # own predictions replace in training.  Bengio et al. 2015

    def check_sites(self, *sites: str) -> None:
        """Raises if a rate is set for a site that the model does not have."""
        for site, value in dataclasses.asdict(self).items():
            if value is not None and site not in sites:
                raise SpecError(
                    f"dropout.{site}",
                    f"{{key}}={value}: nothing is dropped there; this model drops at: "
                    + ", ".join(sites),
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSpec(Spec):
    """The layers of a Transformer."""

    width: int = size()
    layers: int = size()
    max_length: int = size()  # for learned tables and weights with an entry for each position
    mixer: Named = call(lambda: MIXERS, "attention", none=True)
    attention: AttentionSpec | None = None
    feedforward: FeedForwardSpec
    norm: NormSpec = NormSpec()
    position: PositionSpec = PositionSpec()
    mask: Named = call(lambda: MASKS, "everything")  # combined with the padding of the batch
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

    crosses = False  # attends to a source as well

    @property
    def used_mixer(self) -> Mixer | None:
        """The mixer, or None; an attention with the score "none" is none."""
        mixer: Mixer | None = self.mixer.entry
        if mixer is None or not mixer.needs_attention:
            return mixer
        return mixer if self.attention is not None and self.attention.attends else None

    @property
    def attends(self) -> bool:
        """True if the mixer is an attention."""
        return self.used_mixer is not None and self.used_mixer.masked


class FeedForward(nn.Module):
    """W₂ f(W₁ x), or gated, W₂ (f(W_g x) ⊙ W₁ x).  Vaswani et al. 2017, §3.3; Shazeer 2020.

    A feed-forward maps x and the dropouts to y and its auxiliary losses.
    """

    spec: FeedForwardSpec
    dims: Dims

    def setup(self) -> None:
        spec, dims = self.spec, self.dims
        dense = functools.partial(dims.dense, use_bias=spec.bias)
        self.up = dense(spec.width)
        if spec.kind in GATED:
            self.gate = dense(spec.width)
        self.down = dense(dims.width, kernel_init=dims.residual_init)

    def __call__(
        self, x_BTD: Array, dropouts: Dropouts | None = None
    ) -> tuple[Array, dict[str, Array]]:
        return self.down(drop(self.hidden(x_BTD), dropouts, "feedforward")), {}

    def hidden(self, x_BTD: Array) -> Array:
        """Returns the hidden layer (BTF)."""
        hidden_BTF = self.up(x_BTD)
        if self.spec.kind in GATED:
            return self.spec.activation(self.gate(x_BTD)) * hidden_BTF
        return self.spec.activation(hidden_BTF)


# A feed-forward is a module with the fields `spec` and `dims`.
FEEDFORWARDS: dict[str, type[Any]] = dict.fromkeys([*ACTIVATIONS, *GATED], FeedForward)


class Block(nn.Module):
    """One layer. Each part reads the residual path and adds to it, in sequence or in parallel.

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
        """Returns the keys and values of the source, computed once for all steps of decoding. As in
        the cache of self-attention, positions come last."""
        if not self.has_cross:
            return None
        keys_values = self.cross.keys_values(source_BSD, source_pos_BS)
        return tuple(jnp.moveaxis(x, 1, -1) for x in keys_values)

    @property
    def has_cross(self) -> bool:
        return self.cross_spec is not None and self.cross_spec.attends

    @nn.compact
    def __call__(
        self, x_BTD: Array, each: tuple[ArrayLike, Cache], context: Context
    ) -> tuple[Array, tuple[Cache, Auxiliary]]:
        """Runs the layer. `each` holds its number and its cache."""
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
                old = None if cache is None else cache["mixer"]
                y_BTD, new, auxiliary = mixer(x_BTD, context, old)
                new_cache = None if cache is None else {**cache, "mixer": new}
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
                y_BTD, own_losses = feedforward(x_BTD, context.dropouts)
                if "details" in context.capture and isinstance(feedforward, FeedForward):
                    intermediates["hidden_BTF"] = feedforward.hidden(x_BTD)
                losses.update({f"feedforward_{key}": x for key, x in own_losses.items()})
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
        y_BTD, captured = self.cross.attend(
            x_BTD,
            k_BSGK,
            v_BSGE,
            mask=context.source_mask,
            dropout=None if dropouts is None else dropouts.at("attention", name),
            q_pos_BT=context.pos_BT,
            k_pos_BS=context.source_pos_BS,
            capture=context.capture,
        )
        intermediates.update({f"cross_{key}": x for key, x in captured.items()})
        return y_BTD

    def _residual_path(
        self,
        x_BTD: Array,
        branches: dict[str, Callable[[Array], Array]],
        context: Context,
        intermediates: dict[str, Array],
    ) -> Array:
        """Adds each branch to the residual path. With "details", captures the input (`in`) and
        output (`out`) of each branch, the path after it (`sum`), and the results of norms that
        follow the output (`out_norm`) or the sum (`norm`)."""
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

        norm = functools.partial(normalize, spec.norm, self.dims.dtype, context=context)
        if spec.parallel:  # one norm for all parts.  Wang & Komatsuzaki 2021
            parts = tuple(branches.values())
            branches = {"": lambda x: functools.reduce(jnp.add, (part(x) for part in parts))}
        for name, branch in branches.items():
            prefix = f"{name}_" if name else ""
            y_BTD = branch(x_BTD if placement == "post" else norm(f"{prefix}norm", x_BTD))
            stages: dict[str, Array] = {}
            if placement == "sandwich":
                stages["out_norm"] = y_BTD = norm(f"{prefix}out_norm", y_BTD)
            y_BTD = drop(y_BTD, context.dropouts, "residual", name or "all")
            stages["sum"] = x_BTD = x_BTD + y_BTD if spec.residual else y_BTD
            if placement == "post":
                stages["norm"] = x_BTD = norm(f"{prefix}norm", x_BTD)
            if details:
                intermediates.update({f"{name or 'all'}_{k}_BTD": x for k, x in stages.items()})
        return x_BTD

"""Decoder-only models: every token sees itself and earlier ones.  GPT-2, LLaMA; prefix LMs."""

from typing import TYPE_CHECKING, Any, Unpack

from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.context import Context
from tfm.layers.embed import TokenEmbedding, head
from tfm.layers.stack import Stack
from tfm.models.common import (
    CallOptions,
    TransformerCache,
    captured,
    check_cacheable,
    check_packable,
    known,
    outputs,
    slots,
    visible,
)
from tfm.ops import masks

if TYPE_CHECKING:
    from tfm.models.spec import DecoderSpec


class Decoder(nn.Module):
    """Predicts the next token of each position: logits (BTV)."""

    spec: "DecoderSpec"

    def setup(self) -> None:
        spec = self.spec
        self.embed = TokenEmbedding(known(spec.vocab), spec.embed_dims, scale=spec.scale_embedding)
        self.decoder = self._stack()
        if not spec.tied:
            self.head = head(known(spec.vocab), spec.embed_dims)

    def _stack(self, **options: Any) -> Stack:
        spec = self.spec
        return Stack(spec, spec.layers, spec.position.scheme.entry, causal=True, **options)

    def __call__(
        self,
        tokens_BT: Array,
        *,
        valid_BT: Array | None = None,
        pos_BT: Array | None = None,
        segment_BT: Array | None = None,
        prefix_B: Array | None = None,
        head: bool = True,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits, or with `head=False` the final hidden states. The first `prefix_B`
        positions see each other. `capture` may name "states", "weights" and "details"."""
        if segment_BT is not None:
            check_packable(self.spec)
        capture = captured(options, "states", "weights", "details")
        mask = self.spec.mask.entry
        if prefix_B is not None:
            if not self.spec.attends:
                raise UserError(f"prefix_B: mixer={self.spec.mixer!r} takes no mask")
            mask = mask | masks.prefix(prefix_B)
        context = Context(visible(mask, valid_BT, segment_BT), valid_BT, pos_BT, **options)
        x_BTD, _, auxiliary = self.decoder(self.embed(tokens_BT), context)
        out = self.logits(x_BTD) if head else x_BTD
        return outputs(out, capture, auxiliary.intermediates, auxiliary.losses)

    def logits(self, x_BTD: Array) -> Array:
        """Projects final hidden states to logits."""
        return self.embed.logits(x_BTD) if self.spec.tied else self.head(x_BTD)

    def init_cache(self, batch: int, length: int, *, rolling: bool = True) -> TransformerCache:
        """Returns an empty cache for `length` tokens. Under a window mask it holds the last ones
        only, unless `rolling=False`, which a prefix needs."""
        spec = self.spec
        check_cacheable(spec, spec.mask, spec.position.scheme, length)
        kept = slots(spec, spec.mask.entry, length) if rolling else length
        layers = self._stack(parent=None).init_cache(batch, kept)
        return TransformerCache(
            layers, jnp.zeros(batch, jnp.int32), length=length, rolling=kept < length
        )

    def decode(
        self,
        tokens_BT: Array,
        cache: TransformerCache,
        *,
        valid_BT: Array | None = None,
        prefix_B: Array | None = None,
        last: bool = False,
    ) -> tuple[Array, TransformerCache]:
        """Returns logits of tokens that follow those in the cache, and the extended cache. With
        `last`, only logits of each row's last token (B1V). `prefix_B` is for the first call."""
        if prefix_B is not None:
            if cache.rolling:
                raise UserError("prefix_B: all tokens see a prefix; use init_cache(rolling=False)")
            cache = cache.replace(prefix_B=prefix_B)
        mask = self.spec.mask.entry
        if cache.prefix_B is not None:
            mask = mask | masks.prefix(cache.prefix_B)
        return cache.decoded(self, self.embed(tokens_BT), mask, valid_BT, last)

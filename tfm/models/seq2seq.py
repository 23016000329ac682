"""Recurrent encoder–decoders: from a source to a target sequence of any length (N:M).

The decoder reads the encoder's last state (Cho et al. 2014), or attends to all its states: before
each step of its cell (Bahdanau et al. 2015) or after it (Luong et al. 2015).
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Unpack

import jax
from flax import linen as nn
from flax import struct
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.context import Intermediates
from tfm.layers.dims import Dropouts, drop
from tfm.layers.embed import TokenEmbedding
from tfm.layers.recurrent import CELLS, Attending, Carries, InitialState, RecurrentStack, final
from tfm.models.common import (
    CallOptions,
    captured,
    check_valid,
    known,
    last_of,
    outputs,
    visible,
)
from tfm.ops import masks

if TYPE_CHECKING:
    from tfm.models.spec import SeqToSeqSpec


class SeqToSeqCache(struct.PyTreeNode):
    """The states of the decoder, and its view of the source, which is computed once."""

    states: Carries
    count_B: Array
    context_BE: Array | None = None  # the context without attention
    keys_values: tuple[Array, Array] | None = None
    source_valid_BS: Array | None = None


class SeqToSeq(nn.Module):
    """Predicts the next target token: logits V tanh(W [c_t; h_t]) + b (BTV).  Luong et al. 2015,
    eq. 5–6.

    Source and target have their own embeddings, as in all three papers, or share one. Each decoder
    layer starts from the last state of the same encoder layer. In Bahdanau's decoder the first
    layer attends and reads the context with each token (Wu et al. 2016, §3); in Luong's the last
    layer attends, and tanh joins its state with the context.
    """

    spec: "SeqToSeqSpec"

    def setup(self) -> None:
        spec = self.spec
        dims = dataclasses.replace(spec.dims(spec.hidden), max_length=spec.max_length)
        vocab = spec.decoder_vocab or known(spec.vocab)
        self.source_embed = TokenEmbedding(known(spec.vocab), spec.dims(spec.width))
        self.target_embed = self.source_embed
        if not spec.share_embedding:
            self.target_embed = TokenEmbedding(vocab, spec.dims(spec.width))
        self.encoder = RecurrentStack(spec.cell, dims, spec.layers, spec.bidirectional)
        self.decoder = RecurrentStack(spec.cell, dims, spec.layers)
        self.start = InitialState(spec.cell, dims)
        if spec.attention is not None and spec.attends:
            projections = tuple(name for name in spec.attention.projections if name != "out")
            attention = dataclasses.replace(spec.attention, projections=projections)
            self.attention = MultiHeadAttention(attention, dims)
        self.readout = dims.dense(spec.hidden, use_bias=False)
        self.head = dims.dense(vocab)
        if spec.context == "tanh":
            self.summary = dims.dense(spec.hidden)

    def __call__(
        self,
        source_BS: Array,
        decoder_input_BT: Array,
        *,
        source_valid_BS: Array | None = None,
        decoder_valid_BT: Array | None = None,
        head: bool = True,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits, or with `head=False` the inputs of the head. `capture` may name "states",
        "weights" and "details" (of attention) and "gates" (of an LSTM or a GRU); intermediates are
        grouped under "encoder" and "decoder"."""
        gates = ("gates",) if CELLS[self.spec.cell].gates else ()
        attends = ("weights", "details") if self.spec.attends else ()
        capture, dropouts = captured(options, "states", *gates, *attends), options.get("dropouts")
        names = tuple(name for name in capture if name != "losses")
        cache, encoded = self._encode(source_BS, source_valid_BS, dropouts, names)
        if options.get("train") and dropouts is not None and "scheduled_sampling" in dropouts.rates:
            if names or not head:
                option = f"capture={names}" if names else "head=False"
                raise UserError(f"{option} cannot be used with dropout.scheduled_sampling")
            logits = self._decode_sampled(decoder_input_BT, cache, decoder_valid_BT, dropouts)
            return outputs(logits, capture, {})
        x_BTD, _, decoded = self._decode(decoder_input_BT, cache, decoder_valid_BT, dropouts, names)
        intermediates = {"encoder": encoded, "decoder": decoded}
        return outputs(self.logits(x_BTD) if head else x_BTD, capture, intermediates)

    def init_cache(
        self, source_BS: Array, length: int | None = None, *, source_valid_BS: Array | None = None
    ) -> SeqToSeqCache:
        """Returns the states before the first target token; their size does not depend on
        `length`."""
        return self._encode(source_BS, source_valid_BS)[0]

    def decode(
        self,
        tokens_BT: Array,
        cache: SeqToSeqCache,
        *,
        valid_BT: Array | None = None,
        last: bool = False,
    ) -> tuple[Array, SeqToSeqCache]:
        """Returns logits of the next tokens and the cache after them. With `last`, only logits of
        each row's last token (B1V)."""
        x_BTD, cache, _ = self._decode(tokens_BT, cache, valid_BT)
        return self.logits(last_of(x_BTD, valid_BT) if last else x_BTD), cache

    def logits(self, x_BTD: Array) -> Array:
        """Projects final hidden states to logits."""
        return self.head(x_BTD).astype(jnp.float32)

    def _encode(
        self,
        source_BS: Array,
        valid_BS: Array | None,
        dropouts: Dropouts | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[SeqToSeqCache, Intermediates]:
        dropouts = None if dropouts is None else dropouts.within("encoder")
        x_BSD = drop(self.source_embed(source_BS), dropouts, "embedding")
        self._check_length("source_BS", x_BSD)
        check_valid("source_valid_BS", valid_BS, {"B": x_BSD.shape[0], "S": x_BSD.shape[1]})
        capture = tuple(name for name in capture if name not in ("weights", "details"))
        x_BSE, last, intermediates = self.encoder(
            x_BSD, valid_BT=valid_BS, dropouts=dropouts, capture=capture
        )
        states = self.start([jnp.concatenate(jax.tree.leaves(carries), -1) for carries in last])
        cache = SeqToSeqCache(states, jnp.zeros(x_BSD.shape[0], jnp.int32))
        if not self.spec.attends:
            return cache.replace(context_BE=self._context(x_BSE, last, valid_BS)), intermediates
        keys_values = self.attention.keys_values(x_BSE)
        return cache.replace(keys_values=keys_values, source_valid_BS=valid_BS), intermediates

    def _context(self, x_BSE: Array, last: Carries, valid_BS: Array | None) -> Array:
        """Summarizes the whole source in one vector."""
        if self.spec.context == "mean":
            where = None if valid_BS is None else valid_BS[..., None]
            return jnp.mean(x_BSE, 1, where=where)
        if self.spec.context == "tanh":
            return jnp.tanh(self.summary(final(last[-1])))
        return final(last[-1])

    def _decode_sampled(
        self, tokens_BT: Array, cache: SeqToSeqCache, valid_BT: Array | None, dropouts: Dropouts
    ) -> Array:
        """Computes logits with a share of the input tokens replaced by the model's predictions."""
        rate = dropouts.rates["scheduled_sampling"]
        key = dropouts.within("scheduled_sampling").key
        sampled_BT = jax.random.uniform(key, tokens_BT.shape) < rate
        sampled_BT = sampled_BT.at[:, 0].set(False)  # there is no prediction yet

        def step(module, carry, token_B, sampled_B, valid_B, number):
            cache, predicted_B = carry
            token_B = jnp.where(sampled_B, predicted_B, token_B)
            valid_B1 = None if valid_B is None else valid_B[:, None]
            inside = dropouts.within(number)
            x_BTD, cache, _ = module._decode(token_B[:, None], cache, valid_B1, inside)
            logits_BV = module.logits(x_BTD)[:, 0]
            return (cache, jnp.argmax(logits_BV, -1)), logits_BV

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(1, 1, 1, 0),
            out_axes=1,
        )
        numbers = jnp.arange(tokens_BT.shape[1])
        carry = cache, jnp.zeros(tokens_BT.shape[0], tokens_BT.dtype)
        return scan(self, carry, tokens_BT, sampled_BT, valid_BT, numbers)[1]

    def _decode(
        self,
        tokens_BT: Array,
        cache: SeqToSeqCache,
        valid_BT: Array | None,
        dropouts: Dropouts | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Array, SeqToSeqCache, Intermediates]:
        dropouts = None if dropouts is None else dropouts.within("decoder")
        x_BTD = drop(self.target_embed(tokens_BT), dropouts, "embedding")
        self._check_length("decoder_input_BT", x_BTD)
        batch, length, _ = x_BTD.shape
        check_valid("valid_BT", valid_BT, {"B": batch, "T": length})
        pos_BT = cache.count_B[:, None] + jnp.arange(length)[None]
        mask = visible(masks.everything(), cache.source_valid_BS)
        bahdanau, attending, context_BTE = self.spec.decoder == "bahdanau", None, None
        keys_values: Any = cache.keys_values
        if cache.context_BE is not None:
            context_BTE = jnp.repeat(cache.context_BE[:, None], length, axis=1)
            x_BTD = jnp.concatenate([x_BTD, context_BTE], -1) if bahdanau else x_BTD
        elif bahdanau:
            attending = Attending(self.attention, pos_BT, keys_values, mask)
        x_BTH, states, intermediates = self.decoder(
            x_BTD,
            valid_BT=valid_BT,
            start=cache.states,
            attending=attending,
            dropouts=dropouts,
            capture=capture,
        )
        if attending is not None:
            context_BTE = intermediates.pop("context_BTE")
        elif context_BTE is None:
            context_BTE, captured = self.attention.attend(
                x_BTH,
                *keys_values,
                mask=mask,
                q_pos_BT=pos_BT,
                dropout=None if dropouts is None else dropouts.at("attention"),
                capture=capture,
            )
            intermediates |= captured
        if "details" in capture and keys_values is not None:
            intermediates |= dict(zip(("k_BSGK", "v_BSGE"), keys_values, strict=True))
        out_BTD = jnp.tanh(self.readout(jnp.concatenate([context_BTE, x_BTH], -1)))
        out_BTD = drop(out_BTD, dropouts, "head")
        new: Any = length if valid_BT is None else jnp.sum(valid_BT, 1)
        cache = cache.replace(states=states, count_B=cache.count_B + new)
        return out_BTD, cache, intermediates

    def _check_length(self, name: str, x_BTD: Array) -> None:
        longest = self.spec.max_length
        if longest is not None and x_BTD.shape[1] > longest:
            raise UserError(f"{name} is {x_BTD.shape[1]} long, but max_length={longest}")

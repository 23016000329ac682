"""Recurrent encoder–decoders: read one sequence, write another of any length (N:M).

The decoder is given the encoder's last state (Cho et al. 2014), or attends to all of its states:
before each step of its cell (Bahdanau et al. 2015) or after it (Luong et al. 2015).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial
from jax.typing import DTypeLike

from tfm.layers import params
from tfm.layers.block import Made
from tfm.layers.embed import TokenEmbedding
from tfm.layers.initial import Initial
from tfm.layers.recurrent import CELLS, Carries, Look, RecurrentStack, Start, final
from tfm.models import parts
from tfm.models.checks import check_used, check_valid
from tfm.models.outputs import check_want, outputs, visible
from tfm.models.spec import AttentionSpec, SeqToSeqSpec
from tfm.names import UserError, pick
from tfm.ops import masks
from tfm.ops.attend import IMPLEMENTATIONS, attend
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.masks import Mask
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.scores import SCORES, Score

LOOKS = {
    "before": "the previous state attends, and the cell reads what it found: Bahdanau et al. 2015",
    "after": "the new state attends, and is joined by what it found: Luong et al. 2015",
}


class Source(NamedTuple):
    """What the decoder is given of a source: made once, read at each step."""

    start: Carries
    context_BE: Array | None  # the last state, where nothing attends
    seen: Mapping[str, Any]  # keys, values and mask, where something does


class SourceAttention(nn.Module):
    """Queries from the decoder's states; keys and values, made once, from the encoder's."""

    heads: int
    head_width: int
    kv_heads: int
    score: Score
    normalizer: Normalizer
    cap: float | None
    max_length: int | None
    qkv_bias: bool
    qk_norm: bool
    implementation: str
    initial: Initial
    dtype: DTypeLike | None

    def setup(self):
        def project(heads: int, init: Any) -> nn.DenseGeneral:
            features = (heads, self.head_width)
            return nn.DenseGeneral(
                features, use_bias=self.qkv_bias, kernel_init=init, dtype=self.dtype
            )

        self.query = project(self.heads, self.initial.query(self.head_width))
        self.key = project(self.kv_heads, self.initial.kernel)
        self.value = project(self.kv_heads, self.initial.kernel)
        if self.qk_norm:
            self.query_norm = nn.RMSNorm(dtype=self.dtype)
            self.key_norm = nn.RMSNorm(dtype=self.dtype)
        sizes = {"H": self.heads, "K": self.head_width, "J": self.head_width}
        if self.max_length is not None:
            sizes |= {"L": self.max_length, "M": self.max_length}
        self.held = params.create(self, "score", self.score, sizes)

    def look_at(self, source_BSE: Array, valid_BS: Array | None) -> dict[str, Any]:
        k_BSGK = self.key(source_BSE)
        k_BSGK = self.key_norm(k_BSGK) if self.qk_norm else k_BSGK
        mask = visible(masks.everything(), valid_BS)
        return {"k_BSGK": k_BSGK, "v_BSGK": self.value(source_BSE), "mask": mask}

    def __call__(
        self,
        x_BTD: Array,
        *,
        k_BSGK: Array,
        v_BSGK: Array,
        mask: Mask,
        pos_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        return_weights: bool = False,
    ) -> tuple[Array, Array | None]:
        """Contexts BTE, the heads side by side; the weights BHTS, or None."""
        q_BTHK = self.query(x_BTD)
        q_BTHK = self.query_norm(q_BTHK) if self.qk_norm else q_BTHK
        held = {name: value.astype(q_BTHK.dtype) for name, value in self.held.items()}
        step = 0 if pos_BT is None else pos_BT[0, 0]
        out = attend(
            q_BTHK,
            k_BSGK,
            v_BSGK,
            score=Partial(self.score.fn, **held),
            mask=mask,
            normalizer=self.normalizer,
            cap=self.cap,
            dropout=None if dropouts is None else dropouts.within(step).at("attention"),
            q_pos_BT=pos_BT,
            implementation=self.implementation,
            return_weights=return_weights,
        )
        out_BTHK, weights_BHTS = out if return_weights else (out, None)
        return out_BTHK.reshape(*out_BTHK.shape[:2], -1), weights_BHTS


class SeqToSeq(nn.Module):
    """Logits BTV of the next target token: V tanh(W [c_t; h_t]) + b.  Luong et al. 2015, eq. 5–6.

    Source and target have embeddings of their own, as in all three papers. Each decoder layer
    begins from the last state of the encoder's layer beside it. With `look` "before", the first
    layer reads the context with each token, and it is this layer's state that attends (Wu et al.
    2016, §3); with "after", the last layer's state attends, and the context meets it in tanh.
    """

    cell: str
    vocab: int
    width: int
    hidden: int
    layers: int = 1
    bidirectional: bool = True
    make_attention: Callable[[], SourceAttention] | None = None
    look: str = "before"
    max_length: int | None = None
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    def setup(self):
        init, dtype = self.initial.kernel, self.dtype
        embed = functools.partial(TokenEmbedding, self.vocab, self.width, dtype=dtype)
        self.source_embed = embed(initial=self.initial.embedding)
        self.target_embed = embed(initial=self.initial.embedding)
        stack = functools.partial(RecurrentStack, self.cell, self.hidden, self.layers)
        self.encoder = stack(self.bidirectional, self.initial, dtype)
        self.decoder = stack(False, self.initial, dtype)
        self.start = Start(self.cell, self.hidden, self.initial, dtype)
        if self.make_attention is not None:
            self.attention = self.make_attention()
        self.readout = nn.Dense(self.hidden, False, dtype, kernel_init=init)
        self.head = nn.Dense(self.vocab, dtype=dtype, kernel_init=init)

    def __call__(
        self,
        source_BS: Array,
        target_BT: Array,
        *,
        source_valid_BS: Array | None = None,
        target_valid_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """`want` may name "states", "weights" (of attention) and "gates" (of an LSTM or a GRU);
        each side's are under "encoder", "decoder"."""
        gates = ("gates",) if CELLS[self.cell].gates else ()
        check_want(want, ("states", *gates, *(("weights",) if self.make_attention else ())))
        source, read = self.encode(
            source_BS, valid_BS=source_valid_BS, dropouts=dropouts, want=want
        )
        logits, _, written = self.decode(
            target_BT, source, valid_BT=target_valid_BT, dropouts=dropouts, want=want
        )
        return outputs(logits, {"encoder": read, "decoder": written}, want)

    def encode(
        self,
        source_BS: Array,
        *,
        valid_BS: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Source, Made]:
        dropouts = None if dropouts is None else dropouts.within("encoder")
        x_BSD = drop(self.source_embed(source_BS), dropouts, "embedding")
        self._check("source_BS", x_BSD)
        check_valid("valid_BS", valid_BS, {"B": x_BSD.shape[0], "S": x_BSD.shape[1]})
        x_BSE, last, made = self.encoder(x_BSD, valid_BT=valid_BS, dropouts=dropouts, want=want)
        start = self.start([jnp.concatenate(jax.tree.leaves(carries), -1) for carries in last])
        if self.make_attention is None:
            return Source(start, final(last[-1]), {}), made
        return Source(start, None, self.attention.look_at(x_BSE, valid_BS)), made

    def decode(
        self,
        target_BT: Array,
        source: Source,
        *,
        state: Carries | None = None,
        pos_BT: Array | None = None,
        valid_BT: Array | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Array, Carries, Made]:
        """Logits, the state to go on from, and what was wanted.

        Target tokens may be given all at once or piece by piece, each piece with the state that
        the one before it left and with its positions.
        """
        dropouts = None if dropouts is None else dropouts.within("decoder")
        x_BTD = drop(self.target_embed(target_BT), dropouts, "embedding")
        self._check("target_BT", x_BTD)
        batch, length, _ = x_BTD.shape
        check_valid("valid_BT", valid_BT, {"B": batch, "T": length})
        state = source.start if state is None else state
        before, look, context_BTE = self.look == "before", None, None
        given = {**source.seen, "dropouts": dropouts, "return_weights": "weights" in want}
        if source.context_BE is not None:
            context_BTE = jnp.repeat(source.context_BE[:, None], length, axis=1)
            x_BTD = jnp.concatenate([x_BTD, context_BTE], -1) if before else x_BTD
        elif before:
            look = Look(self.attention, params.positions(x_BTD, pos_BT), given)
        x_BTH, state, made = self.decoder(
            x_BTD, valid_BT=valid_BT, start=state, look=look, dropouts=dropouts, want=want
        )
        if look is not None:
            context_BTE = made.pop("context_BTE")
        elif context_BTE is None:
            context_BTE, weights_BHTS = self.attention(x_BTH, pos_BT=pos_BT, **given)
            made |= {} if weights_BHTS is None else {"weights_BHTS": weights_BHTS}
        read_BTD = jnp.tanh(self.readout(jnp.concatenate([context_BTE, x_BTH], -1)))
        logits_BTV = self.head(drop(read_BTD, dropouts, "head"))
        return logits_BTV.astype(jnp.float32), state, made

    def _check(self, name: str, x_BTD: Array) -> None:
        if self.max_length is not None and x_BTD.shape[1] > self.max_length:
            raise UserError(f"{name} is {x_BTD.shape[1]} long, but max_length={self.max_length}")


def make(what: SeqToSeqSpec) -> SeqToSeq:
    pick(CELLS, what.cell, "model.cell")
    pick(LOOKS, what.look, "model.look")
    attention = None if what.attention is None else _attention(what, what.attention)
    places = ("embedding", "residual", *(("attention",) if attention else ()), "head")
    check_used(what, places, attends=attention is not None)
    return SeqToSeq(
        cell=what.cell,
        vocab=what.vocab,
        width=what.width,
        hidden=what.hidden,
        layers=what.layers,
        bidirectional=what.bidirectional,
        make_attention=attention,
        look=what.look,
        max_length=what.max_length,
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )


def _attention(what: SeqToSeqSpec, own: AttentionSpec) -> Callable[[], SourceAttention] | None:
    key = "model.attention"
    score = pick({**SCORES, "none": None}, own.score, f"{key}.score")
    if score is None:
        return None
    pick(IMPLEMENTATIONS, own.implementation, f"{key}.implementation")
    if own.out_bias:
        raise UserError(f"{key}.out_bias: the cell or the head reads the heads as they are")
    if own.share_qk:
        raise UserError(f"{key}.share_qk: queries are the decoder's states, keys the encoder's")
    if own.head_width is None and what.hidden % own.heads:
        raise UserError(
            f"{key}.heads={own.heads} does not divide model.hidden={what.hidden}; give "
            f"{key}.head_width, or other heads"
        )
    kv_heads = own.kv_heads or own.heads
    if own.heads % kv_heads:
        raise UserError(f"{key}.kv_heads={kv_heads} must divide {key}.heads={own.heads}")
    return functools.partial(
        SourceAttention,
        heads=own.heads,
        head_width=own.head_width or what.hidden // own.heads,
        kv_heads=kv_heads,
        score=score,
        normalizer=pick(NORMALIZERS, own.normalizer, f"{key}.normalizer"),
        cap=own.cap,
        max_length=what.max_length,
        qkv_bias=own.qkv_bias,
        qk_norm=own.qk_norm,
        implementation=own.implementation,
        initial=parts.initial(what.initial),
        dtype=parts.dtype(what),
    )

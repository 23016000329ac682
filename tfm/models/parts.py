"""The parts that Transformers are made of, from their specs: names become functions here."""

import functools
from typing import Any

from jax import numpy as jnp

from tfm.layers import norm as norms
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.embed import PositionTable, TokenEmbedding
from tfm.layers.feedforward import KINDS, FeedForward
from tfm.layers.initial import INITIALIZERS, Initial
from tfm.layers.stack import REMAT, Stack
from tfm.models.checks import check_dropout
from tfm.models.spec import AttentionSpec, InitialSpec, PositionSpec, TransformerSpec
from tfm.names import UserError, pick, read
from tfm.ops.attend import IMPLEMENTATIONS
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import JOINS, POSITIONS, Position
from tfm.ops.scores import SCORES

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


def dtype(what: Any) -> Any:
    return pick(DTYPES, what.dtype, "model.dtype")


def initial(what: InitialSpec, sums: int = 1) -> Initial:
    return Initial(
        read(what.kernel, INITIALIZERS, "model.initial.kernel"),
        read(what.embedding, INITIALIZERS, "model.initial.embedding"),
        sums if what.by_depth else 1,
        what.small_query,
    )


def head_width(what: AttentionSpec, width: int, key: str) -> int:
    if what.head_width is not None:
        return what.head_width
    if width % what.heads:
        divisors = [n for n in range(1, width + 1) if width % n == 0]
        near = min(divisors, key=lambda n: (abs(n - what.heads), n))
        raise UserError(
            f"{key}.heads={what.heads} does not divide model.width={width}; did you mean "
            f"{key}.heads={near}? Or give {key}.head_width"
        )
    return width // what.heads


def attention(
    what: AttentionSpec, parent: Any, position: Position, initial: Initial, key: str
) -> functools.partial[MultiHeadAttention] | None:
    score = pick({**SCORES, "none": None}, what.score, f"{key}.score")
    pick(IMPLEMENTATIONS, what.implementation, f"{key}.implementation")
    normalizer = pick(NORMALIZERS, what.normalizer, f"{key}.normalizer")
    if score is None:
        return None
    return functools.partial(
        MultiHeadAttention,
        heads=what.heads,
        head_width=head_width(what, parent.width, key),
        kv_heads=what.kv_heads,
        score=score,
        normalizer=normalizer,
        cap=what.cap,
        position=position,
        max_length=parent.max_length,
        qkv_bias=what.qkv_bias,
        out_bias=what.out_bias,
        qk_norm=what.qk_norm,
        share_qk=what.share_qk,
        implementation=what.implementation,
        initial=initial,
        dtype=dtype(parent),
    )


def norm(what: TransformerSpec) -> norms.Norm:
    pick(norms.NORMS, what.norm.kind, "model.norm.kind")
    pick(norms.PLACES, what.norm.place, "model.norm.place")
    return norms.maker(what.norm.kind, what.norm.eps, what.norm.bias, dtype(what))


def embed(what: TransformerSpec, types: int = 0) -> functools.partial[TokenEmbedding]:
    joined = what.position.width or 0
    if joined >= what.width:
        raise UserError(f"model.position.width={joined} leaves nothing of model.width={what.width}")
    if joined and (getattr(what, "tied", False) or "masked_lm" in getattr(what, "heads", ())):
        raise UserError(
            "model.position.width: with positions concatenated, the head cannot be tied"
        )
    return functools.partial(
        TokenEmbedding,
        vocab=what.vocab,
        width=what.width - joined,
        types=types,
        scale=what.scale_embedding,
        initial=initial(what.initial).embedding,
        dtype=dtype(what),
    )


def check_places(what: TransformerSpec, *heads: str) -> None:
    """Raise if something is to be dropped where nothing is."""
    check_dropout(what, ["embedding", "attention", "residual", "feedforward", "output", *heads])


def stack(
    what: TransformerSpec,
    layers: int,
    scheme: str,
    key: str,
    cross: AttentionSpec | None = None,
) -> functools.partial[Stack]:
    position = read(scheme, POSITIONS, key)
    pick(JOINS, what.position.join, "model.position.join")
    for field in ("join", "amplitude", "learn_amplitude", "width"):
        value = getattr(what.position, field)
        if position.table is None and value != getattr(PositionSpec(), field):
            raise UserError(
                f"model.position.{field}={value}: {key}={scheme!r} has no table to join"
            )
    pick(REMAT, what.remat, "model.remat")
    own = what.attention
    kinds = {**KINDS, "none": None}
    activation = pick(kinds, what.feedforward.kind, "model.feedforward.kind")
    parts = [own.score != "none", cross is not None and cross.score != "none", activation]
    if not any(parts):
        raise UserError("model: without attention and feed-forward nothing is left of a layer")
    start = initial(what.initial, layers * sum(map(bool, parts)))
    make_norm = norm(what)
    in_layers = Position() if position.table else position
    looks = attention(own, what, in_layers, start, "model.attention")
    block = {
        "norm": make_norm,
        "attention": looks,
        "cross": cross and attention(cross, what, Position(), start, "model.cross"),
        "feedforward": activation
        and functools.partial(
            FeedForward,
            kind=what.feedforward.kind,
            width=what.feedforward.width,
            bias=what.feedforward.bias,
            initial=start,
            dtype=dtype(what),
        ),
        "place": what.norm.place,
        "residual": what.residual,
        "parallel": what.parallel,
    }
    final = what.norm.final
    table = functools.partial(
        PositionTable,
        position=position,
        join=what.position.join,
        amplitude=what.position.amplitude,
        learn_amplitude=what.position.learn_amplitude,
        max_length=what.max_length,
        width=what.position.width,
    )
    return functools.partial(
        Stack,
        layers=layers,
        block=block,
        norm=make_norm,
        sizes={} if looks is None else looks.func(**looks.keywords).sizes,
        table=table,
        position=in_layers,
        share_position=what.position.share,
        embed_norm=what.norm.embedding,
        final_norm=what.norm.place != "post" if final is None else final,
        scan=what.scan,
        remat=what.remat,
    )

"""The formula of each stage, from the spec of the model and from docstrings of the code."""

import inspect
import re
from typing import Any

from tfm.layers.attention import AttentionSpec
from tfm.layers.block import ACTIVATIONS, GATED, MIXERS, FeedForwardSpec
from tfm.layers.norm import NormSpec
from tfm.models.spec import (
    ConvolutionSpec,
    EncoderSpec,
    RecurrentSpec,
    SeqToSeqSpec,
    TransformerSpec,
)
from tfm.ops.positions import POSITIONS

NORMALIZERS = {
    "softmax": "w_ts = exp(s_ts) / Σ_u exp(s_tu)",
    "softmax_zero": "w_ts = exp(s_ts) / (1 + Σ_u exp(s_tu)): a row may look at nothing",
    "sigmoid": "w_ts = 1 / (1 + exp(−s_ts)): each by itself",
    "relu": "w_ts = max(s_ts, 0)",
    "none": "w_ts = s_ts",
}
GATES = {
    "lstm": "i, f, o = σ(U x + W h + b),  g = tanh(U x + W h + b);  c′ = f ⊙ c + i ⊙ g,  "
    "h′ = o ⊙ tanh(c′)",
    "gru": "r, z = σ(U x + W h + b),  n = tanh(U x + b + r ⊙ (W h + b′));  "
    "h′ = (1 − z) ⊙ n + z ⊙ h",
    "rnn": "h′ = tanh(U x + W h + b)",
}
GATE_NAMES = {
    "i": "i: what is written",
    "f": "f: what is kept",
    "g": "g: what would be written",
    "o": "o: what is shown",
    "r": "r: what is read of the old state",
    "z": "z: what is kept",
    "n": "n: what would be written",
}
MIXED = {  # the outputs of built-in mixers
    "linear_attention": "y = concat(z₁ … z_H) W_o",
    "token_mlp": "y = W₂ gelu(W₁ x), over positions",
    "convolution": "y = conv(x) + b, over positions",
    "state_space": "h′ = Λ h + √(1 − |Λ|²) B x,  y = Re(C h′) + d ⊙ x",
}
CODED = {"one_hot": "onehot(id)", "scalar": "(u · id / V + c)"}  # others look up E[id]
BUILTIN = ("attention", "recurrent", *MIXED)
JOINED = {"add": "{} + {}", "multiply": "{} ⊙ {}", "concatenate": "[{}, {}]"}


def said(thing: Any, otherwise: str) -> str:
    """Returns the first paragraph of a docstring as one line, without its verb before a formula."""
    text = inspect.getdoc(thing) if callable(thing) else None
    line = otherwise if not text else " ".join(text.split("\n\n")[0].split())
    return re.sub("^(Computes|Returns) ", "", line)


def embedding(spec: TransformerSpec, table: bool) -> str:
    """Returns x of the first layer, before a norm of the embeddings."""
    x = CODED.get(spec.coding, "E[id]")
    if spec.scale_embedding:
        x = f"√{spec.embed_dims.width} · {x}"
    if getattr(spec, "types", 0):
        x += " + S[type]"
    if not table:
        return f"x = {x}"
    position, place = spec.position, "P[t]"
    if position.learn_amplitude:
        place = "a · P[t]"
    elif position.amplitude != 1:
        place = f"{position.amplitude:g} · P[t]"
    x = f"({x})" if " + " in x and position.join != "add" else x
    return "x = " + JOINED.get(position.join, f"{position.join}({{}}, {{}})").format(x, place)


def projections(
    spec: AttentionSpec, rotated: bool = False, query: str = "x", key: str = "x"
) -> str:
    """Returns q, k and v, computed from the states `query` and `key`."""

    def projected(name: str, x: str, place: str) -> str:
        weights = "query" if name == "key" and spec.share_qk else name
        text, letter = f"{x}, cut into heads", weights[0]
        if weights in spec.projections:
            text = f"{x} W_{letter}" + f" + b_{letter}" * spec.qkv_bias
        if name == "value":
            return text
        text = f"rms({text})" if spec.qk_norm else text
        return f"R_{place} ({text})" if rotated else text

    parts = {"q": ("query", query, "t"), "k": ("key", key, "s"), "v": ("value", key, "s")}
    return ",  ".join(f"{letter} = {projected(*part)}" for letter, part in parts.items())


def joined(spec: AttentionSpec) -> str:
    """Returns the output of all heads."""
    out = " W_o" + " + b_o" * spec.out_bias if "out" in spec.projections else ""
    return f"y = concat(z₁ … z_H){out}"


def score(spec: AttentionSpec) -> str:
    return f"s_ts = {said(spec.score.entry.fn, str(spec.score))}"


def cap(spec: AttentionSpec) -> str:
    return "" if spec.cap is None else f"; capped: {spec.cap} · tanh(s / {spec.cap})"


def normalizer(spec: AttentionSpec) -> str:
    name, entry = spec.normalizer.names[0], spec.normalizer.entry
    function = entry.row or entry.each or entry.total
    return NORMALIZERS.get(name) or f"{spec.normalizer}: {said(function, name)}"


def norm(spec: NormSpec) -> str:
    text = said(spec.kind.entry.apply, str(spec.kind))
    text = text if spec.bias else text.replace(" + bias", "")
    return f"norm(x) = {text.replace('ε', f'{spec.eps:g}')}"


def position(scheme: Any) -> str:
    return f"{scheme}: {said(POSITIONS.get(scheme.names[0]), str(scheme))}"


def feedforward(spec: FeedForwardSpec) -> str:
    up, gate, out = (f" + b_{i}" * spec.bias for i in "1g2")
    if spec.kind in GATED:
        inner = f"(x W_1{up})" if up else "x W_1"
        return f"y = (f(x W_g{gate}) ⊙ {inner}) W_2{out},  f = {GATED[spec.kind]}"
    if spec.kind in ACTIVATIONS:
        return f"y = f(x W_1{up}) W_2{out},  f = {spec.kind}"
    return said(spec.kind.entry, str(spec.kind))


def mixer(name: Any, gates: str | None, linear: bool) -> str:
    """Returns the output of a mixer other than attention; `gates` are the letters of its gates, and
    a `linear` one has weights."""
    kind = name.names[0]
    if kind == "recurrent":
        cell = "lstm" if "f" in (gates or "") else "gru" if gates else "rnn"
        return f"{GATES[cell]};  y = h′ W + b"
    if kind == "token_mlp" and linear:
        return "y_t = Σ_s w_ts x_s"
    return MIXED.get(kind, "y = mixer(x)")


def mixer_text(name: Any) -> str:
    return said(MIXERS.get(name.names[0]), str(name))


def residual(spec: TransformerSpec, parallel: bool) -> str:
    y = "Σ y" if parallel else "y"
    y = f"norm({y})" if spec.norm.placement == "sandwich" and spec.norm.kind != "none" else y
    return f"x′ = x + {y}" if spec.residual else f"x′ = {y}"


def layer(spec: Any) -> str:
    """Returns a layer of the bag of words or of the convolutional classifier."""
    if not isinstance(spec, ConvolutionSpec):
        return f"x′ = f(x W + b),  f = {spec.activation}"
    inner = "norm(conv(x))" if spec.batch_norm else "conv(x) + b"
    pooled = f"max of each {spec.pool} of f({inner})" if spec.pool > 1 else f"f({inner})"
    return f"x′ = {pooled},  f = {spec.activation}"


def head(spec: Any, output: str | None) -> str:
    """Returns the logits; `output` is the one that the objective reads."""
    if isinstance(spec, SeqToSeqSpec):
        found = "what the attention found" if spec.attends else "the summary of the source"
        return f"logits = tanh([c_t; h_t] W) V + b,  c_t: {found}"
    if isinstance(spec, RecurrentSpec):
        last = ",  h: the last state" if spec.shape == "N:1" else ""
        return "logits = h Eᵀ,  E: the embedding" if spec.tied else f"logits = h W + b{last}"
    if isinstance(spec, EncoderSpec):
        if output == "masked_lm":
            kind = GATED.get(spec.feedforward.kind, spec.feedforward.kind)
            x = "f(x W + b)" if spec.norm.kind == "none" else "norm(f(x W + b))"
            f = kind if kind in ACTIVATIONS else "gelu"
            return f"logits = {x} Eᵀ + c,  E: the embedding,  f = {f}"
        if output == "tag":
            return "logits = x W + b"
        pooled = "tanh(x_0 W_p + b_p)" if spec.pooler else "x_0"
        return f"logits = {pooled} W + b,  x_0: the state of the first token"
    if not isinstance(spec, TransformerSpec):
        return "logits = x W + b"
    x = f"x / √{spec.width}" if getattr(spec, "scale_head", False) else "x"
    if not getattr(spec, "tied", False):
        return f"logits = {x} W_head" if x == "x" else f"logits = ({x}) W_head"
    if spec.coding == "one_hot":
        return f"logits = the first V numbers of {x}"
    own = "" if getattr(spec, "share_embedding", True) else " of the decoder"
    return f"logits = {f'({x})' if ' ' in x else x} Eᵀ,  E: the embedding{own}"

"""The formula of each stage, as the code itself states it: the first lines of docstrings."""

import inspect
import re
from typing import Any

from tfm.layers.attention import AttentionSpec
from tfm.layers.block import ACTIVATIONS, GATED, MIXERS, FeedForwardSpec
from tfm.layers.norm import NormSpec
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
    "gru": "r, z = σ(U x + W h + b),  n = tanh(U x + r ⊙ W h);  h′ = (1 − z) ⊙ n + z ⊙ h",
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


def said(thing: Any, otherwise: str) -> str:
    """Returns the first paragraph of a docstring as one line, without its verb before a formula."""
    text = inspect.getdoc(thing) if callable(thing) else None
    line = otherwise if not text else " ".join(text.split("\n\n")[0].split())
    return re.sub("^(Computes|Returns) ", "", line)


def score(spec: AttentionSpec) -> str:
    return f"s_ts = {said(spec.score.entry.fn, str(spec.score))}"


def cap(spec: AttentionSpec) -> str:
    return "" if spec.cap is None else f"; capped: {spec.cap} · tanh(s / {spec.cap})"


def normalizer(spec: AttentionSpec) -> str:
    name = spec.normalizer.names[0]
    entry = spec.normalizer.entry
    return NORMALIZERS.get(name) or f"{spec.normalizer}: {said(entry.row or entry.each, name)}"


def norm(spec: NormSpec) -> str:
    if spec.kind.entry is None:
        return "x: there is no norm"
    return said(spec.kind.entry.apply, str(spec.kind))


def position(scheme: Any) -> str:
    return f"{scheme}: {said(POSITIONS.get(scheme.names[0]), str(scheme))}"


def feedforward(spec: FeedForwardSpec) -> str:
    if spec.kind in GATED:
        return f"y = W₂ (f(W_g x) ⊙ W₁ x),  f = {GATED[spec.kind]}"
    if spec.kind in ACTIVATIONS:
        return f"y = W₂ f(W₁ x),  f = {spec.kind}"
    return said(spec.kind.entry, str(spec.kind))


def mixer(name: Any) -> str:
    return said(MIXERS.get(name.names[0]), str(name))


def residual(placement: str, adds: bool) -> str:
    plain = {"pre": "x′ = x + f(norm(x))", "post": "x′ = norm(x + f(x))",
             "sandwich": "x′ = x + norm(f(norm(x)))"}[placement]  # fmt: skip
    return plain if adds else plain.replace("x + ", "")

"""LLaMA.  Touvron et al. 2023; Llama team 2024."""

from collections.abc import Collection, Iterator
from typing import Any

from tfm.config.names import UserError
from tfm.interop.model_type import (
    ConfigJson,
    ModelType,
    Pair,
    call,
    gated,
    linear,
    norm,
    scheme_options,
    their_activation,
)
from tfm.layers.block import GATED
from tfm.models.spec import DecoderSpec

ROPE = {  # rope_type → its options: key of transformers → our option
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        "original_max_position_embeddings": "trained",
    },
}


def from_config(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    heads, width = config.number("num_attention_heads"), config.number("hidden_size")
    bias = config.flag("attention_bias", False)
    return {
        "family": "decoder",
        "vocab": config.number("vocab_size"),
        "width": width,
        "layers": config.value("num_hidden_layers", int),
        "max_length": config.value("max_position_embeddings", int, 2048),
        "attention": {
            "heads": heads,
            "head_width": config.number("head_dim", width // heads),
            "kv_heads": config.number("num_key_value_heads", heads),
            "qkv_bias": bias,
            "out_bias": bias,
        },
        "feedforward": {
            "width": config.number("intermediate_size"),
            "kind": gated(config.activation("hidden_act", "silu"), "hidden_act"),
            "bias": config.flag("mlp_bias", False),
        },
        "norm": {"kind": "rms", "eps": config.value("rms_norm_eps", float, 1e-6)},
        "position": {"scheme": _rotary(config)},
        "init": {"kernel": "normal(stddev=0.02)"},
        "dropout": {"attention": config.rate("attention_dropout", 0.0)},
        "tied": config.flag("tie_word_embeddings", False),
    }


def _rotary(config: ConfigJson) -> str:
    """Returns our scheme from the old keys (rope_theta, rope_scaling) or those of transformers
    5."""
    # Like transformers, prefer rope_scaling.
    where = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    rope = ConfigJson(config.value(where, dict, {}), f"{where}.")
    config.agree("rope_parameters", "rope_scaling", config.values.get("rope_scaling") or None)
    rope.agree("rope_theta", "rope_theta", config.values.get("rope_theta"))
    rope.agree("rope_type", f"{where}.type", rope.values.get("type"))
    config.only(partial_rotary_factor=1.0)
    if rope.value("partial_rotary_factor", float, 1.0) != 1.0:
        raise UserError(
            f"{where}.partial_rotary_factor is not supported, only 1.0: the LLaMA of transformers "
            "ignores it and rotates all features"
        )
    base = config.value("rope_theta", float, 10_000.0)
    options: dict[str, Any] = {"base": rope.value("rope_theta", float, base)}
    kind = rope.value("rope_type", str, rope.value("type", str, "default"))
    if kind not in ROPE:
        raise UserError(
            f"rope_type={kind!r} is not supported; these are: {', '.join(map(repr, ROPE))}"
        )
    if kind != "default":
        options["scaling"] = kind
    for key, option in ROPE[kind].items():
        options[option] = rope.value(key, int if option == "trained" else float)
    if "trained" in options:  # transformers prefers the outer key, so the two must agree
        config.only(original_max_position_embeddings=options["trained"])
    # transformers also writes "factor" with the default type, without using it.
    known = {"partial_rotary_factor", "rope_theta", "rope_type", "type", "factor", *ROPE[kind]}
    for key, setting in rope.values.items():
        if key not in known and setting is not None:
            raise UserError(f"rope setting {key}={setting!r} is not supported with {kind!r}")
    return call("rotary", options)


def to_config(spec: Any) -> dict[str, Any]:
    rotary = scheme_options(spec.position.scheme, "rotary")
    kind, scaling = rotary.get("scaling", "none"), None
    if kind != "none":
        usual = {"factor": 1.0, "low": 1.0, "high": 4.0, "trained": 8192}
        keys = ROPE.get(kind, {"factor": "factor"})
        scaling = {"rope_type": kind} | {
            key: rotary.get(option, usual[option]) for key, option in keys.items()
        }
    heads = spec.attention.heads
    if spec.feedforward.kind not in GATED:
        raise UserError(
            f"feedforward.kind={spec.feedforward.kind!r} has no gate, and LLaMA's has one; "
            f"these can be exported: {', '.join(GATED)}"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "max_position_embeddings": spec.max_length,
        "num_attention_heads": heads,
        "num_key_value_heads": spec.attention.kv_heads or heads,
        "head_dim": spec.attention.head_width or spec.width // heads,
        "attention_bias": spec.attention.qkv_bias,
        "attention_dropout": spec.dropout.attention or 0.0,
        "intermediate_size": spec.feedforward.width,
        "hidden_act": their_activation(GATED[spec.feedforward.kind]),
        "mlp_bias": spec.feedforward.bias,
        "rms_norm_eps": spec.norm.eps,
        "rope_theta": rotary.get("base", 10_000.0),
        "rope_scaling": scaling,
        "tie_word_embeddings": spec.tied,
    }


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("embed_tokens.weight", ("embed/token/embedding",))
    attention, feedforward = spec.attention.qkv_bias, spec.feedforward.bias
    for n in range(spec.layers):
        theirs, ours = f"layers.{n}", f"decoder/layer_{n}"
        yield from norm(f"{theirs}.input_layernorm", f"{ours}/attention_norm", False)
        for name in ("query", "key", "value"):
            at = f"{theirs}.self_attn.{name[0]}_proj"
            yield from linear(at, f"{ours}/attention/{name}", attention)
        yield from linear(f"{theirs}.self_attn.o_proj", f"{ours}/attention/out", attention, 2)
        yield from norm(f"{theirs}.post_attention_layernorm", f"{ours}/feedforward_norm", False)
        for name in ("gate", "up", "down"):
            at = f"{theirs}.mlp.{name}_proj"
            yield from linear(at, f"{ours}/feedforward/{name}", feedforward)
    yield from norm("norm", "decoder/norm", False)
    if not spec.tied:
        yield from linear("lm_head", "head", False)


MODEL_TYPE = ModelType(
    DecoderSpec,
    from_config,
    to_config,
    pairs,
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
    prefix="model.",
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
)

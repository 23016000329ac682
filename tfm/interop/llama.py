"""LLaMA.  Touvron et al. 2023; Llama team 2024."""

from collections.abc import Collection, Iterator
from typing import Any

from tfm.config.names import UserError
from tfm.interop.model_type import ConfigJson, Key, ModelType, Pair, call, module, scheme_options
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


def _read_rope(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    """Reads our scheme from the old keys (rope_theta, rope_scaling) or those of transformers 5."""
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
    return {"position.scheme": call("rotary", options)}


def _write_rope(spec: Any) -> dict[str, Any]:
    rotary = scheme_options(spec.position.scheme, "rotary")
    kind, scaling = rotary.get("scaling", "none"), None
    if kind != "none":
        usual = {"factor": 1.0, "low": 1.0, "high": 4.0, "trained": 8192}
        keys = ROPE.get(kind, {"factor": "factor"})
        scaling = {"rope_type": kind} | {
            key: rotary.get(option, usual[option]) for key, option in keys.items()
        }
    return {"rope_theta": rotary.get("base", 10_000.0), "rope_scaling": scaling}


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("embed_tokens.weight", ("embed/token/embedding",))
    attention, feedforward = spec.attention.qkv_bias, spec.feedforward.bias
    for n in range(spec.layers):
        theirs, ours = f"layers.{n}", f"decoder/layer_{n}"
        yield from module(f"{theirs}.input_layernorm", f"{ours}/attention_norm")
        for name in ("query", "key", "value"):
            at = f"{theirs}.self_attn.{name[0]}_proj"
            yield from module(at, f"{ours}/attention/{name}", attention)
        yield from module(f"{theirs}.self_attn.o_proj", f"{ours}/attention/out", attention)
        yield from module(f"{theirs}.post_attention_layernorm", f"{ours}/feedforward_norm")
        for name in ("gate", "up", "down"):
            at = f"{theirs}.mlp.{name}_proj"
            yield from module(at, f"{ours}/feedforward/{name}", feedforward)
    yield from module("norm", "decoder/norm")
    if not spec.tied:
        yield from module("lm_head", "head")


MODEL_TYPE = ModelType(
    spec=DecoderSpec,
    keys=(
        Key("vocab_size", "vocab", "size"),
        Key("hidden_size", "width", "size"),
        Key("num_hidden_layers", "layers", int),
        Key("max_position_embeddings", "max_length", int, 2048),
        Key("num_attention_heads", "attention.heads", "size"),
        Key("num_key_value_heads", "attention.kv_heads", "size", lambda at: at("attention.heads")),
        Key(
            "head_dim",
            "attention.head_width",
            "size",
            lambda at: at("width") // at("attention.heads"),
        ),
        Key("attention_bias", "attention.qkv_bias attention.out_bias", bool, False),
        Key("attention_dropout", "dropout.attention", "rate", 0.0),
        Key("intermediate_size", "feedforward.width", "size"),
        Key("hidden_act", "feedforward.kind", "gated", "silu"),
        Key("mlp_bias", "feedforward.bias", bool, False),
        Key("rms_norm_eps", "norm.eps", float, 1e-6),
        Key("tie_word_embeddings", "tied", bool, False),
    ),
    settings={"norm": {"kind": "rms"}, "init": {"kernel": "normal(stddev=0.02)"}},
    read=_read_rope,
    write=_write_rope,
    pairs=pairs,
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
    prefix="model.",
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ids={"bos_token_id": 1, "eos_token_id": 2},
)

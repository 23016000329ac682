"""T5, T5 1.1 and UL2.  Raffel et al. 2020; Tay et al. 2022."""

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
from tfm.models.spec import EncoderDecoderSpec


def from_config(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    """Returns the tree of a spec; the head is tied unless the file has a tensor for it."""
    buckets = {
        "buckets": config.number("relative_attention_num_buckets", 32),
        "max_distance": config.value("relative_attention_max_distance", int, 128),
    }
    layers = config.value("num_layers", int)
    dropped = config.rate("dropout_rate", 0.1)
    places = ("embedding", "attention", "residual", "feedforward", "output")
    # transformers reads tie_word_embeddings as "scale the states before the head".
    scale = config.flag("tie_word_embeddings", True)
    return {
        "family": "encoder_decoder",
        "vocab": config.number("vocab_size"),
        "width": config.number("d_model"),
        "layers": layers,
        "decoder_layers": config.value("num_decoder_layers", int, layers),
        "max_length": config.value("n_positions", int, 512),
        "attention": {
            "heads": config.number("num_heads"),
            "head_width": config.number("d_kv"),
            "score": "dot",
        },
        "feedforward": {
            "width": config.number("d_ff"),
            "kind": _feedforward(config),
            "bias": False,
        },
        "norm": {"kind": "rms", "eps": config.value("layer_norm_epsilon", float, 1e-6)},
        "position": {"scheme": call("relative", buckets)},
        "decoder_scheme": call("relative", {**buckets, "bidirectional": False}),
        "tied": "lm_head.weight" not in tensors,
        "scale_head": config.flag("scale_decoder_outputs", scale),
        "init": {"embedding": "normal(stddev=1.0)", "small_query": True},
        "dropout": dict.fromkeys(places, dropped),
    }


def _feedforward(config: ConfigJson) -> str:
    """Returns our kind from `NAME` or `gated-NAME`."""
    key = "feed_forward_proj"
    text = config.value(key, str, "relu")
    gate, _, name = text.rpartition("-")
    if gate not in ("", "gated"):
        raise UserError(f"{key}={text!r} must be NAME or gated-NAME")
    if gate and name == "gelu":  # transformers means the tanh form
        name = "gelu_new"
    kind = ConfigJson({key: name}).activation(key, "relu")
    # transformers also writes two derived keys, and prefers them if they differ.
    for other, follows in {"dense_act_fn": name, "is_gated_act": bool(gate)}.items():
        if config.values.get(other) != follows:
            ConfigJson({key: text}).agree(key, other, config.values.get(other))
    return gated(kind, key) if gate else kind


def to_config(spec: Any) -> dict[str, Any]:
    bias = scheme_options(spec.position.scheme, "relative")
    kind = spec.feedforward.kind
    name = "gelu" if kind == "geglu_tanh" else their_activation(GATED.get(kind, kind))
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": spec.vocab,
        "d_model": spec.width,
        "num_layers": spec.layers,
        "num_decoder_layers": spec.decoder_layers or spec.layers,
        "n_positions": spec.max_length,
        "num_heads": spec.attention.heads,
        "d_kv": spec.attention.head_width or spec.width // spec.attention.heads,
        "d_ff": spec.feedforward.width,
        "feed_forward_proj": f"gated-{name}" if kind in GATED else name,
        "layer_norm_epsilon": spec.norm.eps,
        "relative_attention_num_buckets": bias.get("buckets", 32),
        "relative_attention_max_distance": bias.get("max_distance", 128),
        "dropout_rate": spec.dropout.residual or 0.0,
        "tie_word_embeddings": spec.scale_head,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
    }


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("shared.weight", ("embed/token/embedding",))
    names = {"wi_0": "gate", "wi_1": "up"} if spec.feedforward.kind in GATED else {"wi": "up"}
    sides = {"encoder": spec.layers, "decoder": spec.decoder_layers or spec.layers}
    for side, layers in sides.items():
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Pair(bias, (f"{side}/position_w_UH",))
        attentions = {"SelfAttention": "attention"}
        if side == "decoder":
            attentions["EncDecAttention"] = "cross"
        for n in range(layers):
            theirs, ours = f"{side}.block.{n}.layer", f"{side}/layer_{n}"
            for index, (name, ours_name) in enumerate(attentions.items()):
                yield from norm(f"{theirs}.{index}.layer_norm", f"{ours}/{ours_name}_norm", False)
                for part in ("query", "key", "value"):
                    at = f"{theirs}.{index}.{name}.{part[0]}"
                    yield from linear(at, f"{ours}/{ours_name}/{part}", False)
                yield from linear(f"{theirs}.{index}.{name}.o", f"{ours}/{ours_name}/out", False, 2)
            last = f"{theirs}.{len(attentions)}"
            yield from norm(f"{last}.layer_norm", f"{ours}/feedforward_norm", False)
            for name, part in {**names, "wo": "down"}.items():
                at = f"{last}.DenseReluDense.{name}"
                yield from linear(at, f"{ours}/feedforward/{part}", False)
        yield from norm(f"{side}.final_layer_norm", f"{side}/norm", False)
    if not spec.tied:
        yield from linear("lm_head", "head", False)


MODEL_TYPE = ModelType(
    EncoderDecoderSpec,
    from_config,
    to_config,
    pairs,
    architectures=("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    names={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    # Written by an early release, and unused.
    ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)

"""T5, T5 1.1 and UL2.  Raffel et al. 2020; Tay et al. 2022."""

from collections.abc import Collection, Iterator
from typing import Any

from tfm.config.names import UserError
from tfm.interop.model_type import (
    ConfigJson,
    Key,
    ModelType,
    Pair,
    call,
    module,
    scheme_options,
    their_activation,
)
from tfm.layers.block import GATED
from tfm.models.spec import EncoderDecoderSpec


def read(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    """Returns further settings; the head is tied unless the file has a tensor for it."""
    buckets = {
        "buckets": config.size("relative_attention_num_buckets", 32),
        "max_distance": config.value("relative_attention_max_distance", int, 128),
    }
    # transformers reads tie_word_embeddings as "scale the states before the head".
    scale = config.value("tie_word_embeddings", bool, True)
    return {
        "feedforward.kind": _feedforward(config),
        "position.scheme": call("relative", buckets),
        "decoder_scheme": call("relative", {**buckets, "bidirectional": False}),
        "tied": "lm_head.weight" not in tensors,
        "scale_head": config.value("scale_decoder_outputs", bool, scale),
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
    ours = ConfigJson({key: name})
    kind = ours.gated(key, "relu") if gate else ours.activation(key, "relu")
    # transformers also writes two derived keys, and prefers them if they differ.
    for other, follows in {"dense_act_fn": name, "is_gated_act": bool(gate)}.items():
        if config.values.get(other) != follows:
            ConfigJson({key: text}).agree(key, other, config.values.get(other))
    return kind


def write(spec: Any) -> dict[str, Any]:
    bias = scheme_options(spec.position.scheme, "relative")
    kind = spec.feedforward.kind
    name = "gelu" if kind == "geglu_tanh" else their_activation(GATED.get(kind, kind))
    return {
        "feed_forward_proj": f"gated-{name}" if kind in GATED else name,
        "relative_attention_num_buckets": bias.get("buckets", 32),
        "relative_attention_max_distance": bias.get("max_distance", 128),
        "tie_word_embeddings": spec.scale_head,
        "is_encoder_decoder": True,
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
                yield from module(f"{theirs}.{index}.layer_norm", f"{ours}/{ours_name}_norm")
                for part in ("query", "key", "value"):
                    at = f"{theirs}.{index}.{name}.{part[0]}"
                    yield from module(at, f"{ours}/{ours_name}/{part}")
                yield from module(f"{theirs}.{index}.{name}.o", f"{ours}/{ours_name}/out")
            last = f"{theirs}.{len(attentions)}"
            yield from module(f"{last}.layer_norm", f"{ours}/feedforward_norm")
            for name, part in {**names, "wo": "down"}.items():
                yield from module(f"{last}.DenseReluDense.{name}", f"{ours}/feedforward/{part}")
        yield from module(f"{side}.final_layer_norm", f"{side}/norm")
    if not spec.tied:
        yield from module("lm_head", "head")


PLACES = ("residual", "embedding", "attention", "feedforward", "output")
MODEL_TYPE = ModelType(
    spec=EncoderDecoderSpec,
    keys=(
        Key("vocab_size", "vocab", "size"),
        Key("d_model", "width", "size"),
        Key("num_layers", "layers", int),
        Key("num_decoder_layers", "decoder_layers", int, lambda setting: setting("layers")),
        Key("n_positions", "max_length", int, 512),
        Key("num_heads", "attention.heads", "size"),
        Key("d_kv", "attention.head_width", "size"),
        Key("d_ff", "feedforward.width", "size"),
        Key("layer_norm_epsilon", "norm.eps", float, 1e-6),
        Key("dropout_rate", " ".join(f"dropout.{place}" for place in PLACES), "rate", 0.1),
    ),
    settings={
        "attention": {"score": "dot"},
        "feedforward": {"bias": False},
        "norm": {"kind": "rms"},
        "init": {"embedding": "normal(stddev=1.0)", "small_query": True},
    },
    read=read,
    write=write,
    pairs=pairs,
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
    ids={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
)

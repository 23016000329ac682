"""Hugging Face's `config.json` beside our specs, in both directions.

What their config asks for and we cannot do is an error; what our spec holds and theirs cannot say
is found by going there and back.
"""

import ast
import dataclasses
import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfm.models.spec import (
    AttentionSpec,
    DecoderSpec,
    DropoutSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    FeedForwardSpec,
    InitialSpec,
    NormSpec,
    PositionSpec,
    TransformerSpec,
)
from tfm.names import UserError, pick, suggest
from tfm.ops.positions import POSITIONS

Config = Mapping[str, Any]

ACTIVATIONS = {  # theirs → ours
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
# How a model is computed and trained, which their config does not say.
NOT_THEIRS = ("scan", "remat", "dtype", "initial", "dropout", "attention.implementation")


def value(config: Config, key: str, kind: type, default: Any = None, inside: str = "") -> Any:
    """What stands under a key, of the type it must have. Null is as good as absent."""
    found, name = config.get(key), inside + key
    if found is None:
        if default is None:
            raise UserError(f"config.json has no {name!r}")
        return default
    if kind is float and type(found) is int and abs(found) < 2**53:
        found = float(found)
    fits = type(found) is kind
    if not fits:
        raise UserError(f"{name} in config.json must be {kind.__name__}, not {found!r}")
    if kind is int and found < 1:
        raise UserError(f"{name}={found} in config.json must be at least 1")
    if kind is float and not 0 <= found < math.inf:
        raise UserError(f"{name}={found} in config.json must be a number from 0 up")
    return found


def number(config: Config, key: str, default: int | None = None) -> int:
    """A size: a whole number from 1 up."""
    return value(config, key, int, default)


def flag(config: Config, key: str, default: bool) -> bool:
    return value(config, key, bool, default)


def rate(config: Config, key: str, default: float) -> float | None:
    """A dropout rate; 0 is off."""
    found = value(config, key, float, default)
    if found >= 1:
        raise UserError(f"{key}={found} in config.json must be less than 1")
    return found or None


def activation(config: Config, key: str, default: str) -> str:
    name = value(config, key, str, default)
    if name not in ACTIVATIONS:
        raise UserError(f"{key}={name!r} is no activation of ours{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def gated(kind: str, key: str) -> str:
    """Our name of a feed-forward whose gate has this activation."""
    if kind not in GATED:
        raise UserError(f"{key}: there is no gate of {kind!r} here; known: {', '.join(GATED)}")
    return GATED[kind]


def theirs(kind: str, key: str) -> str:
    """The name they have for our activation."""
    for name, own in ACTIVATIONS.items():
        if own == kind:
            return name
    can = ", ".join(sorted(set(ACTIVATIONS.values())))
    raise UserError(f"{key}={kind!r} has no name there; these have one: {can}")


def only(config: Config, **wanted: Any) -> None:
    """Raise where the config asks for what we do not do; absent keys have their usual values."""
    for key, usual in wanted.items():
        found = config.get(key)
        if found is not None and found != usual:
            raise UserError(f"{key}={found!r} is not supported, only {usual!r}")


def from_gpt2(config: Config, tensors: Collection[str]) -> DecoderSpec:
    only(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    width = number(config, "n_embd")
    return DecoderSpec(
        vocab=number(config, "vocab_size"),
        width=width,
        layers=number(config, "n_layer"),
        max_length=number(config, "n_positions"),
        attention=AttentionSpec(heads=number(config, "n_head"), qkv_bias=True, out_bias=True),
        feedforward=FeedForwardSpec(
            width=number(config, "n_inner", 4 * width),
            kind=activation(config, "activation_function", "gelu_new"),
        ),
        norm=NormSpec(eps=value(config, "layer_norm_epsilon", float, 1e-5)),
        position=PositionSpec(scheme="learned"),
        initial=InitialSpec(kernel="normal(stddev=0.02)", by_depth=True),
        dropout=DropoutSpec(
            embedding=rate(config, "embd_pdrop", 0.1),
            attention=rate(config, "attn_pdrop", 0.1),
            residual=rate(config, "resid_pdrop", 0.1),
        ),
        tied=flag(config, "tie_word_embeddings", True),
    )


def to_gpt2(spec: DecoderSpec) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocab,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_positions": spec.max_length,
        "n_head": spec.attention.heads,
        "n_inner": spec.feedforward.width,
        "activation_function": theirs(spec.feedforward.kind, "feedforward.kind"),
        "layer_norm_epsilon": spec.norm.eps,
        "embd_pdrop": spec.dropout.embedding or 0.0,
        "attn_pdrop": spec.dropout.attention or 0.0,
        "resid_pdrop": spec.dropout.residual or 0.0,
        "tie_word_embeddings": spec.tied,
    }


ROPE = {  # kind → their key, and ours, of what it needs
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        "original_max_position_embeddings": "trained",
    },
}


def rope(config: Config) -> str:
    """A rotary scheme, from the old keys (rope_theta, rope_scaling) or transformers 5's."""
    where = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"  # as they choose
    held = {k: v for k, v in value(config, where, dict, {}).items() if v is not None}
    inside = f"{where}."
    only(config, partial_rotary_factor=1.0)
    if held.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(
            f"{inside}partial_rotary_factor is not supported, only 1.0: the LLaMA of transformers "
            "turns all features, whatever it says"
        )
    base = value(config, "rope_theta", float, 10_000.0)
    options: dict[str, Any] = {"base": value(held, "rope_theta", float, base, inside)}
    kind = value(held, "rope_type", str, value(held, "type", str, "default", inside), inside)
    if kind not in ROPE:
        can = ", ".join(map(repr, ROPE))
        raise UserError(f"rope_type={kind!r} is not supported; these are: {can}")
    if kind != "default":
        options["scaling"] = kind
    for key, own in ROPE[kind].items():
        options[own] = value(held, key, int if own == "trained" else float, None, inside)
    if "trained" in options:  # a second one, outside, would win over there
        only(config, original_max_position_embeddings=options["trained"])
    usual = {"rope_theta", "rope_type", "type", "factor"}  # "factor" is no part of the default
    for key, found in held.items():
        if key not in usual | set(ROPE[kind]):
            raise UserError(f"rope setting {key}={found!r} is not supported with {kind!r}")
    return _call("rotary", options)


def _call(name: str, options: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def options_of(scheme: str, wanted: str, key: str) -> dict[str, Any]:
    """The options of `wanted(option=value)`."""
    try:
        node = ast.parse(scheme.strip(), mode="eval").body
        keywords = node.keywords if isinstance(node, ast.Call) else []
        options = {str(k.arg): ast.literal_eval(k.value) for k in keywords}
    except (SyntaxError, ValueError):
        raise UserError(f"{key}={scheme!r} is not a name or name(option=value)") from None
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name) or name.id != wanted:
        raise UserError(f"{key}={scheme!r} cannot be exported; {wanted!r} can")
    return options


def from_llama(config: Config, tensors: Collection[str]) -> DecoderSpec:
    kind = activation(config, "hidden_act", "silu")
    heads, width = number(config, "num_attention_heads"), number(config, "hidden_size")
    bias = flag(config, "attention_bias", False)
    return DecoderSpec(
        vocab=number(config, "vocab_size"),
        width=width,
        layers=number(config, "num_hidden_layers"),
        max_length=number(config, "max_position_embeddings", 2048),
        attention=AttentionSpec(
            heads=heads,
            head_width=number(config, "head_dim", width // heads),
            kv_heads=number(config, "num_key_value_heads", heads),
            qkv_bias=bias,
            out_bias=bias,
        ),
        feedforward=FeedForwardSpec(
            width=number(config, "intermediate_size"),
            kind=gated(kind, "hidden_act"),
            bias=flag(config, "mlp_bias", False),
        ),
        norm=NormSpec(kind="rms", eps=value(config, "rms_norm_eps", float, 1e-6)),
        position=PositionSpec(scheme=rope(config)),
        initial=InitialSpec(kernel="normal(stddev=0.02)"),
        dropout=DropoutSpec(attention=rate(config, "attention_dropout", 0.0)),
        tied=flag(config, "tie_word_embeddings", False),
    )


def to_llama(spec: DecoderSpec) -> dict[str, Any]:
    turn = options_of(spec.position.scheme, "rotary", "position.scheme")
    scaling: dict[str, Any] | None = None
    if turn.get("scaling", "none") != "none":
        scaling = {"rope_type": turn["scaling"], "factor": turn.get("factor", 1.0)}
    if turn.get("scaling") == "llama3":
        scaling = {
            **(scaling or {}),
            "low_freq_factor": turn.get("low", 1.0),
            "high_freq_factor": turn.get("high", 4.0),
            "original_max_position_embeddings": turn.get("trained", 8192),
        }
    heads = spec.attention.heads
    plain = {name: kind for kind, name in GATED.items()}
    if spec.feedforward.kind not in plain:
        raise UserError(
            f"feedforward.kind={spec.feedforward.kind!r} has no gate, and LLaMA's has one; "
            f"these can be exported: {', '.join(plain)}"
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
        "hidden_act": theirs(plain[spec.feedforward.kind], "feedforward.kind"),
        "mlp_bias": spec.feedforward.bias,
        "rms_norm_eps": spec.norm.eps,
        "rope_theta": turn.get("base", 10_000.0),
        "rope_scaling": scaling,
        "tie_word_embeddings": spec.tied,
    }


def from_bert(config: Config, tensors: Collection[str]) -> EncoderSpec:
    """The heads are those that the file holds, whatever architecture it names."""
    only(
        config,
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
    )
    found = {
        "masked_lm": "cls.predictions.bias",
        "pair": "cls.seq_relationship.weight",
        "classify": "classifier.weight",
    }
    heads = [head for head, name in found.items() if name in tensors]
    pooler = "pooler.dense.weight" in tensors
    if "classify" in heads and not pooler:
        heads[heads.index("classify")] = "tag"
    classes = 2 if "pair" in heads else None
    tuned = "classify" in heads or "tag" in heads
    if tuned:
        classes = number(config, "num_labels", len(value(config, "id2label", dict, {})) or 2)
    width, heads_count = number(config, "hidden_size"), number(config, "num_attention_heads")
    drop = rate(config, "hidden_dropout_prob", 0.1)
    return EncoderSpec(
        vocab=number(config, "vocab_size"),
        width=width,
        layers=number(config, "num_hidden_layers"),
        max_length=number(config, "max_position_embeddings"),
        types=number(config, "type_vocab_size", 2),
        heads=tuple(heads),
        classes=classes,
        pooler=pooler,
        attention=AttentionSpec(heads=heads_count, qkv_bias=True, out_bias=True),
        feedforward=FeedForwardSpec(
            width=number(config, "intermediate_size"),
            kind=activation(config, "hidden_act", "gelu"),
        ),
        norm=NormSpec(
            place="post", eps=value(config, "layer_norm_eps", float, 1e-12), embedding=True
        ),
        position=PositionSpec(scheme="learned"),
        initial=InitialSpec(
            kernel="truncated_normal(stddev=0.02)", embedding="truncated_normal(stddev=0.02)"
        ),
        dropout=DropoutSpec(
            embedding=drop,
            residual=drop,
            attention=rate(config, "attention_probs_dropout_prob", 0.1),
            head=rate(config, "classifier_dropout", drop or 0.0) if tuned else None,
        ),
    )


def to_bert(spec: EncoderSpec) -> dict[str, Any]:
    architectures = {
        (): "BertModel",
        ("masked_lm",): "BertForMaskedLM",
        ("masked_lm", "pair"): "BertForPreTraining",
        ("pair",): "BertForNextSentencePrediction",
        ("classify",): "BertForSequenceClassification",
        ("tag",): "BertForTokenClassification",
    }
    heads = tuple(sorted(spec.heads))
    if heads not in architectures or ({"pair", "classify"} & set(heads) and not spec.pooler):
        raise UserError(f"heads={spec.heads} with pooler={spec.pooler} are no BERT of transformers")
    if not spec.types:
        raise UserError("types=0, and a BERT of transformers has at least 1")
    config = {
        "architectures": [architectures[heads]],
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "max_position_embeddings": spec.max_length,
        "type_vocab_size": spec.types,
        "num_attention_heads": spec.attention.heads,
        "intermediate_size": spec.feedforward.width,
        "hidden_act": theirs(spec.feedforward.kind, "feedforward.kind"),
        "layer_norm_eps": spec.norm.eps,
        "hidden_dropout_prob": spec.dropout.residual or 0.0,
        "attention_probs_dropout_prob": spec.dropout.attention or 0.0,
    }
    if not {"classify", "tag"} & set(heads):
        return config
    labels = {str(n): f"LABEL_{n}" for n in range(spec.classes or 2)}
    same = spec.dropout.head == spec.dropout.residual  # which null stands for
    return config | {
        "classifier_dropout": None if same else spec.dropout.head or 0.0,
        "id2label": labels,
        "label2id": {label: int(n) for n, label in labels.items()},
    }


def from_t5(config: Config, tensors: Collection[str]) -> EncoderDecoderSpec:
    """The head is tied unless the file holds one of its own."""
    proj = value(config, "feed_forward_proj", str, "relu")
    gate, _, name = proj.rpartition("-")
    if gate not in ("", "gated"):
        raise UserError(f"feed_forward_proj={proj!r} must be NAME or gated-NAME")
    kind = activation({"feed_forward_proj": name}, "feed_forward_proj", "relu")
    if gate:  # where they take "gelu" to be the tanh form
        kind = gated("gelu_tanh" if name == "gelu" else kind, "feed_forward_proj")
    buckets = {
        "buckets": number(config, "relative_attention_num_buckets", 32),
        "max_distance": number(config, "relative_attention_max_distance", 128),
    }
    layers = number(config, "num_layers")
    drop = rate(config, "dropout_rate", 0.1)
    tie = flag(config, "tie_word_embeddings", True)  # which they read as "scale"
    return EncoderDecoderSpec(
        vocab=number(config, "vocab_size"),
        width=number(config, "d_model"),
        layers=layers,
        decoder_layers=number(config, "num_decoder_layers", layers),
        max_length=number(config, "n_positions", 512),
        attention=AttentionSpec(
            heads=number(config, "num_heads"), head_width=number(config, "d_kv"), score="dot"
        ),
        feedforward=FeedForwardSpec(width=number(config, "d_ff"), kind=kind, bias=False),
        norm=NormSpec(kind="rms", eps=value(config, "layer_norm_epsilon", float, 1e-6)),
        position=PositionSpec(scheme=_call("relative", buckets)),
        decoder_scheme=_call("relative", {**buckets, "bidirectional": False}),
        tied="lm_head.weight" not in tensors,
        scale_head=flag(config, "scale_decoder_outputs", tie),
        initial=InitialSpec(embedding="normal(stddev=1.0)", small_query=True),
        dropout=DropoutSpec(
            embedding=drop, attention=drop, residual=drop, feedforward=drop, output=drop
        ),
    )


def to_t5(spec: EncoderDecoderSpec) -> dict[str, Any]:
    bias = options_of(spec.position.scheme, "relative", "position.scheme")
    plain = {gated: kind for kind, gated in GATED.items()}
    kind = spec.feedforward.kind
    name = theirs(plain.get(kind, kind), "feedforward.kind")
    if kind == "geglu_tanh":
        name = "gelu"
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
        "feed_forward_proj": f"gated-{name}" if kind in plain else name,
        "layer_norm_epsilon": spec.norm.eps,
        "relative_attention_num_buckets": bias.get("buckets", 32),
        "relative_attention_max_distance": bias.get("max_distance", 128),
        "dropout_rate": spec.dropout.residual or 0.0,
        "tie_word_embeddings": spec.scale_head,  # which they read as "scale"
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
    }


def differences(a: TransformerSpec, b: TransformerSpec) -> list[str]:
    """Keys in which two models compute different functions."""
    left, right = _function(a), _function(b)
    return [key for key in left if left[key] != right.get(key)]


def _function(spec: TransformerSpec) -> dict[str, Any]:
    heads = spec.attention.heads
    attention = dataclasses.replace(
        spec.attention,
        head_width=spec.attention.head_width or spec.width // heads,
        kv_heads=spec.attention.kv_heads or heads,
    )
    spec = dataclasses.replace(spec, attention=attention)
    final = spec.norm.place != "post" if spec.norm.final is None else spec.norm.final
    spec = dataclasses.replace(spec, norm=dataclasses.replace(spec.norm, final=final))
    values = {
        key: _scheme(value) if key.endswith("scheme") and value else value
        for key, value in _flat(dataclasses.asdict(spec))
        if not key.startswith(NOT_THEIRS)
    }
    if isinstance(spec, EncoderDecoderSpec):
        values["decoder_layers"] = spec.decoder_layers or spec.layers
        values["decoder_scheme"] = values["decoder_scheme"] or values["position.scheme"]
    return values


def _scheme(text: str) -> tuple[str, dict[str, Any]]:
    """A position scheme with all its options, but for those that only say how it begins."""
    name = text.partition("(")[0].strip()
    takes = inspect.signature(pick(POSITIONS, name, "position.scheme")).parameters.values()
    options = {p.name: p.default for p in takes} | options_of(text, name, "position.scheme")
    return name, {key: value for key, value in options.items() if key != "stddev"}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value

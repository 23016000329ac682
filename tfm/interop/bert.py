"""BERT.  Devlin et al. 2019."""

from collections.abc import Collection, Iterator
from typing import Any

from tfm.interop.config_json import ConfigJson, their_activation
from tfm.interop.family import Family, Pair, linear, norm
from tfm.models.spec import EncoderSpec
from tfm.names import UserError

OUTPUTS = {  # ours → a tensor that a file has if the model has this output
    "masked_lm": "cls.predictions.bias",
    "pair": "cls.seq_relationship.weight",
    "classify": "classifier.weight",
}
ARCHITECTURES = {
    (): "BertModel",
    ("masked_lm",): "BertForMaskedLM",
    ("masked_lm", "pair"): "BertForPreTraining",
    ("pair",): "BertForNextSentencePrediction",
    ("classify",): "BertForSequenceClassification",
    ("tag",): "BertForTokenClassification",
}


def from_config(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    """The outputs are those that the file has tensors for, whatever architecture it names."""
    config.only(
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
    )
    outputs = [output for output, name in OUTPUTS.items() if name in tensors]
    pooler = "pooler.dense.weight" in tensors
    if "classify" in outputs and not pooler:
        outputs[outputs.index("classify")] = "tag"
    classes = 2 if "pair" in outputs else None
    classifies = "classify" in outputs or "tag" in outputs
    if classifies:
        classes = config.number("num_labels", len(config.value("id2label", dict, {})) or 2)
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    dropped = config.rate("hidden_dropout_prob", 0.1)
    begin = "truncated_normal(stddev=0.02)"
    return {
        "family": "encoder",
        "vocab": config.number("vocab_size"),
        "width": width,
        "layers": config.number("num_hidden_layers"),
        "max_length": config.number("max_position_embeddings"),
        "types": config.number("type_vocab_size", 2),
        "outputs": tuple(outputs),
        "classes": classes,
        "pooler": pooler,
        "attention": {"heads": heads, "qkv_bias": True, "out_bias": True},
        "feedforward": {
            "width": config.number("intermediate_size"),
            "kind": config.activation("hidden_act", "gelu"),
        },
        "norm": {
            "placement": "post",
            "eps": config.value("layer_norm_eps", float, 1e-12),
            "embedding": True,
        },
        "position": {"scheme": "learned"},
        "init": {"kernel": begin, "embedding": begin},
        "dropout": {
            "embedding": dropped,
            "residual": dropped,
            "attention": config.rate("attention_probs_dropout_prob", 0.1),
            "head": config.rate("classifier_dropout", dropped or 0.0) if classifies else None,
        },
    }


def to_config(spec: Any) -> dict[str, Any]:
    outputs = tuple(sorted(spec.outputs))
    if outputs not in ARCHITECTURES or ({"pair", "classify"} & set(outputs) and not spec.pooler):
        raise UserError(
            f"outputs={spec.outputs} with pooler={spec.pooler} are no BERT of transformers"
        )
    if not spec.types:
        raise UserError("types=0, and a BERT of transformers has at least 1")
    config = {
        "architectures": [ARCHITECTURES[outputs]],
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "max_position_embeddings": spec.max_length,
        "type_vocab_size": spec.types,
        "num_attention_heads": spec.attention.heads,
        "intermediate_size": spec.feedforward.width,
        "hidden_act": their_activation(spec.feedforward.kind),
        "layer_norm_eps": spec.norm.eps,
        "hidden_dropout_prob": spec.dropout.residual or 0.0,
        "attention_probs_dropout_prob": spec.dropout.attention or 0.0,
    }
    if not {"classify", "tag"} & set(outputs):
        return config
    labels = {str(n): f"LABEL_{n}" for n in range(spec.classes or 2)}
    same = spec.dropout.head == spec.dropout.residual  # which they write as null
    return config | {
        "classifier_dropout": None if same else spec.dropout.head or 0.0,
        "id2label": labels,
        "label2id": {label: int(n) for n, label in labels.items()},
    }


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("embeddings.word_embeddings.weight", ("embed/token/embedding",))
    yield Pair("embeddings.position_embeddings.weight", ("encoder/table/table_w_LD",))
    yield Pair("embeddings.token_type_embeddings.weight", ("embed/type/embedding",))
    yield from norm("embeddings.LayerNorm", "encoder/embed_norm", True)
    for n in range(spec.layers):
        theirs, ours = f"encoder.layer.{n}", f"encoder/layer_{n}"
        for name in ("query", "key", "value"):
            yield from linear(f"{theirs}.attention.self.{name}", f"{ours}/attention/{name}", True)
        yield from linear(f"{theirs}.attention.output.dense", f"{ours}/attention/out", True, 2)
        yield from norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_norm", True)
        yield from linear(f"{theirs}.intermediate.dense", f"{ours}/feedforward/up", True)
        yield from linear(f"{theirs}.output.dense", f"{ours}/feedforward/down", True)
        yield from norm(f"{theirs}.output.LayerNorm", f"{ours}/feedforward_norm", True)
    if spec.pooler:
        yield from linear("pooler.dense", "pooler", True)
    if "masked_lm" in spec.outputs:
        yield from linear("cls.predictions.transform.dense", "masked_lm", True)
        yield from norm("cls.predictions.transform.LayerNorm", "masked_lm_norm", True)
        yield Pair("cls.predictions.bias", ("masked_lm_bias",))
    if "pair" in spec.outputs:
        yield from linear("cls.seq_relationship", "pair", True)
    for output in ("classify", "tag"):
        if output in spec.outputs:
            yield from linear("classifier", output, True)


FAMILY = Family(
    EncoderSpec,
    from_config,
    to_config,
    pairs,
    prefix="bert.",
    unprefixed=("cls.", "classifier."),
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=r"embeddings\.position_ids",
)

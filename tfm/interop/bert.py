"""BERT.  Devlin et al. 2019."""

from collections.abc import Collection, Iterator
from typing import Any

from tfm.config.names import UserError
from tfm.interop.model_type import ConfigJson, Key, ModelType, Pair, module
from tfm.models.spec import EncoderSpec

POOLER, CLASSIFIER = "pooler.dense.weight", "classifier.weight"
OUTPUTS = {  # our output → a tensor of models with this output
    "masked_lm": "cls.predictions.bias",
    "pair": "cls.seq_relationship.weight",
}
ARCHITECTURES = {
    (): "BertModel",
    ("masked_lm",): "BertForMaskedLM",
    ("masked_lm", "pair"): "BertForPreTraining",
    ("pair",): "BertForNextSentencePrediction",
    ("classify",): "BertForSequenceClassification",
    ("tag",): "BertForTokenClassification",
}


def read(config: ConfigJson, tensors: Collection[str]) -> dict[str, Any]:
    """Returns the settings of the outputs."""
    outputs = _outputs(config, tensors)
    settings = {"outputs": tuple(outputs), "pooler": POOLER in tensors}
    if "classify" not in outputs and "tag" not in outputs:
        return settings | {"classes": 2 if "pair" in outputs else None}
    labels = len(config.value("id2label", dict, {})) or None
    config.agree("num_labels", "the number of id2label", labels)
    dropped = config.rate("hidden_dropout_prob", 0.1)
    return settings | {
        "classes": config.size("num_labels", labels or 2),
        "dropout.head": config.rate("classifier_dropout", dropped or 0.0),
    }


def _outputs(config: ConfigJson, tensors: Collection[str]) -> list[str]:
    """Returns the outputs that the file has tensors for; raises if one of its architecture is
    missing.

    Classifiers of sentences and of tokens have the same tensors, so the name of the architecture
    decides. Token classifiers may have an unused pooler; sentence classifiers need it.
    """
    name = config.architecture()
    named = next((outputs for outputs, known in ARCHITECTURES.items() if known == name), ())
    present = [output for output, tensor in OUTPUTS.items() if tensor in tensors]
    if CLASSIFIER in tensors:
        kinds = ["tag"] if name is None and POOLER not in tensors else []
        kinds += [output for output in named if output in ("classify", "tag")]
        if not kinds:
            raise UserError(
                f"the weights hold {CLASSIFIER}, and architectures={[name] if name else None}: "
                "write ['BertForSequenceClassification'] or ['BertForTokenClassification'] into "
                "config.json, whichever it is"
            )
        present += kinds
    needed = {OUTPUTS.get(output, CLASSIFIER): f"architectures=[{name!r}]" for output in named}
    if {"pair", "classify"} & {*present, *named}:
        needed[POOLER] = "the head for sentences"
    for tensor, user in needed.items():
        if tensor not in tensors:
            raise UserError(f"the weights hold no {tensor}, which {user} needs")
    return present


def write(spec: Any) -> dict[str, Any]:
    """Returns the keys of the outputs."""
    outputs = tuple(sorted(spec.outputs))
    if outputs not in ARCHITECTURES or ({"pair", "classify"} & set(outputs) and not spec.pooler):
        raise UserError(
            f"outputs={spec.outputs} with pooler={spec.pooler} do not form a BERT of transformers"
        )
    if not spec.types:
        raise UserError("types=0, but a BERT of transformers has at least 1")
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[outputs]]}
    if not {"classify", "tag"} & set(outputs):
        return config
    labels = {str(n): f"LABEL_{n}" for n in range(spec.classes or 2)}
    same = spec.dropout.head == spec.dropout.residual  # written as null by transformers
    return config | {
        "classifier_dropout": None if same else spec.dropout.head or 0.0,
        "id2label": labels,
        "label2id": {label: int(n) for n, label in labels.items()},
    }


def pairs(spec: Any) -> Iterator[Pair]:
    yield Pair("embeddings.word_embeddings.weight", ("embed/token/embedding",))
    yield Pair("embeddings.position_embeddings.weight", ("encoder/table/table_w_LD",))
    yield Pair("embeddings.token_type_embeddings.weight", ("embed/type/embedding",))
    yield from module("embeddings.LayerNorm", "encoder/embed_norm", True)
    for n in range(spec.layers):
        theirs, ours = f"encoder.layer.{n}", f"encoder/layer_{n}"
        for name in ("query", "key", "value"):
            yield from module(f"{theirs}.attention.self.{name}", f"{ours}/attention/{name}", True)
        yield from module(f"{theirs}.attention.output.dense", f"{ours}/attention/out", True)
        yield from module(f"{theirs}.attention.output.LayerNorm", f"{ours}/attention_norm", True)
        yield from module(f"{theirs}.intermediate.dense", f"{ours}/feedforward/up", True)
        yield from module(f"{theirs}.output.dense", f"{ours}/feedforward/down", True)
        yield from module(f"{theirs}.output.LayerNorm", f"{ours}/feedforward_norm", True)
    if spec.pooler:
        yield from module("pooler.dense", "pooler", True)
    if "masked_lm" in spec.outputs:
        yield from module("cls.predictions.transform.dense", "masked_lm", True)
        yield from module("cls.predictions.transform.LayerNorm", "masked_lm_norm", True)
        yield Pair("cls.predictions.bias", ("masked_lm_bias",))
    if "pair" in spec.outputs:
        yield from module("cls.seq_relationship", "pair", True)
    for output in ("classify", "tag"):
        if output in spec.outputs:
            yield from module("classifier", output, True)


INIT = "truncated_normal(stddev=0.02)"
MODEL_TYPE = ModelType(
    spec=EncoderSpec,
    keys=(
        Key("vocab_size", "vocab", "size"),
        Key("hidden_size", "width", "size"),
        Key("num_hidden_layers", "layers", int),
        Key("max_position_embeddings", "max_length", "size"),
        Key("type_vocab_size", "types", "size", 2),
        Key("num_attention_heads", "attention.heads", "size"),
        Key("intermediate_size", "feedforward.width", "size"),
        Key("hidden_act", "feedforward.kind", "activation", "gelu"),
        Key("layer_norm_eps", "norm.eps", float, 1e-12),
        Key("hidden_dropout_prob", "dropout.residual dropout.embedding", "rate", 0.1),
        Key("attention_probs_dropout_prob", "dropout.attention", "rate", 0.1),
    ),
    settings={
        "attention": {"qkv_bias": True, "out_bias": True},
        "norm": {"placement": "post", "embedding": True},
        "position": {"scheme": "learned"},
        "init": {"kernel": INIT, "embedding": INIT},
    },
    supported={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    read=read,
    write=write,
    pairs=pairs,
    architectures=tuple(ARCHITECTURES.values()),
    prefix="bert.",
    unprefixed=("cls.", "classifier."),
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=r"embeddings\.position_ids",
    ids={"pad_token_id": 0},
)

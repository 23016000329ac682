"""Config → spec → module: the only door. Below it nobody sees a config or looks up a name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp
from ml_collections import ConfigDict

from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.models.bag import Bag
from tfm.models.convolution import Convolution
from tfm.models.decoder import Decoder
from tfm.models.encoder import Encoder
from tfm.models.encoder_decoder import EncoderDecoder
from tfm.models.recurrent import Recurrent
from tfm.models.seq2seq import SeqToSeq
from tfm.models.spec import (
    EncoderDecoderSpec,
    ModelSpec,
    RecurrentSpec,
    SeqToSeqSpec,
    Word2VecSpec,
)
from tfm.models.word2vec import Word2Vec

MODELS: dict[str, Any] = {
    "encoder": Encoder,
    "decoder": Decoder,
    "encoder_decoder": EncoderDecoder,
    "recurrent": Recurrent,
    "seq2seq": SeqToSeq,
    "word2vec": Word2Vec,
    "bag": Bag,
    "convolution": Convolution,
}


def spec(config: ConfigDict | Mapping[str, Any]) -> ModelSpec:
    """The model of a config: every key known, every value of its type."""
    part = (config.to_dict() if isinstance(config, ConfigDict) else config).get("model")
    if not isinstance(part, Mapping):
        raise UserError("the config has no group 'model': add model = dict(family=…)")
    return to_spec(ModelSpec, part, "model.")


def model(spec: ModelSpec) -> nn.Module:
    """The module of a spec. What cannot work is an error here, before anything is compiled."""
    _check_sizes(spec)
    module = MODELS[spec.family](spec)
    inputs = example(spec, 1, min(getattr(spec, "max_length", None) or 4, 4))
    try:
        jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    except UserError as e:
        raise UserError(f"model: {e}") from e
    except (OverflowError, MemoryError) as e:
        raise UserError(f"model: a size is beyond what arrays can have: {e}") from e
    return module


def _check_sizes(spec: Any) -> None:
    """Raise if a size that may come from the data is still open."""
    classifies = spec.family in ("bag", "convolution") or (
        spec.family == "encoder" and set(spec.outputs) - {"masked_lm"}
    )
    starts = spec.family == "recurrent" and spec.shape == "1:N"
    for name in ("vocab", *(["classes"] if classifies else []), *(["vector"] if starts else [])):
        if getattr(spec, name) is None:
            raise UserError(f"model.{name} is missing, and no data set is there to give it")


def example(spec: ModelSpec, batch: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of what the model is called with."""
    text = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    match spec:
        case EncoderDecoderSpec() | SeqToSeqSpec():
            return {"source_BS": text, "decoder_input_BT": text}
        case RecurrentSpec(shape="1:N", vector=int(width)):
            vector = jax.ShapeDtypeStruct((batch, width), jnp.float32)
            return {"tokens_BT": text, "vector_BD": vector}
        case Word2VecSpec(kind=kind):
            words = (batch, 1 if kind == "skip_gram" else length)
            return {"words_BC": jax.ShapeDtypeStruct(words, jnp.int32)}
    return {"tokens_BT": text}


def rates(spec: ModelSpec) -> dict[str, float]:
    """The sites where the model drops, and how much."""
    dropout = getattr(spec, "dropout", None)
    sites = {} if dropout is None else dataclasses.asdict(dropout)
    return {site: rate for site, rate in sites.items() if rate is not None}

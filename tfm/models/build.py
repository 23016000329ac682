"""Config → spec → module: the only door. Below it nobody sees a config or looks up a name."""

import dataclasses
from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp
from ml_collections import ConfigDict

from tfm.config import from_spec, to_spec
from tfm.models import (
    bag,
    convolution,
    decoder,
    encoder,
    encoder_decoder,
    recurrent,
    seq2seq,
    word2vec,
)
from tfm.models.spec import (
    FAMILIES,
    DropoutSpec,
    EncoderDecoderSpec,
    ModelSpec,
    RecurrentSpec,
    SeqToSeqSpec,
    Word2VecSpec,
)
from tfm.names import UserError, pick

MAKERS: dict[str, Any] = {
    "encoder": encoder.make,
    "decoder": decoder.make,
    "encoder_decoder": encoder_decoder.make,
    "recurrent": recurrent.make,
    "seq2seq": seq2seq.make,
    "word2vec": word2vec.make,
    "bag": bag.make,
    "convolution": convolution.make,
}


def spec(config: ConfigDict, key: str = "model") -> ModelSpec:
    """The model that stands under `key` of a config: every key known, every value of its type."""
    part = config.get(key)
    if not isinstance(part, ConfigDict):
        raise UserError(f"the config has no group {key!r}: add {key} = dict(family=…)")
    if not isinstance(part.get("family"), str):
        raise UserError(f"missing key '{key}.family', one of: {', '.join(FAMILIES)}")
    return to_spec(pick(FAMILIES, part.family, f"{key}.family"), part, f"{key}.")


def fill(config: ConfigDict) -> ConfigDict:
    """The config with a value for every key of its model, so that each can be overridden."""
    return ConfigDict({**config, "model": from_spec(spec(config))}).lock()


def model(what: ModelSpec) -> nn.Module:
    """The module of a spec. What cannot be is an error here, before anything is compiled."""
    _check_numbers(what, "model")
    module = MAKERS[what.family](what)
    inputs = example(what, 1, min(getattr(what, "max_length", None) or 4, 4))
    try:
        jax.eval_shape(lambda **inputs: module.init(jax.random.key(0), **inputs), **inputs)
    except UserError as e:
        raise UserError(f"model: {e}") from e
    except (OverflowError, MemoryError) as e:
        raise UserError(f"model: a size is beyond what arrays can have: {e}") from e
    return module


def example(what: ModelSpec, batch: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of what the model is called with."""
    text = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    match what:
        case EncoderDecoderSpec() | SeqToSeqSpec():
            return {"source_BS": text, "target_BT": text}
        case RecurrentSpec(shape="1:N", vector=int(width)):
            vector = jax.ShapeDtypeStruct((batch, width), jnp.float32)
            return {"tokens_BT": text, "vector_BD": vector}
        case Word2VecSpec(kind=kind):
            words = (batch, 1 if kind == "skip_gram" else length)
            return {"words_BC": jax.ShapeDtypeStruct(words, jnp.int32)}
    return {"tokens_BT": text}


def rates(what: ModelSpec) -> dict[str, float]:
    """The places where the model drops, and how much."""
    dropout = getattr(what, "dropout", None)
    places = {} if dropout is None else dataclasses.asdict(dropout)
    return {place: rate for place, rate in places.items() if rate is not None}


def _check_numbers(what: Any, key: str) -> None:
    """Raise if a number is out of its range: sizes from 1, rates in [0, 1), ε above 0."""
    for field in dataclasses.fields(what):
        value, name = getattr(what, field.name), f"{key}.{field.name}"
        if dataclasses.is_dataclass(value):
            _check_numbers(value, name)
        for number in value if isinstance(value, tuple) else (value,):
            least = 0 if field.name == "types" else 1  # a model may tell no types apart
            if type(number) is int and number < least:
                raise UserError(f"{name}={value} must be at least {least}")
        if isinstance(what, DropoutSpec) and value is not None and not 0 <= value < 1:
            raise UserError(f"{name}={value} must be in [0, 1); None is off")
        if field.name == "eps" and value <= 0:
            raise UserError(f"{name}={value} must be above 0")
        if value == () and field.name == "channels":
            raise UserError(f"{name} is empty: give the channels of each block")

"""The table of objectives, and how one of them fits a model to its data.

A user's file may add entries by defining `OBJECTIVES`: objectives, or functions with options that
return one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from tfm.config.names import UserError
from tfm.config.spec import SpecError
from tfm.data.dataset import Dataset
from tfm.objectives.base import Objective
from tfm.objectives.classify import Classify, Pair, Regress
from tfm.objectives.masked_lm import MaskedLM
from tfm.objectives.next_token import NextToken, PrefixLM
from tfm.objectives.seq2seq import Seq2Seq, VectorToSequence
from tfm.objectives.span_corruption import UL2, SpanCorruption
from tfm.objectives.tag import Tag
from tfm.objectives.word2vec import Word2Vec

T = TypeVar("T")

OBJECTIVES: dict[str, Objective | Callable[..., Objective]] = {
    "next_token": NextToken(),
    "seq2seq": Seq2Seq(),
    "tag": Tag(),
    "classify": Classify,
    "pair": Pair(),
    "regress": Regress(),
    "masked_lm": MaskedLM,
    "prefix_lm": PrefixLM,
    "span_corruption": SpanCorruption,
    "ul2": UL2,
    "vector_to_sequence": VectorToSequence(),
    "word2vec": Word2Vec,
}


def accepting(dataset: Dataset) -> list[str]:
    """Returns the objectives that accept a data set."""
    objectives = {name: x if isinstance(x, Objective) else x() for name, x in OBJECTIVES.items()}
    return [name for name, objective in objectives.items() if objective.refuses(dataset) is None]


def check_same_ids(
    objective: Objective, vocab: int, vocabulary: str | None, other: Dataset
) -> None:
    """Raises if an id means something else in other data than in the training data."""
    if vocabulary != other.vocabulary:
        raise UserError("its ids stand for other characters than those of the training data")
    if objective.same_vocab and vocab != other.vocab:
        raise UserError(f"it has {other.vocab} ids, and the training data {vocab}")


def open_sizes(model: T, objective: Objective, dataset: Dataset) -> T:
    """Fills in the sizes and the head that the config of a model leaves open. Raises if those that
    it sets are not enough for the data and the objective."""
    spec: Any = model
    changes: dict[str, Any] = {}
    for key, needed in objective.head.items():
        value = getattr(spec, key, needed)
        if value == needed:
            continue
        if value in (None, ()) or (key == "types" and value == 0):
            changes[key] = needed
        else:
            raise UserError(f"model.{key}={value!r}: the objective needs {needed!r}")
    for key, least in objective.sizes(dataset).items():
        value = getattr(spec, key, least)
        if value is None:
            changes[key] = least
        elif value < least or (key == "vector" and value != least):
            how = "exactly" if key == "vector" else "at least"
            raise UserError(f"model.{key}={value}: the data need {how} {least}")
    target = getattr(spec, "decoder_vocab", None)
    if target is not None and target < objective.sizes(dataset)["vocab"]:
        raise UserError(f"model.decoder_vocab={target}: the data need at least {dataset.vocab}")
    # A tied head is the embedding, so its classes are the vocabulary.
    if "classes" in changes and getattr(spec, "tied", False):
        if objective.sizes(dataset).get("classes", 0) > (spec.vocab or dataset.vocab):
            raise UserError("model.tied: the data have more classes than the vocabulary has words")
        changes.pop("classes", None)
    try:
        return dataclasses.replace(spec, **changes) if changes else model
    except SpecError as e:
        raise e.below("model.") from None

"""The table of objectives.

A user's file may add entries by defining `OBJECTIVES`: objectives, or functions with options that
return one.
"""

from collections.abc import Callable

from tfm.data.dataset import Dataset
from tfm.objectives.base import Objective
from tfm.objectives.classify import Classify, Pair, Regress
from tfm.objectives.masked_lm import Bert, MaskedLM
from tfm.objectives.next_token import NextToken, PrefixLM
from tfm.objectives.seq2seq import Seq2Seq, VectorToSequence
from tfm.objectives.span_corruption import UL2, SpanCorruption
from tfm.objectives.tag import Tag
from tfm.objectives.word2vec import Word2Vec

OBJECTIVES: dict[str, Objective | Callable[..., Objective]] = {
    "next_token": NextToken(),
    "seq2seq": Seq2Seq(),
    "tag": Tag(),
    "classify": Classify,
    "pair": Pair(),
    "regress": Regress(),
    "masked_lm": MaskedLM,
    "bert": Bert,
    "prefix_lm": PrefixLM,
    "span_corruption": SpanCorruption,
    "ul2": UL2,
    "vector_to_sequence": VectorToSequence(),
    "word2vec": Word2Vec,
}


def objectives() -> dict[str, Objective]:
    """Returns all objectives, those with options with their defaults."""
    return {name: x if isinstance(x, Objective) else x() for name, x in OBJECTIVES.items()}


def accepting(dataset: Dataset) -> list[str]:
    """Returns the objectives that accept a data set."""
    return [name for name, entry in objectives().items() if entry.refuses(dataset) is None]

"""A text as one stream of tokens, cut into windows.

A window has one token more than its length, because nothing comes before the first token from
which it could be predicted.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.dataset import Dataset, Examples, Ragged, at_most
from tfm.data.records import Record, id_dtype, joined, skipped_note, token_facts
from tfm.data.tokenizers.tokenizer import Tokenizer

BATCH = 128  # blocks tokenized at once; 64 times as many lines


class Windows(NamedTuple):
    """The windows that a stream is cut into."""

    length: int
    stride: int = 1  # distance between training windows
    eval_length: int | None = None  # length of the other splits' windows; None: `length`
    eos: bool = False  # an end id follows each record

    def of(self, split: str) -> int:
        """Returns the length of a split's windows."""
        return self.length if split == "train" else self.eval_length or self.length


def cut(
    ids: Callable[[np.ndarray], np.ndarray],
    total: int,
    windows: Windows,
    split: str,
    count: int | None,
    **facts: Any,
) -> Dataset:
    """Cuts a stream of `total` tokens into windows; `ids(places)` returns its tokens.

    Training windows begin at every `stride`-th token. The others do not overlap, so each token but
    the first is scored once.
    """
    train, length = split == "train", windows.of(split)
    if windows.eval_length is not None and not train:
        length = max(min(length, total - 1), 1)  # rows need not be longer than the text
    stride = windows.stride if train else length
    most = (total - 1 - length) // stride + 1 if train else math.ceil((total - 1) / length)

    def read(rows: np.ndarray) -> Examples:
        place_NT = rows[:, None] * stride + np.arange(length + 1)
        valid_NT = None if train else place_NT < total
        return Examples(tokens=Ragged.of(ids(np.minimum(place_NT, total - 1)), valid_NT))

    return Dataset(
        read=read,
        count=at_most(count, most, split),
        max_length=length + 1,
        padded=not train,
        next_row=None if length % stride else length // stride,
        **facts,
    )


def write_stream(
    records: Iterable[Record], eos: bool, tokenizer: Tokenizer, writer: cache.Writer
) -> dict[str, Any]:
    """Tokenizes records into one stream that begins with `bos`; returns the entry's facts."""
    special, dtype = tokenizer.special, id_dtype(tokenizer.vocab)
    counts, size, words = np.zeros(tokenizer.vocab, np.int64), 0, 0
    writer.append("tokens", np.array([special.bos], dtype))
    records, most = iter(records), 64 * BATCH if eos else BATCH
    while batch := list(itertools.islice(records, most)):
        texts = [str(record.text) for record in batch]
        size += sum(len(text.encode()) for text in texts)
        words += sum(len(text.split()) + eos for text in texts)
        if eos:
            lines = [text.removesuffix("\n") for text in texts]
            ids = joined([Ragged(*tokenizer.encode_batch(lines)), special.eos])[0].ids
        else:
            ids = tokenizer.encode_batch(texts)[0]
        writer.append("tokens", ids.astype(dtype))
        counts += np.bincount(ids, minlength=len(counts))
    return {"bytes": size, "words": words, **token_facts(counts, tokenizer, writer)}


def open_stream(
    entry: cache.Entry, windows: Windows, split: str, count: int | None, **facts: Any
) -> Dataset:
    """Opens the windows of an entry that `write_stream` wrote."""
    tokens, scored, length = entry["tokens"], entry.facts["tokens"], windows.of(split)
    if split == "train" and scored < length:
        raise UserError(
            f"text: length={length} is too much: the training split has {scored} tokens"
        )
    return cut(
        lambda places: tokens[places].astype(np.int32),
        scored + 1,  # and `bos`
        windows,
        split,
        count,
        bytes_per_token=entry.facts["bytes"] / scored,
        words_per_token=entry.facts["words"] / scored or None,  # line ends alone are no words
        notes=skipped_note(entry, split),
        **facts,
    )

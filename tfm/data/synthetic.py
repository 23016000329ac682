"""Generated tasks, with their best possible accuracy.

The vocabulary of a task does not depend on its `length`, so a model can be tested on sequences
longer than those it was trained on. No two splits share an example.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import (
    FIRST,
    Best,
    Dataset,
    Examples,
    Generated,
    Ragged,
    Source,
    at_most,
    length_range,
    number,
    whole,
)
from tfm.data.draws import Draws, key_of, permuted

ALL = Best(token=1.0, exact=1.0)


def most_frequent(id_N: np.ndarray, label_N: np.ndarray | None) -> float:
    """Returns the accuracy of answering each id with the label it has most often."""
    assert label_N is not None
    count_VC = np.zeros((id_N.max() + 1, label_N.max() + 1))
    np.add.at(count_VC, (id_N, label_N), 1)
    return float(count_VC.max(1).sum() / count_VC.sum())


def copy(length: int = 16, min_length: int | None = None, vocab: int = 32) -> Source:
    """The same sequence.  Graves et al. 2014, §4.1.  Best: 1."""
    return _pairs("copy", length, min_length, vocab, lambda source_NS, valid_NS: source_NS)


def reverse(length: int = 16, min_length: int | None = None, vocab: int = 32) -> Source:
    """The sequence in reverse order.  Grefenstette et al. 2015.  Best: 1."""

    def answer(source_NS: np.ndarray, valid_NS: np.ndarray) -> np.ndarray:
        from_NS = valid_NS.sum(1, keepdims=True) - 1 - np.arange(length)
        return np.take_along_axis(source_NS, from_NS % length, 1)

    return _pairs("reverse", length, min_length, vocab, answer)


def sort(length: int = 16, min_length: int | None = None, vocab: int = 32) -> Source:
    """The symbols in ascending order.  Graves et al. 2014, §4.5, by id.  Best: 1."""

    def answer(source_NS: np.ndarray, valid_NS: np.ndarray) -> np.ndarray:
        return np.sort(np.where(valid_NS, source_NS, vocab), 1)

    return _pairs("sort", length, min_length, vocab, answer)


def _pairs(
    name: str,
    length: int,
    min_length: int | None,
    vocab: int,
    answer: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Source:
    least, most = length_range(name, length, min_length)
    whole(name, "vocab", vocab, FIRST + 2)

    def make(draws: Draws) -> Examples:
        valid_NS = _valid(draws, least, most)
        source_NS = draws.integers(FIRST, vocab, (most,))
        target_NS = answer(source_NS, valid_NS)
        return Examples(
            tokens=Ragged.of(source_NS, valid_NS), target=Ragged.of(target_NS, valid_NS)
        )

    facts = {"vocab": vocab, "max_length": most, "max_target": most, "aligned": True}
    return Generated(make, form="pairs", best=ALL, **facts)


def _valid(draws: Draws, least: int, most: int) -> np.ndarray:
    """Draws a length from `least` to `most` for each row."""
    if least == most:
        return np.ones((len(draws), most), bool)
    return np.arange(most) < draws.integers(least, most + 1, (1,))


def induction(length: int = 64, vocab: int = 64) -> Source:
    """… A B … A → B: the token that followed the earlier occurrence of the last.  Best: 1.

    Olsson et al. 2022, with one question, at the end; A occurs once before it.
    """
    whole("induction", "length", length, 3)
    whole("induction", "vocab", vocab, FIRST + 3)

    def make(draws: Draws) -> Examples:
        rows_N = np.arange(len(draws))
        asked_N = draws.integers(FIRST, vocab)
        tokens_NT = draws.integers(FIRST, vocab - 1, (length,))
        tokens_NT += tokens_NT >= asked_N[:, None]  # any symbol but the one asked for
        place_N = draws.integers(0, length - 2)
        tokens_NT[rows_N, place_N] = tokens_NT[:, -1] = asked_N
        tags_NT, scored_NT = np.zeros_like(tokens_NT), np.zeros(tokens_NT.shape, bool)
        tags_NT[:, -1], scored_NT[:, -1] = tokens_NT[rows_N, place_N + 1], True
        return _tagged(tokens_NT, tags_NT, scored_NT)

    return Generated(make, form="tags", vocab=vocab, max_length=length, padded=False, best=ALL)


def _tagged(tokens_NT: np.ndarray, tags_NT: np.ndarray, scored_NT: np.ndarray) -> Examples:
    return Examples(tokens=Ragged.of(tokens_NT), tags=tags_NT.ravel(), scored=scored_NT.ravel())


def recall(length: int = 64, pairs: int = 4, vocab: int = 8192, alpha: float = 0.01) -> Source:
    """Keys with their values, then each key again: predict its value.  Best: 1.

    Multi-query associative recall, Arora et al. 2023 (Zoology). Keys are from the lower half of the
    ids, values from the upper. After the pairs, every second position may hold a question, the i-th
    with weight i^(alpha − 1); with alpha=1 all are equally likely. The rest is random.
    """
    whole("recall", "length", length, 4)
    whole("recall", "pairs", pairs, 1, length // 4)
    whole("recall", "vocab", vocab, FIRST + 3)
    number("recall", "alpha", alpha, 0, float("inf"))
    half, begin = vocab // 2, 2 * pairs
    if pairs > half - FIRST:
        least = 2 * (pairs + FIRST)
        raise UserError(f"recall: vocab={vocab} has fewer keys than pairs={pairs}; from {least} on")
    places = (length - begin) // 2
    log_p = (alpha - 1) * np.log(np.arange(1, places + 1))

    def make(draws: Draws) -> Examples:
        keys_NP = FIRST + draws.distinct(pairs, half - FIRST)
        values_NP = half + draws.distinct(pairs, vocab - half)
        # The largest of log p + Gumbel noise are draws without replacement.  Kool et al. 2019.
        noise_NP = log_p - np.log(-np.log(draws.uniform((places,))))
        chosen_NP = np.argsort(-noise_NP, 1)[:, :pairs] * 2 + begin
        tokens_NT = draws.integers(FIRST, vocab, (length,))
        tokens_NT[:, 0:begin:2], tokens_NT[:, 1:begin:2] = keys_NP, values_NP
        tags_NT, scored_NT = np.zeros_like(tokens_NT), np.zeros(tokens_NT.shape, bool)
        np.put_along_axis(tokens_NT, chosen_NP, keys_NP, 1)
        np.put_along_axis(tags_NT, chosen_NP, values_NP, 1)
        np.put_along_axis(scored_NT, chosen_NP, True, 1)
        return _tagged(tokens_NT, tags_NT, scored_NT)

    facts = {"vocab": vocab, "max_length": length, "padded": False, "best": ALL}
    shortcuts = {"any value shown": lambda examples: 1 / pairs}
    return Generated(make, form="tags", shortcuts=shortcuts, **facts)


@dataclasses.dataclass(frozen=True)
class _Addition(Source):
    """The p² sums in a fixed random order, cut into splits."""

    p: int
    bounds: Mapping[str, tuple[int, int]]  # where each split begins and ends in that order

    seeded = False

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        p, (begin, end) = self.p, self.bounds[split]

        def read(rows: np.ndarray) -> Examples:
            pair_N = permuted(p * p, key_of(0, "addition"), rows + begin)
            a_N, b_N = np.divmod(pair_N.astype(np.int32), p)
            tokens_NT = np.stack([a_N + FIRST, np.full_like(a_N, FIRST + p), b_N + FIRST], 1)
            return Examples(tokens=Ragged.of(tokens_NT), labels=(a_N + b_N) % p)

        facts: dict[str, Any] = {"vocab": FIRST + p + 1, "classes": p, "max_length": 3}
        count = at_most(count, end - begin, split)
        return Dataset(read=read, count=count, form="labels", padded=False, best=ALL, **facts)


def addition(p: int = 97, fraction: float = 0.5) -> Source:
    """a + b modulo p.  Power et al. 2022.  Best: 1.

    A fixed `fraction` of the p² pairs is for training; validation and test are half of the rest
    each. No pair is in two splits.
    """
    whole("addition", "p", p, 2, 1000)
    number("addition", "fraction", fraction, 0, 1)
    train = int(p * p * fraction)
    valid = (p * p + train + 1) // 2
    bounds = {"train": (0, train), "valid": (train, valid), "test": (valid, p * p)}
    for split, (begin, end) in bounds.items():
        if begin == end:
            pairs = f"fraction={fraction} of {p * p} pairs"
            raise UserError(f"addition: {pairs} leaves none for {split!r}")
    return _Addition(p, bounds)


def parity(length: int = 32, min_length: int | None = None, each: bool = False) -> Source:
    """The parity of the number of ones; with `each`, at every position so far.  Best: 1.

    Hahn 2020: self-attention of a fixed size approaches chance as the length grows.
    """
    least, most = length_range("parity", length, min_length)
    facts = {"vocab": FIRST + 2, "max_length": most, "best": ALL}

    def make(draws: Draws) -> Examples:
        valid_NT = _valid(draws, least, most)
        bit_NT = draws.integers(0, 2, (most,)) * valid_NT
        odd_NT = np.cumsum(bit_NT, 1, dtype=np.int32) % 2
        tokens = Ragged.of(bit_NT + FIRST, valid_NT)
        if each:
            return Examples(tokens=tokens, tags=odd_NT[valid_NT] + FIRST)
        return Examples(tokens=tokens, labels=odd_NT[:, -1])

    form = {"form": "tags"} if each else {"form": "labels", "classes": 2}
    return Generated(make, **form, **facts)


def spell(length: int = 4, vocab: int = FIRST + 10) -> Source:
    """A vector, and the sequence that it spells.  Best: 1.

    The vector concatenates a one-hot vector for each symbol. The task shows whether a model
    remembers an input that it reads once, at the beginning.  1:N of Karpathy 2015.
    """
    whole("spell", "length", length, 1)
    whole("spell", "vocab", vocab, FIRST + 2)
    symbols = vocab - FIRST

    def make(draws: Draws) -> Examples:
        symbol_NT = draws.integers(0, symbols, (length,))
        vectors = np.eye(symbols, dtype=np.float32)[symbol_NT].reshape(len(draws), -1)
        return Examples(tokens=Ragged.of(symbol_NT + FIRST), vectors=vectors)

    return Generated(
        make, form="vectors", vocab=vocab, max_length=length, vector=length * symbols, best=ALL
    )


DATASETS: dict[str, Callable[..., Source]] = {
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "induction": induction,
    "recall": recall,
    "addition": addition,
    "parity": parity,
    "spell": spell,
}

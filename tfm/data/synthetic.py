"""Tasks that are made, not found: as many examples as asked for, and the best accuracy known.

A task with another `length` has the same vocabulary, so that a model can be tried on sequences
longer than any it was trained on. Splits are drawn independently unless a task says otherwise.
"""

from collections.abc import Callable

import numpy as np

from tfm.data.batch import FIRST, Best, Examples, Labels, Marks, Pairs, Task
from tfm.data.options import lengths, number, whole
from tfm.data.order import shuffled
from tfm.names import UserError

ALL = Best(token=1.0, exact=1.0)


def copy(length: int = 16, min_length: int | None = None, vocab: int = 32) -> Task:
    """The sequence again.  Graves et al. 2014, §4.1.  Best: 1."""
    return _pairs("copy", length, min_length, vocab, lambda source_NS, valid_NS: source_NS)


def reverse(length: int = 16, min_length: int | None = None, vocab: int = 32) -> Task:
    """The sequence from its end to its beginning.  Grefenstette et al. 2015.  Best: 1."""

    def answer(source_NS: np.ndarray, valid_NS: np.ndarray) -> np.ndarray:
        from_NS = valid_NS.sum(1, keepdims=True) - 1 - np.arange(length)
        return np.take_along_axis(source_NS, from_NS % length, 1)

    return _pairs("reverse", length, min_length, vocab, answer)


def sort(length: int = 16, min_length: int | None = None, vocab: int = 32) -> Task:
    """The symbols from the least to the greatest.  Graves et al. 2014, §4.5, by id.  Best: 1."""

    def answer(source_NS: np.ndarray, valid_NS: np.ndarray) -> np.ndarray:
        return np.sort(np.where(valid_NS, source_NS, vocab), 1)

    return _pairs("sort", length, min_length, vocab, answer)


def _pairs(
    name: str,
    length: int,
    min_length: int | None,
    vocab: int,
    answer: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Task:
    least, most = lengths(name, length, min_length)
    whole(name, "vocab", vocab, FIRST + 2)

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        valid_NS = _valid(rng, count, least, most)
        source_NS = rng.integers(FIRST, vocab, (count, most), np.int32) * valid_NS
        target_NS = np.where(valid_NS, answer(source_NS, valid_NS), 0)
        return Pairs(source_NS, valid_NS, target_NS, valid_NS, vocab)

    return Task(make, ALL)


def _valid(rng: np.random.Generator, count: int, least: int, most: int) -> np.ndarray:
    """Each length from the least to the most is as likely."""
    if least == most:
        return np.broadcast_to(True, (count, most))
    return np.arange(most) < rng.integers(least, most + 1, (count, 1))


def induction(length: int = 64, vocab: int = 64) -> Task:
    """… A B … A → B: what came after the last token where it stood before.  Best: 1.

    Olsson et al. 2022, with one question, at the end; A stands in one earlier place only.
    """
    whole("induction", "length", length, 3)
    whole("induction", "vocab", vocab, FIRST + 3)

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        rows_N = np.arange(count)
        asked_N = rng.integers(FIRST, vocab, count, np.int32)
        tokens_NT = rng.integers(FIRST, vocab - 1, (count, length), np.int32)
        tokens_NT += tokens_NT >= asked_N[:, None]  # any symbol but the one asked for
        place_N = rng.integers(0, length - 2, count)
        tokens_NT[rows_N, place_N] = tokens_NT[:, -1] = asked_N
        target_NT, marked_NT = np.zeros_like(tokens_NT), np.zeros(tokens_NT.shape, bool)
        target_NT[:, -1], marked_NT[:, -1] = tokens_NT[rows_N, place_N + 1], True
        everywhere_NT = np.broadcast_to(True, tokens_NT.shape)
        return Marks(tokens_NT, everywhere_NT, target_NT, marked_NT, vocab)

    return Task(make, ALL)


def recall(length: int = 64, pairs: int = 4, vocab: int = 8192, alpha: float = 0.01) -> Task:
    """Keys with their values, then each key once more: its value is wanted.  Best: 1.

    Multi-query associative recall, Arora et al. 2023 (Zoology). Keys are from the lower half of the
    ids, values from the upper. After the pairs every second place may hold a question, the i-th
    one with a weight of i^(alpha − 1); at alpha=1 all are alike. The rest is filled at random.
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

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        keys_NP = FIRST + _distinct(rng, count, pairs, half - FIRST)
        values_NP = half + _distinct(rng, count, pairs, vocab - half)
        # The largest of log p + Gumbel noise are draws without replacement.  Kool et al. 2019.
        noise = log_p + rng.gumbel(size=(count, places))
        chosen_NP = np.argsort(-noise, 1)[:, :pairs] * 2 + begin
        tokens_NT = rng.integers(FIRST, vocab, (count, length), np.int32)
        tokens_NT[:, 0:begin:2], tokens_NT[:, 1:begin:2] = keys_NP, values_NP
        target_NT, marked_NT = np.zeros_like(tokens_NT), np.zeros(tokens_NT.shape, bool)
        np.put_along_axis(tokens_NT, chosen_NP, keys_NP, 1)
        np.put_along_axis(target_NT, chosen_NP, values_NP, 1)
        np.put_along_axis(marked_NT, chosen_NP, True, 1)
        everywhere_NT = np.broadcast_to(True, tokens_NT.shape)
        return Marks(tokens_NT, everywhere_NT, target_NT, marked_NT, vocab)

    return Task(make, ALL)


def _distinct(rng: np.random.Generator, count: int, size: int, among: int) -> np.ndarray:
    """`size` different numbers below `among`, in random order.  Floyd; Bentley 1987, for rows."""
    drawn_NP = np.zeros((count, size), np.int32)
    for i, top in enumerate(range(among - size, among)):
        new_N = rng.integers(0, top + 1, count, np.int32)
        taken_N = np.any(drawn_NP[:, :i] == new_N[:, None], 1)
        drawn_NP[:, i] = np.where(taken_N, top, new_N)
    return rng.permuted(drawn_NP, axis=1)


def addition(p: int = 97, fraction: float = 0.5) -> Task:
    """a + b modulo p.  Power et al. 2022.  Best: 1.

    Of the p² pairs, the same `fraction` is always for training; validation and test share the
    rest, half and half. No pair is in two splits.
    """
    whole("addition", "p", p, 2, 1000)
    number("addition", "fraction", fraction, 0, 1)
    plus, vocab = FIRST + p, FIRST + p + 1
    train = int(p * p * fraction)
    ends = {"train": train, "valid": (p * p + train + 1) // 2, "test": p * p}
    starts = dict(zip(ends, [0, *ends.values()], strict=False))
    sizes = {split: ends[split] - starts[split] for split in ends}
    if min(sizes.values()) < 1:
        empty = min(sizes, key=lambda split: sizes[split])
        raise UserError(f"addition: fraction={fraction} of {p * p} pairs leaves none for {empty!r}")

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        pair_N = shuffled(p * p, 0, "addition")[starts[split] :][:count].astype(np.int32)
        a_N, b_N = np.divmod(pair_N, p)
        tokens_NT = np.stack([a_N + FIRST, np.full_like(a_N, plus), b_N + FIRST], 1)
        everywhere_NT = np.broadcast_to(True, tokens_NT.shape)
        return Labels(tokens_NT, everywhere_NT, (a_N + b_N) % p, vocab, p)

    return Task(make, ALL, sizes)


def parity(length: int = 32, min_length: int | None = None, each: bool = False) -> Task:
    """Whether the ones are odd in number; with `each`, at every position so far.  Best: 1.

    Hahn 2020: self-attention of a fixed size gets ever nearer to chance as length grows.
    """
    least, most = lengths("parity", length, min_length)

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        valid_NT = _valid(rng, count, least, most)
        bit_NT = rng.integers(0, 2, (count, most), np.int32) * valid_NT
        odd_NT = np.cumsum(bit_NT, 1, dtype=np.int32) % 2
        tokens_NT = (bit_NT + FIRST) * valid_NT
        if each:
            return Marks(tokens_NT, valid_NT, (odd_NT + FIRST) * valid_NT, valid_NT, FIRST + 2)
        return Labels(tokens_NT, valid_NT, odd_NT[:, -1], FIRST + 2, 2)

    return Task(make, ALL)


TASKS: dict[str, Callable[..., Task]] = {
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "induction": induction,
    "recall": recall,
    "addition": addition,
    "parity": parity,
}

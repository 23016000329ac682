"""An n-gram language model with interpolated Kneser–Ney smoothing, for comparison.

Kneser & Ney 1995; Chen & Goodman 1999, §2.7, with one discount for each order,
n₁ / (n₁ + 2 n₂). Below the unigram is the uniform distribution, so no token has probability 0.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class _Order:
    """The n-grams of one order as sorted numbers with their counts; for each context, the number
    of tokens and of different tokens that follow it."""

    keys: np.ndarray
    counts: np.ndarray
    total: np.ndarray  # by context
    kinds: np.ndarray
    discount: float


class NGram:
    """Estimates P(token | up to `order` − 1 tokens before it) from rows of tokens.

    A context is numbered by its place among the n-grams of the order below, so numbers stay below
    (number of n-grams) × vocab for any order.
    """

    def __init__(self, tokens_BT: np.ndarray, valid_BT: np.ndarray, vocab: int, order: int = 3):
        self.vocab, self.orders, self.keys = vocab, list[_Order](), list[np.ndarray]()
        context_BT = np.zeros(tokens_BT.shape, np.int64)  # order 1 has one empty context
        seen_BT, counts = valid_BT, np.zeros(0, np.int64)
        for _ in range(order):
            key_BT = context_BT * vocab + tokens_BT
            keys, counts = np.unique(key_BT[seen_BT], return_counts=True)
            self.keys.append(keys)
            # The context of the next order is the n-gram that ends one token before.
            context_BT = _shifted(np.searchsorted(keys, key_BT))
            seen_BT = valid_BT & _shifted(seen_BT)
        for n, keys in enumerate(self.keys):
            contexts = len(self.keys[n - 1]) if n else 1
            times = counts
            if n + 1 < order:  # count how many different tokens precede an n-gram
                preceded = self._without_first(self.keys[n + 1], n + 1)
                times = np.bincount(preceded, minlength=len(keys))
            self.orders.append(_order(keys, times, vocab, contexts))

    def _without_first(self, keys: np.ndarray, n: int) -> np.ndarray:
        """Returns the numbers, in order n, of n-grams of order n + 1 without their first token."""
        context, last = np.divmod(keys, self.vocab)
        if n > 1:
            last += self._without_first(self.keys[n - 1], n - 1)[context] * self.vocab
        return np.searchsorted(self.keys[n - 1], last)

    def probabilities(self, tokens_BT: np.ndarray, valid_BT: np.ndarray) -> np.ndarray:
        """Returns the probability of each token, given those before it in its row."""
        p_BT = np.full(tokens_BT.shape, 1 / self.vocab)
        context_BT, known_BT = np.zeros(tokens_BT.shape, np.int64), valid_BT
        for order in self.orders:
            key_BT = context_BT * self.vocab + tokens_BT
            index_BT = np.minimum(np.searchsorted(order.keys, key_BT), len(order.keys) - 1)
            found_BT = known_BT & (order.keys[index_BT] == key_BT)
            total_BT = order.total[context_BT]
            used_BT = known_BT & (total_BT > 0)
            count_BT = np.where(found_BT, order.counts[index_BT], 0)
            kept_BT = np.maximum(count_BT - order.discount, 0)
            rest_BT = order.discount * order.kinds[context_BT]
            mixed_BT = (kept_BT + rest_BT * p_BT) / np.maximum(total_BT, 1)
            p_BT = np.where(used_BT, mixed_BT, p_BT)
            context_BT = _shifted(np.where(found_BT, index_BT, 0))
            known_BT = valid_BT & _shifted(found_BT)
        return p_BT


def _shifted(x_BT: np.ndarray) -> np.ndarray:
    return np.pad(x_BT[:, :-1], ((0, 0), (1, 0)))


def _order(keys: np.ndarray, counts: np.ndarray, vocab: int, contexts: int) -> _Order:
    context = keys // vocab
    total = np.bincount(context, weights=counts, minlength=contexts)
    kinds = np.bincount(context[counts > 0], minlength=contexts)
    once, twice = (int(np.sum(counts == n)) for n in (1, 2))
    # Without n-grams that occur once or twice (few token types), discount half a count.
    discount = once / (once + 2 * twice) if once and twice else 0.5
    return _Order(keys, counts, total, kinds, discount)

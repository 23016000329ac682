"""Tasks of nested structure: brackets and lists of lists."""

from collections.abc import Callable

import numpy as np

from tfm.data.batch import FIRST, Examples, Labels, Marks, Task
from tfm.data.options import lengths, whole
from tfm.data.synthetic import ALL
from tfm.names import UserError

DIGITS, OPERATORS = 10, ("MIN", "MAX", "MED", "SUM_MOD")
OPEN = FIRST + DIGITS  # the first operator, which opens a list
CLOSE = OPEN + len(OPERATORS)
NEST = 0.25  # how often an argument is a list; `make_data.py` of the paper
CHUNK = 1 << 13  # lists that are written at once


def dyck(length: int = 64, kinds: int = 4, depth: int = 8) -> Task:
    """Brackets of some kinds that match and nest at most `depth` deep; which one closes?  Best: 1.

    Dyck-(k, m) of Hewitt et al. 2020. Scored where the next token closes: it must match the last
    bracket still open. Where both are possible, opening and closing are as likely.
    """
    if whole("dyck", "length", length, 2) % 2:
        raise UserError(f"dyck: length={length} must be even: each bracket is closed")
    whole("dyck", "kinds", kinds, 1)
    whole("dyck", "depth", depth, 1)

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        tokens_TN = np.zeros((length, count), np.int32)
        open_DN = np.zeros((min(depth, length // 2), count), np.int32)  # brackets not yet closed
        depth_N, rows_N = np.zeros(count, np.int64), np.arange(count)
        for t in range(length):
            room_N = (depth_N < depth) & (depth_N < length - t)
            opens_N = room_N & ((depth_N == 0) | (rng.random(count, np.float32) < 0.5))
            kind_N = rng.integers(0, kinds, count, np.int32)
            depth_N -= ~opens_N
            kind_N = np.where(opens_N, kind_N, open_DN[depth_N, rows_N])
            open_DN[depth_N, rows_N] = kind_N
            tokens_TN[t] = FIRST + kind_N + kinds * ~opens_N
            depth_N += opens_N
        tokens_NT = np.ascontiguousarray(tokens_TN.T)
        target_NT = np.pad(tokens_NT[:, 1:], ((0, 0), (0, 1)))
        everywhere_NT = np.broadcast_to(True, tokens_NT.shape)
        marked_NT, vocab = target_NT >= FIRST + kinds, FIRST + 2 * kinds
        return Marks(tokens_NT, everywhere_NT, target_NT, marked_NT, vocab, follows=True)

    return Task(make, ALL)


def listops(length: int = 64, min_length: int = 16, depth: int = 5, args: int = 5) -> Task:
    """[MAX 2 9 [MIN 4 7 ] 0 ] → 9: the value of nested lists.  Nangia & Bowman 2018.  Best: 1.

    Lists of two to `args` digits or lists, `depth` deep at most; one argument in four is a list.
    Of those drawn, the ones of `min_length` to `length` tokens are kept: if few are, it takes a
    while. The median of an even number of values is the mean of the middle two, rounded down.
    """
    least, most = lengths("listops", length, min_length, 4)
    whole("listops", "depth", depth, 1)
    whole("listops", "args", args, 2)
    longest = 1
    for _ in range(depth):
        longest = min(2 + args * longest, least)
    if longest < least:
        raise UserError(
            f"listops: min_length={least} cannot be with depth={depth} and args={args}; "
            f"at most {longest}"
        )

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        tokens, labels, found, drawn = [], [], 0, 0
        while found < count:
            if drawn > 1e6 and found < drawn / 1e5:
                raise UserError(
                    f"listops: {found} of {drawn} lists had from min_length={least} to "
                    f"length={most} tokens; allow more"
                )
            tokens_NT, label_N = _lists(rng, CHUNK, least, most, depth, args)
            tokens.append(tokens_NT)
            labels.append(label_N)
            found, drawn = found + len(label_N), drawn + CHUNK
        tokens_NT = np.concatenate(tokens)[:count]
        label_N = np.concatenate(labels)[:count]
        return Labels(tokens_NT, tokens_NT > 0, label_N, CLOSE + 1, DIGITS)

    return Task(make, ALL)


def _lists(
    rng: np.random.Generator, count: int, least: int, most: int, depth: int, args: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens NT and values N of those of `count` random lists that are neither short nor long.

    All are written at once, token by token. K are those not yet at their end; D are the lists that
    one stands in, A the values of the arguments so far.
    """
    tokens_NT, label_N = np.zeros((count, most), np.int32), np.zeros(count, np.int32)
    end_N, depth_N = np.zeros(count, np.int64), np.zeros(count, np.int64)
    need_N = np.ones(count, np.int64)  # tokens still to come, at least
    kind_ND, wants_ND, has_ND = (np.zeros((count, depth), np.int64) for _ in range(3))
    value_NDA = np.zeros((count, depth, args), np.int32)
    row_K = np.arange(count)
    for t in range(most):
        depth_K = depth_N[row_K]
        inside_K = row_K, depth_K - 1
        closes_K = (depth_K > 0) & (has_ND[inside_K] == wants_ND[inside_K])
        nests_K = (depth_K < depth) & (rng.random(len(row_K), np.float32) < NEST)
        opens_K = ~closes_K & (nests_K | (depth_K == 0))
        what_K = rng.integers(0, np.where(opens_K, len(OPERATORS), DIGITS), dtype=np.int32)
        tokens_NT[row_K, t] = np.where(closes_K, CLOSE, what_K + np.where(opens_K, OPEN, FIRST))

        opened = row_K[opens_K], depth_K[opens_K]
        kind_ND[opened], has_ND[opened] = what_K[opens_K], 0
        wants_ND[opened] = rng.integers(2, args + 1, len(opened[0]))
        need_N[row_K] -= 1
        need_N[opened[0]] += wants_ND[opened] + 1
        closed = row_K[closes_K], depth_K[closes_K] - 1
        what_K[closes_K] = _value(kind_ND[closed], value_NDA[closed], has_ND[closed])

        depth_K += opens_K
        depth_K -= closes_K
        depth_N[row_K] = depth_K
        given_K = ~opens_K & (depth_K > 0)
        given = row_K[given_K], depth_K[given_K] - 1
        value_NDA[(*given, has_ND[given])] = what_K[given_K]
        has_ND[given] += 1
        ends_K = depth_K == 0
        label_N[row_K[ends_K]], end_N[row_K[ends_K]] = what_K[ends_K], t + 1
        row_K = row_K[~ends_K & (need_N[row_K] < most - t)]
    keep_N = end_N >= least
    return tokens_NT[keep_N], label_N[keep_N]


def _value(kind_K: np.ndarray, value_KA: np.ndarray, has_K: np.ndarray) -> np.ndarray:
    """MIN, MAX, MED or SUM_MOD of the first arguments, as many as it has."""
    given_KA = np.arange(value_KA.shape[1]) < has_K[:, None]
    sorted_KA, rows_K = np.sort(np.where(given_KA, value_KA, DIGITS), 1), np.arange(len(has_K))
    middle_K = (sorted_KA[rows_K, (has_K - 1) // 2] + sorted_KA[rows_K, has_K // 2]) // 2
    total_K = np.sum(value_KA, 1, where=given_KA) % DIGITS
    return np.choose(kind_K, [sorted_KA[:, 0], sorted_KA[rows_K, has_K - 1], middle_K, total_K])


TASKS: dict[str, Callable[..., Task]] = {"dyck": dyck, "listops": listops}

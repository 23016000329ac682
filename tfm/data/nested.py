"""Tasks of nested structure: brackets and lists of lists."""

import math
from collections.abc import Callable

import numpy as np

from tfm.data.dataset import FIRST, Examples, Generated, Ragged, Source
from tfm.data.draws import Draws, hashed
from tfm.data.options import lengths, whole
from tfm.data.synthetic import ALL
from tfm.names import UserError

DIGITS, OPERATORS = 10, ("MIN", "MAX", "MED", "SUM_MOD")
OPEN = FIRST + DIGITS  # the first operator, which opens a list
CLOSE = OPEN + len(OPERATORS)
NEST = 0.25  # how often an argument is a list; `make_data.py` of the paper
CHUNK = 1 << 11  # lists that are written at once


def dyck(length: int = 64, kinds: int = 4, depth: int = 8) -> Source:
    """Brackets of some kinds that match and nest at most `depth` deep; which one closes?  Best: 1.

    Dyck-(k, m) of Hewitt et al. 2020. Tokens that close are scored: they must match the last
    bracket still open. Where both are possible, opening and closing are as likely.
    """
    if whole("dyck", "length", length, 2) % 2:
        raise UserError(f"dyck: length={length} must be even: each bracket is closed")
    whole("dyck", "kinds", kinds, 1)
    whole("dyck", "depth", depth, 1)

    def make(draws: Draws) -> Examples:
        count = len(draws)
        heads_TN = draws.uniform((length,)).T < 0.5
        kind_TN = draws.integers(0, kinds, (length,)).T
        tokens_TN = np.zeros((length, count), np.int32)
        open_DN = np.zeros((min(depth, length // 2), count), np.int32)  # brackets not yet closed
        depth_N, rows_N = np.zeros(count, np.int64), np.arange(count)
        for t in range(length):
            may_N = (depth_N < depth) & (depth_N < length - t)
            opens_N = may_N & ((depth_N == 0) | heads_TN[t])
            depth_N -= ~opens_N
            kind_N = np.where(opens_N, kind_TN[t], open_DN[depth_N, rows_N])
            open_DN[depth_N, rows_N] = kind_N
            tokens_TN[t] = FIRST + kind_N + kinds * ~opens_N
            depth_N += opens_N
        tokens_NT = np.ascontiguousarray(tokens_TN.T)
        return Examples(tokens=Ragged.of(tokens_NT), scored=tokens_NT.ravel() >= FIRST + kinds)

    return Generated(make, form="text", vocab=FIRST + 2 * kinds, max_length=length, best=ALL)


def listops(length: int = 64, min_length: int = 16, depth: int = 5, args: int = 5) -> Source:
    """[MAX 2 9 [MIN 4 7 ] 0 ] → 9: the value of nested lists.  Nangia & Bowman 2018.  Best: 1.

    Lists of two to `args` digits or lists, `depth` deep at most; one argument in four is a list.
    Each row draws lists until one has `min_length` to `length` tokens: if few have, it takes a
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

    fits = {"drawn": 1, "kept": 1}  # how many lists fit so far; it decides the speed, not the rows

    def make(draws: Draws) -> Examples:
        count = len(draws)
        tokens_NT, label_N = np.zeros((count, most), np.int32), np.zeros(count, np.int32)
        todo, tried, drawn = np.arange(count), 0, 0
        while todo.size:
            if drawn > 1e6 and count - todo.size < drawn / 1e5:
                raise UserError(
                    f"listops: {count - todo.size} of {drawn} lists had from min_length={least} to "
                    f"length={most} tokens; allow more"
                )
            # Some tries of every row at once; each row keeps the first that fits.
            miss = max(1 - fits["kept"] / fits["drawn"], 1e-9)
            likely = math.ceil(math.log(2 * todo.size) / -math.log(miss))  # enough for all rows
            tries = max(1, min(likely, CHUNK // todo.size))
            key_M = hashed(draws.key_N[todo, None], np.arange(tried, tried + tries)).ravel()
            tokens_MT, label_M, fits_M = _lists(key_M, least, most, depth, args)
            fits_NM = fits_M.reshape(-1, tries)
            found_N = fits_NM.any(1)
            fits["drawn"], fits["kept"] = fits["drawn"] + len(key_M), fits["kept"] + fits_M.sum()
            first = np.flatnonzero(found_N) * tries + fits_NM[found_N].argmax(1)
            tokens_NT[todo[found_N]], label_N[todo[found_N]] = tokens_MT[first], label_M[first]
            todo, tried, drawn = todo[~found_N], tried + tries, drawn + len(key_M)
        return Examples(tokens=Ragged.of(tokens_NT, tokens_NT > 0), labels=label_N)

    return Generated(
        make, form="labels", vocab=CLOSE + 1, classes=DIGITS, max_length=most, best=ALL
    )


def _lists(
    key_N: np.ndarray, least: int, most: int, depth: int, args: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens NT and values N of random lists, and which of them are neither short nor long.

    All are written at once, token by token. K are those not yet at their end; D are the lists that
    one stands in, A the values of the arguments so far.
    """
    draws = Draws(0, key_N)
    count = len(key_N)
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
        nests_K = (depth_K < depth) & (draws.uniform(of=row_K) < NEST)
        opens_K = ~closes_K & (nests_K | (depth_K == 0))
        what_K = draws.integers(0, np.where(opens_K, len(OPERATORS), DIGITS), of=row_K)
        tokens_NT[row_K, t] = np.where(closes_K, CLOSE, what_K + np.where(opens_K, OPEN, FIRST))

        opened = row_K[opens_K], depth_K[opens_K]
        kind_ND[opened], has_ND[opened] = what_K[opens_K], 0
        wants_ND[opened] = draws.integers(2, args + 1, of=opened[0])
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
    return tokens_NT, label_N, end_N >= least


def _value(kind_K: np.ndarray, value_KA: np.ndarray, has_K: np.ndarray) -> np.ndarray:
    """MIN, MAX, MED or SUM_MOD of the first arguments, as many as it has."""
    given_KA = np.arange(value_KA.shape[1]) < has_K[:, None]
    sorted_KA, rows_K = np.sort(np.where(given_KA, value_KA, DIGITS), 1), np.arange(len(has_K))
    middle_K = (sorted_KA[rows_K, (has_K - 1) // 2] + sorted_KA[rows_K, has_K // 2]) // 2
    total_K = np.sum(value_KA, 1, where=given_KA) % DIGITS
    return np.choose(kind_K, [sorted_KA[:, 0], sorted_KA[rows_K, has_K - 1], middle_K, total_K])


DATASETS: dict[str, Callable[..., Source]] = {"dyck": dyck, "listops": listops}

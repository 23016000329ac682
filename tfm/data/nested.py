"""Tasks of nested structure: brackets and lists of lists."""

import random
from collections.abc import Callable

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import FIRST, Examples, Generated, Ragged, Source, length_range, whole
from tfm.data.draws import Draws
from tfm.data.synthetic import ALL


def _median(values: list[int]) -> int:
    """Of an even number of values, the mean of the middle two, rounded down."""
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


DIGITS = 10
OPERATORS = (min, max, _median, lambda values: sum(values) % DIGITS)  # MIN, MAX, MED, SUM_MOD
OPEN = FIRST + DIGITS  # the first operator, which opens a list
CLOSE = OPEN + len(OPERATORS)
NEST = 0.25  # how often an argument is a list; `make_data.py` of the paper
MOST_LISTS = 20_000  # that are drawn for a row, before it is given up


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

    def last_four(examples: Examples) -> float:
        """Name the bracket that is still open within the last four tokens, or any."""
        tokens = examples.tokens.ids.reshape(-1, length).tolist()
        right = []
        for row in tokens:
            for t, token in enumerate(row):
                if token >= FIRST + kinds:
                    still_open: list[int] = []
                    for seen in row[max(t - 4, 0) : t]:
                        if seen < FIRST + kinds:
                            still_open.append(seen)
                        elif still_open:
                            still_open.pop()
                    right.append(still_open[-1] + kinds == token if still_open else 1 / kinds)
        return float(np.mean(right))

    facts = {"vocab": FIRST + 2 * kinds, "max_length": length, "padded": False, "best": ALL}
    return Generated(make, form="text", shortcuts={"last four tokens": last_four}, **facts)


def listops(length: int = 64, min_length: int = 16, depth: int = 5, args: int = 5) -> Source:
    """[MAX 2 9 [MIN 4 7 ] 0 ] → 9: the value of nested lists.  Nangia & Bowman 2018.  Best: 1.

    Lists of two to `args` digits or lists, `depth` deep at most; one argument in four is a list.
    Each row draws lists until one has `min_length` to `length` tokens: if few have, it takes a
    while.
    """
    least, most = length_range("listops", length, min_length, 4)
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

    def make(draws: Draws) -> Examples:
        lists = [_fitting_list(int(key), least, most, depth, args) for key in draws.key_N]
        ids = np.array([token for tokens, _ in lists for token in tokens], np.int32)
        lengths = np.array([len(tokens) for tokens, _ in lists])
        return Examples(
            tokens=Ragged(ids, lengths), labels=np.array([value for _, value in lists], np.int32)
        )

    def first_operator(examples: Examples) -> float:
        """Name the most frequent value of lists that begin with the same operator."""
        tokens, labels = examples.tokens, examples.labels
        assert labels is not None
        first_N = tokens.ids[np.cumsum(tokens.lengths) - tokens.lengths] - OPEN
        count_OV = np.zeros((len(OPERATORS), DIGITS))
        np.add.at(count_OV, (first_N, labels), 1)
        return float(count_OV.max(1).sum() / count_OV.sum())

    facts = {"vocab": CLOSE + 1, "classes": DIGITS, "max_length": most, "best": ALL}
    return Generated(make, form="labels", shortcuts={"first operator": first_operator}, **facts)


def _fitting_list(key: int, least: int, most: int, depth: int, args: int) -> tuple[list[int], int]:
    """The first random list that is neither short nor long: its tokens and its value."""
    uniform = random.Random(key).random
    for _ in range(MOST_LISTS):
        tokens: list[int] = []
        value = _write_list(tokens, uniform, most, depth, args)
        if least <= len(tokens) <= most:
            return tokens, value
    raise UserError(
        f"listops: none of {MOST_LISTS} lists had from min_length={least} to length={most} "
        "tokens; allow more"
    )


def _write_list(
    tokens: list[int], uniform: Callable[[], float], most: int, depth: int, args: int
) -> int:
    """Append the tokens of a random list, and return its value. Stop early if it is too long."""
    operator = int(uniform() * len(OPERATORS))
    tokens.append(OPEN + operator)
    values = []
    for _ in range(2 + int(uniform() * (args - 1))):
        if len(tokens) > most:
            return 0  # too long: its value is never read
        if depth > 1 and uniform() < NEST:
            values.append(_write_list(tokens, uniform, most, depth - 1, args))
        else:
            values.append(int(uniform() * DIGITS))
            tokens.append(FIRST + values[-1])
    tokens.append(CLOSE)
    return OPERATORS[operator](values)


DATASETS: dict[str, Callable[..., Source]] = {"dyck": dyck, "listops": listops}

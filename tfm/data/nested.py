"""Tasks of nested structure: brackets and lists of lists."""

import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import FIRST, Examples, Generated, Ragged, Source, length_range, whole
from tfm.data.draws import Draws
from tfm.data.synthetic import ALL, most_frequent

DIGITS = 10
OPERATORS: Sequence[Callable[[list[int]], int]] = (  # MIN, MAX, MED (rounded down), SUM_MOD
    min,
    max,
    lambda values: int(statistics.median(values)),
    lambda values: sum(values) % DIGITS,
)
OPEN = FIRST + DIGITS  # the first operator, which opens a list
CLOSE = OPEN + len(OPERATORS)
NEST = 0.25  # probability that an argument is a list; `make_data.py` of the paper
MAX_LISTS = 20_000  # attempts to draw a list of an allowed length


def dyck(length: int = 64, kinds: int = 4, depth: int = 8) -> Source:
    """Brackets of some kinds that match and nest at most `depth` deep; which one closes?  Best: 1.

    Dyck-(k, m) of Hewitt et al. 2020. Closing brackets are scored: they must match the last one
    still open. Where both are possible, opening and closing are equally likely.
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
        """Returns the accuracy of closing what the last four tokens left open, or guessing."""
        right = []
        for row in examples.tokens.ids.reshape(-1, length).tolist():
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

    Lists of two to `args` digits or lists, at most `depth` deep; one argument in four is a list.
    Each row draws lists until one has `min_length` to `length` tokens, which is slow if few have.
    """
    least, most = length_range("listops", length, min_length, 4)
    whole("listops", "depth", depth, 1)
    whole("listops", "args", args, 2)
    longest = 1
    for _ in range(depth):
        longest = min(2 + args * longest, least)
    if longest < least:
        raise UserError(
            f"listops: min_length={least} is impossible with depth={depth} and args={args}; "
            f"at most {longest}"
        )

    def make(draws: Draws) -> Examples:
        lists = [_draw_list(int(key), least, most, depth, args) for key in draws.key_N]
        ids = np.array([token for tokens, _ in lists for token in tokens], np.int32)
        tokens = Ragged(ids, np.array([len(tokens) for tokens, _ in lists]))
        return Examples(tokens=tokens, labels=np.array([value for _, value in lists], np.int32))

    def first_operator(examples: Examples) -> float:
        """Returns the accuracy of the most frequent value for each first operator."""
        tokens = examples.tokens
        first_N = tokens.ids[np.cumsum(tokens.lengths) - tokens.lengths]
        return most_frequent(first_N, examples.labels)

    facts = {"vocab": CLOSE + 1, "classes": DIGITS, "max_length": most, "best": ALL}
    return Generated(make, form="labels", shortcuts={"first operator": first_operator}, **facts)


def _draw_list(key: int, least: int, most: int, depth: int, args: int) -> tuple[list[int], int]:
    """Draws lists until one has an allowed length; returns its tokens and its value."""
    uniform = random.Random(key).random
    for _ in range(MAX_LISTS):
        tokens: list[int] = []
        value = _append_list(tokens, uniform, most, depth, args)
        if least <= len(tokens) <= most:
            return tokens, value
    raise UserError(
        f"listops: none of {MAX_LISTS} lists had from min_length={least} to length={most} "
        "tokens; allow a wider range"
    )


def _append_list(
    tokens: list[int], uniform: Callable[[], float], most: int, depth: int, args: int
) -> int:
    """Appends the tokens of a random list and returns its value; stops early if it is too long."""
    operator = int(uniform() * len(OPERATORS))
    tokens.append(OPEN + operator)
    values = []
    for _ in range(2 + int(uniform() * (args - 1))):
        if len(tokens) > most:
            return 0  # too long: the value is not used
        if depth > 1 and uniform() < NEST:
            values.append(_append_list(tokens, uniform, most, depth - 1, args))
        else:
            values.append(int(uniform() * DIGITS))
            tokens.append(FIRST + values[-1])
    tokens.append(CLOSE)
    return OPERATORS[operator](values)


DATASETS: dict[str, Callable[..., Source]] = {"dyck": dyck, "listops": listops}

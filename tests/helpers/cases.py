"""Every table entry alone and every pair of entries, in as few attentions as cover them all."""

import dataclasses
import inspect
import itertools
import random
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.tree_util import Partial

from tests.helpers import oracle
from tfm.config.names import UserError, read
from tfm.ops import masks
from tfm.ops.attend import attend
from tfm.ops.mask import At, Mask
from tfm.ops.masks import MASKS
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import POSITIONS
from tfm.ops.scores import SCORES
from tfm.ops.shapes import shape_of

BATCH, ROWS, COLS, HEADS, WIDTH, LONGEST = 2, 9, 10, 4, 6, 16
AMPLITUDE = 0.25  # of a table of positions: so logits stay of the size that models have
TABLES: dict[str, Any] = {
    "score": SCORES,
    "mask": [*MASKS, "predicate", "joined"],
    "position": POSITIONS,
    "normalizer": NORMALIZERS,
    "cap": [None, 2.5],
    "groups": [4, 2, 1],
    "value_width": [WIDTH, 5],
    "restart": [False, True],
}
_random = np.random.default_rng(0)
VALID = np.array([[1] * 7 + [0] * 3, [0] * 2 + [1] * 8], bool)
Q_SEGMENT, K_SEGMENT = (np.sort(_random.integers(0, 3, (BATCH, n))) for n in (ROWS, COLS))
GIVEN = _random.random((BATCH, HEADS, ROWS, COLS)) < 0.6

# How to make a mask that needs more than its name, and what it means. An entry that is not here is
# made without options and means what it says of the whole plane.
MASK_EXAMPLES = {
    "everything": (masks.everything, lambda b, h, i, j, t, s: True),
    "causal": (masks.causal, lambda b, h, i, j, t, s: j <= i),
    "window": (lambda: masks.window(left=2, right=1), lambda b, h, i, j, t, s: -1 <= i - j <= 2),
    "strided": (lambda: masks.strided(3), lambda b, h, i, j, t, s: (i - j) % 3 == 0),
    "global_tokens": (lambda: masks.global_tokens(2), lambda b, h, i, j, t, s: t < 2 or s < 2),
    "prefix": (lambda: masks.prefix([3, 6]), lambda b, h, i, j, t, s: s < (3, 6)[b]),
    "padding": (lambda: masks.padding(VALID), lambda b, h, i, j, t, s: VALID[b, j]),
    "segments": (
        lambda: masks.segments(Q_SEGMENT, K_SEGMENT),
        lambda b, h, i, j, t, s: Q_SEGMENT[b, i] == K_SEGMENT[b, j],
    ),
    "given": (lambda: masks.given(GIVEN), lambda b, h, i, j, t, s: GIVEN[b, h, i, j]),
    "predicate": (
        lambda: masks.predicate(lambda t, s: (t + s) % 3 != 1),
        lambda b, h, i, j, t, s: (t + s) % 3 != 1,
    ),
    "joined": (
        lambda: masks.causal() & ~masks.strided(2) | masks.global_tokens(1) & masks.padding(VALID),
        lambda b, h, i, j, t, s: (
            (j <= i and (i - j) % 2 != 0) or ((t < 1 or s < 1) and VALID[b, j])
        ),
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    score: str = "scaled_dot"
    mask: str = "everything"
    position: str = "none"
    normalizer: str = "softmax"
    cap: float | None = None
    groups: int = HEADS
    value_width: int = WIDTH
    restart: bool = False  # positions that start again in the middle

    def __str__(self):
        return "-".join(map(str, dataclasses.astuple(self)))


def cover_entries(tables: dict[str, Any]) -> list[Case]:
    """Cases that hold every entry of every table at least once."""
    most = max(len(table) for table in tables.values())
    return [Case(**{n: list(t)[i % len(t)] for n, t in tables.items()}) for i in range(most)]


def cover_pairs(tables: dict[str, Any], seed: int = 0) -> list[Case]:
    """Cases that bring every pair of entries of two different tables together at least once."""
    names, rng = list(tables), random.Random(seed)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in tables[a]
        for y in tables[b]
    }
    cases = []
    while missing:
        tries = []
        for (a, x), (b, y) in rng.sample(sorted(missing, key=str), min(20, len(missing))):
            values = {n: rng.choice(list(tables[n])) for n in names} | {a: x, b: y}
            covered = set(itertools.combinations(values.items(), 2)) & missing
            tries.append((len(covered), values, covered))
        _, values, covered = max(tries, key=lambda t: t[0])
        cases.append(Case(**values))
        missing -= covered
    return cases


def numbers(case: Case, seed: int = 1) -> dict[str, np.ndarray]:
    """Queries, keys, values and parameters, in float64."""
    rng = np.random.default_rng(seed)
    sizes = {"H": HEADS, "K": WIDTH, "L": LONGEST, "M": LONGEST, "D": HEADS * WIDTH}
    out = {
        "q": rng.normal(size=(BATCH, ROWS, HEADS, WIDTH)),
        "k": rng.normal(size=(BATCH, COLS, case.groups, WIDTH)),
        "v": rng.normal(size=(BATCH, COLS, case.groups, case.value_width)),
    }
    score, position = SCORES[case.score], _position(case)
    for prefix, entry in (("score", score), ("position", position)):
        for name in entry.params:
            shape = shape_of(name, sizes | dict(entry.sizes))
            out[f"{prefix}_{name}"] = rng.normal(size=shape) / 2
    return out


def positions(case: Case) -> tuple[np.ndarray, np.ndarray] | None:
    if not case.restart:
        return None
    return tuple(
        np.stack([np.concatenate([np.arange(c), np.arange(n - c)]) for c in cuts])
        for n, cuts in ((ROWS, (4, 6)), (COLS, (5, 3)))
    )


def mask_of(case: Case) -> Mask:
    make, _ = MASK_EXAMPLES.get(case.mask, (MASKS.get(case.mask), None))
    return make() if callable(make) else make


def by_tfm(case: Case, values: dict[str, jax.Array], **options) -> jax.Array:
    """The attention of `case`, as the library computes it."""
    position = _position(case)
    held = _named(values, "position")
    pos = positions(case)
    q_pos, k_pos = pos if pos else (None, None)
    q, k = values["q"], values["k"]
    at = pos or (np.arange(ROWS)[None], np.arange(COLS)[None])
    if position.table is not None:
        table = _table(position, jnp.asarray(at[0]), held).astype(q.dtype)
        q = q + (AMPLITUDE * table).reshape(-1, ROWS, HEADS, WIDTH)
    if position.rotate is not None:
        q, k = (position.rotate(x, jnp.asarray(p), **held) for x, p in zip((q, k), at, strict=True))
    return attend(
        q,
        k,
        values["v"],
        score=Partial(SCORES[case.score].fn, **_named(values, "score")),
        bias=None if position.bias is None else Partial(position.bias, **held),
        mask=mask_of(case),
        normalizer=case.normalizer,
        cap=case.cap,
        q_pos_BT=None if q_pos is None else jnp.asarray(q_pos),
        k_pos_BS=None if k_pos is None else jnp.asarray(k_pos),
        **options,
    )


@jax.enable_x64(True)
def by_oracle(case: Case, values: dict[str, np.ndarray]) -> np.ndarray:
    """The same by definition. What the oracle has no formula for, it asks of single pairs."""
    position, held = _position(case), _named(values, "position")
    q, k = values["q"].copy(), values["k"].copy()
    at = positions(case) or [np.tile(np.arange(n), (BATCH, 1)) for n in (ROWS, COLS)]
    for b, i, h in np.ndindex(BATCH, ROWS, HEADS):
        part, p = slice(h * WIDTH, (h + 1) * WIDTH), at[0][b, i]
        if case.position in oracle.TABLES:
            q[b, i, h] += AMPLITUDE * oracle.TABLES[case.position](p, HEADS * WIDTH, ROWS)[part]
        elif case.position == "learned":
            q[b, i, h] += AMPLITUDE * held["w_LD"][p, part]
        elif position.table is not None:
            table = _table(position, jnp.asarray([[p]]), held)
            q[b, i, h] += AMPLITUDE * np.asarray(table, np.float64)[0, 0, part]
    if position.rotate is not None:
        for x, pos in ((q, at[0]), (k, at[1])):
            for b, i, h in np.ndindex(*x.shape[:3]):
                if case.position == "rotary":
                    x[b, i, h] = oracle.rotary(x[b, i, h], pos[b, i])
                else:
                    one = position.rotate(
                        jnp.asarray(x[b, i, h])[None, None, None],
                        jnp.asarray([[pos[b, i]]]),
                        **held,
                    )
                    x[b, i, h] = np.asarray(one)[0, 0, 0]
    bias = None
    if case.position in oracle.BIASES:
        bias = lambda t, s, h: oracle.BIASES[case.position](t, s, h, HEADS, **held)
    elif position.bias is not None:
        longest = np.arange(LONGEST)[None]
        bias_HTS = np.asarray(position.bias(longest, longest, HEADS, **held), np.float64)[0]
        bias = lambda t, s, h: bias_HTS[h, t, s]
    _, visible = MASK_EXAMPLES.get(case.mask, (None, None))
    if visible is None:
        whole = At(np.arange(ROWS), np.arange(COLS), *map(np.asarray, at))
        shown = np.broadcast_to(mask_of(case).visible(whole), (BATCH, HEADS, ROWS, COLS))
        visible = lambda b, h, i, j, t, s: shown[b, h, i, j]
    return oracle.attention(
        q,
        k,
        values["v"],
        score=_score(case, _named(values, "score")),
        bias=bias,
        visible=visible,
        normalize=oracle.NORMALIZERS.get(case.normalizer) or _row(case.normalizer),
        cap=case.cap,
        pos=tuple(at),
    )[0]


def allowed(case: Case, implementation: str) -> bool:
    try:
        jax.eval_shape(
            lambda v: by_tfm(case, v, implementation=implementation),
            {name: jnp.asarray(x, jnp.float32) for name, x in numbers(case).items()},
        )
    except UserError:
        return False
    return True


def _score(case: Case, held: dict[str, np.ndarray]):
    if case.score in oracle.SCORES:
        return lambda *pair: oracle.SCORES[case.score](*pair, **held)
    fn = jax.jit(SCORES[case.score].fn)

    def one_pair(q, k, h, t, s):
        tiles = (jnp.tile(x, (1, 1, HEADS, 1)) for x in (q, k))
        at = {"q_pos_BT": jnp.full((1, 1), t), "k_pos_BS": jnp.full((1, 1), s)}
        return float(fn(*tiles, **held, **at)[0, h, 0, 0])

    return one_pair


def _row(name: str):
    norm = read(name, NORMALIZERS, "normalizer")

    def normalize(logits):
        whole = norm.row if norm.each is None else norm.each
        if whole is not None:
            return list(map(float, whole(jnp.asarray(logits))))
        lse = np.log(np.sum(np.exp(logits))) if logits else 0.0
        return [float(np.exp(x - norm.total(lse))) for x in logits]

    return normalize


def _position(case: Case):
    entry = POSITIONS[case.position]
    return entry() if callable(entry) else entry


def _table(position, pos_BT, held):
    """What joins the embeddings; a scheme may ask for the length of the sequence."""
    if "length_B" in inspect.signature(position.table).parameters:
        held = {**held, "length_B": jnp.full(len(pos_BT), ROWS)}
    return position.table(pos_BT, HEADS * WIDTH, **held)


def _named(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{prefix}_"): value
        for name, value in values.items()
        if name.startswith(f"{prefix}_")
    }

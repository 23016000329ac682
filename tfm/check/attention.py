"""Checks of attention with a new score, mask, position scheme or normalizer."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial

from tfm.check.results import Result, finite, jit, near, normal, start
from tfm.ops.attend import attend
from tfm.ops.mask import At, Mask
from tfm.ops.masks import causal, predicate
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.positions import Position
from tfm.ops.reference import Logits, tile_logits
from tfm.ops.scores import SCORES, Score
from tfm.ops.shapes import shape_of

BATCH, LENGTH, HEADS, WIDTH, LONGEST, EDGE = 2, 9, 2, 4, 16, 4
ROW, CUT = 4, 5  # a query, and the first key that a causal mask hides from it
SIZES = {"H": HEADS, "K": WIDTH, "D": HEADS * WIDTH, "L": LONGEST, "M": LONGEST}
WAYS: dict[str, dict[str, Any]] = {  # options of attend
    "whole": {"implementation": "reference"},
    "tiles": {"implementation": "blockwise", "edge": EDGE},
}
Values = dict[str, Any]


def past_but_one_row() -> Mask:
    """Returns a causal mask under which one query sees nothing."""
    return causal() & predicate(lambda q_pos, k_pos: (q_pos != 2) & (k_pos >= 0))


@dataclasses.dataclass(frozen=True)
class Attention:
    score: Score = SCORES["scaled_dot"]
    position: Position = Position()
    normalizer: Normalizer = NORMALIZERS["softmax"]
    mask: Mask | None = None

    def values(self) -> Values:
        """Returns queries, keys, values and parameters."""
        shape = BATCH, LENGTH, HEADS, WIDTH
        out: Values = {name: normal(seed, *shape) for seed, name in enumerate("qkv")}
        for name, entry in (("score", self.score), ("position", self.position)):
            sizes = {**SIZES, **entry.sizes}
            shapes = {param: shape_of(param, sizes) for param in entry.params}
            out[name] = start(entry.params, shapes)
        return out

    def parts(self, values: Values) -> tuple[Partial, Partial | None]:
        bias, params = self.position.bias, values["position"]
        score = Partial(self.score.fn, **values["score"])
        return score, None if bias is None else Partial(bias, **params)

    def rotate(self, x_BTHK: Array, pos_BT: Array, values: Values) -> Array:
        rotation = self.position.rotate
        return x_BTHK if rotation is None else rotation(x_BTHK, pos_BT, **values["position"])

    def logits(self, values: Values, rows_T: Array, cols_S: Array) -> Array:
        """Returns the logits of a tile, computed from its queries and keys alone."""
        q_BTHK = self.rotate(values["q"][:, rows_T], rows_T[None], values)
        k_BSHK = self.rotate(values["k"][:, cols_S], cols_S[None], values)
        at = At(rows_T, cols_S, rows_T[None], cols_S[None])
        return tile_logits(Logits(*self.parts(values), None), q_BTHK, k_BSHK, at)

    def out(self, values: Values, **way: Any) -> Any:
        index = jnp.arange(values["q"].shape[1])[None]
        q, k = (self.rotate(values[name], index, values) for name in "qk")
        score, bias = self.parts(values)
        mask = past_but_one_row() if self.mask is None else self.mask
        parts: dict[str, Any] = {"score": score, "bias": bias, "mask": mask}
        return attend(q, k, values["v"], **parts, normalizer=self.normalizer, **way)


def checks(attention: Attention) -> Iterator[Result]:
    """Yields the result of every check."""
    values = jax.tree.map(jnp.asarray, attention.values())
    index = jnp.arange(LENGTH)
    shown_TS = np.tril(np.ones((LENGTH, LENGTH), bool))
    if attention.mask is not None:
        visible = attention.mask.visible(At(index, index, index[None], index[None]))
        visible_BHTS = jnp.broadcast_to(visible, (BATCH, HEADS, LENGTH, LENGTH))
        shown_TS = np.asarray(jnp.any(visible_BHTS, (0, 1)))

    tile = jit(attention.logits)
    whole = tile(values, index, index)
    others = _with_others(values, np.arange(LENGTH) >= CUT)
    corners = [(r, c) for r in (0, LENGTH - EDGE) for c in (0, LENGTH - EDGE)]
    edge = jnp.arange(EDGE)
    yield near(
        "pairs",
        "the logit of a query and a key does not depend on the rest of the tile",
        (tile(others, index, index)[:1, :, :CUT, :CUT], whole[:1, :, :CUT, :CUT]),
        *(
            (tile(values, r + edge, c + edge), whole[:, :, r : r + EDGE, c : c + EDGE])
            for r, c in corners
        ),
    )

    def training(values: Values, cotangent: Array, way: dict[str, Any]) -> tuple[Array, Values]:
        out, pull = jax.vjp(lambda values: attention.out(values, **way), values)
        return out, pull(cotangent)[0]

    steps = {name: jit(functools.partial(training, way=way)) for name, way in WAYS.items()}
    cotangent = normal(9, BATCH, LENGTH, HEADS, WIDTH)
    outputs = {name: step(values, cotangent) for name, step in steps.items()}
    yield near(
        "tiles", "tiles give the same outputs and gradients as the whole matrix",
        (outputs["tiles"], outputs["whole"]),
    )  # fmt: skip

    others = _with_others(values, ~shown_TS[ROW], ROW)
    yield near(
        "hidden keys",
        "an output depends only on its own query and the visible keys, by value",
        *((step(others, cotangent)[0][0, ROW], outputs[name][0][0, ROW])
          for name, step in steps.items()),
    )  # fmt: skip
    reach_TS = np.zeros((LENGTH, LENGTH))
    for step in steps.values():
        for row in range(LENGTH):
            only = np.where(np.arange(LENGTH)[None, :, None, None] == row, cotangent, 0)
            _, grads = step(values, only)
            for name in "kv":
                reach_TS[row] = np.maximum(reach_TS[row], np.abs(grads[name]).max((0, 2, 3)))
    reach_TS /= max(reach_TS.max(), 1e-30)
    yield near(
        "causality", "no gradient flows to a key that the mask hides",
        (np.where(shown_TS, 0, reach_TS), np.zeros_like(reach_TS)),
    )  # fmt: skip
    if attention.mask is None:
        short = {**values, **{name: values[name][:, :CUT] for name in "qkv"}}
        alone = jit(functools.partial(attention.out, **WAYS["whole"]))(short)
        yield near(
            "padding", "hidden keys at the end change nothing, whatever their number",
            (alone, outputs["whole"][0][:, :CUT]),
        )  # fmt: skip
    yield finite("gradients", "outputs and gradients are finite", list(outputs.values()))
    with jax.disable_jit():
        eager = attention.logits(values, index, index), attention.out(values, **WAYS["whole"])
    yield near(
        "compiled", "compiled code equals single operations", ((whole, outputs["whole"][0]), eager)
    )  # fmt: skip


def _with_others(values: Values, hidden_S: np.ndarray, row: int | None = None) -> Values:
    """Replaces the second example, the hidden keys and values, and all queries but `row`.

    Without `row`, replaces the queries at the positions of hidden keys.
    """
    queries = hidden_S if row is None else np.arange(LENGTH) != row
    changed = dict(values)
    for seed, (name, places) in enumerate((("q", queries), ("k", hidden_S), ("v", hidden_S))):
        new = np.asarray(values[name]).copy()
        new[:, places] = 3 * normal(20 + seed, *new[:, places].shape)
        new[1] = 3 * normal(30 + seed, *new[1].shape)
        changed[name] = jnp.asarray(new)
    return changed

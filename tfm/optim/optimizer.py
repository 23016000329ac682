"""Optimisers, built inside the step from traced numbers.

What is on is structure, how much of it is data: one compiled step serves every learning rate, decay
and clip. The path of a parameter says what it is: a matrix, a bias, one layer of a scanned stack.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax import numpy as jnp
from optax import contrib

from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, SpecError, call, choice, field, rate
from tfm.layers.stack import SCANNED
from tfm.optim.schedule import SCHEDULES

Tree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    """How weights move. None is off."""

    name: Named = choice(lambda: OPTIMIZERS, "adamw")
    learning_rate: float = field(1e-3, above=0)  # at its peak
    schedule: Named = call(lambda: SCHEDULES, "constant")
    weight_decay: float | None = field(None, least=0)
    decay_mask: str = r"kernel|embedding|input|output"  # names of what decays, as an expression
    clip: float | None = field(1.0, above=0)  # of the gradient's norm
    clip_rows: float | None = field(None, above=0)  # of that of each vector in a table of vectors
    b1: float = rate(0.9)
    b2: float = rate(0.999)
    eps: float = field(1e-8, above=0)
    momentum: float | None = rate(None)  # of SGD
    frozen: str | None = None  # paths of parameters that stay as they are, as an expression
    factor_paths: tuple[str, ...] = ()  # paths with a learning rate of their own; the first counts
    factors: tuple[float, ...] = field((), least=0)  # times the learning rate, one for each

    def check(self) -> None:
        if len(self.factor_paths) != len(self.factors):
            raise SpecError(
                "factors",
                f"{{key}} has {len(self.factors)} numbers, but factor_paths={self.factor_paths} "
                f"has {len(self.factor_paths)}",
            )
        if self.momentum is not None and self.name != "sgd":
            raise SpecError(
                "momentum", f"{{key}}={self.momentum}: 'sgd' has one, {self.name!r} has not"
            )
        patterns = {"decay_mask": (self.decay_mask,), "factor_paths": self.factor_paths}
        for key, texts in {**patterns, "frozen": (self.frozen or "",)}.items():
            for text in texts:
                try:
                    re.compile(text)
                except re.error as e:
                    raise SpecError(key, f"{{key}}={text!r} is no regular expression: {e}") from e


def sgd(spec: OptimizerSpec) -> optax.GradientTransformation:
    """g, or a running sum of it.  Robbins & Monro 1951; Polyak 1964."""
    return optax.identity() if spec.momentum is None else optax.trace(spec.momentum)


def adam(spec: OptimizerSpec) -> optax.GradientTransformation:
    """m / (√v + ε).  Kingma & Ba 2015; decay apart from it is AdamW, Loshchilov & Hutter 2019."""
    return optax.scale_by_adam(spec.b1, spec.b2, spec.eps)


def adafactor(spec: OptimizerSpec) -> optax.GradientTransformation:
    """v in rows and columns, clipped, relative to the weight's own size.  Shazeer & Stern 2018.

    A scanned stack is one tensor to it, so its update is not that of the layers unrolled.
    """
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def lion(spec: OptimizerSpec) -> optax.GradientTransformation:
    """sign(β₁ m + (1 − β₁) g).  Chen et al. 2023."""
    return optax.scale_by_lion(spec.b1, spec.b2)


def muon(spec: OptimizerSpec) -> optax.GradientTransformation:
    """Matrices move by their orthogonalised momentum, all else by Adam.  Jordan et al. 2024.

    Scaled by 0.2·√(greater side), so that Adam's learning rates serve.  Liu et al. 2025.
    """
    matrices = optax.chain(
        contrib.scale_by_muon(weight_dimension_numbers=_dimensions), optax.stateless(_by_side)
    )
    return optax.partition({"matrix": matrices, "other": adam(spec)}, _labels)


def numbers(spec: OptimizerSpec) -> dict[str, Any]:
    """What the compiled step is given, and may be given otherwise without compiling again."""
    names = ("learning_rate", "weight_decay", "clip", "clip_rows", "factors")
    values = {name: getattr(spec, name) for name in names}
    return {name: value for name, value in values.items() if value not in (None, ())}


def init(spec: OptimizerSpec, params: Tree) -> Tree:
    """The state for the parameters that move: nothing is kept for the others."""
    return spec.name.entry(spec).init(split(spec, params)[0])


def split(spec: OptimizerSpec, params: Tree) -> tuple[Tree, Tree]:
    """The parameters that move, and those that are frozen, each in nested dicts."""
    if spec.frozen is None:
        return params, {}
    flat = flatten_dict(params)
    still = {path for path in flat if re.fullmatch(spec.frozen, "/".join(path))}
    if not still or len(still) == len(flat):
        what = "every" if still else "no"
        raise UserError(
            f"optimizer.frozen={spec.frozen!r} is the path of {what} parameter; this model has "
            + ", ".join(sorted("/".join(path) for path in flat)[:4])
            + ", …"
        )
    parts = ({k: x for k, x in flat.items() if (k in still) == frozen} for frozen in (False, True))
    moving, frozen = map(unflatten_dict, parts)
    return moving, frozen


def merge(moving: Tree, frozen: Tree) -> Tree:
    """The tree that was split."""
    if not frozen:
        return moving
    return unflatten_dict({**flatten_dict(moving), **flatten_dict(frozen)})


def check_params(spec: OptimizerSpec, params: Tree) -> None:
    """Raise if the spec speaks of parameters that are not there, or do not move."""
    moving = flatten_dict(split(spec, params)[0])
    paths = ["/".join(path) for path in moving]
    if spec.clip_rows is not None and not any(map(_is_table, moving)):
        raise UserError(
            f"optimizer.clip_rows={spec.clip_rows}: no table of vectors moves in this model; it "
            f"has {', '.join(sorted(paths)[:4])}, …"
        )
    for text in spec.factor_paths:
        if not any(re.fullmatch(text, path) for path in paths):
            raise UserError(
                f"optimizer.factor_paths: {text!r} is the path of no parameter that moves; this "
                f"model has {', '.join(sorted(paths)[:4])}, …"
            )


def update(
    spec: OptimizerSpec,
    numbers: Mapping[str, Array],
    grads: Tree,
    norm: Array,
    state: Tree,
    params: Tree,
    step: Array,
    steps: int,
) -> tuple[Tree, Tree]:
    """New parameters and state, of those that move. `norm` is that of all gradients."""
    if "clip" in numbers:
        shrink = numbers["clip"] / jnp.maximum(norm, numbers["clip"])
        grads = jax.tree.map(lambda g: g * shrink.astype(g.dtype), grads)
    if "clip_rows" in numbers:
        most = numbers["clip_rows"]
        grads = jax.tree_util.tree_map_with_path(
            lambda path, g: _clip_rows(g, most) if _is_table(path) else g, grads
        )
    decays = None
    if "weight_decay" in numbers:
        share = numbers["weight_decay"]
        decays = jax.tree_util.tree_map_with_path(
            lambda path, p: share * p if _decays(spec, path) else jnp.zeros_like(p), params
        )
    if decays is not None and spec.name == "adam":  # an L2 penalty, as in the paper
        grads, decays = jax.tree.map(jnp.add, grads, decays), None
    moves, state = spec.name.entry(spec).update(grads, state, params)
    if decays is not None:
        moves = jax.tree.map(jnp.add, moves, decays)
    speed = numbers["learning_rate"] * spec.schedule.entry(step, steps)

    def moved(path: tuple[Any, ...], p: Array, move: Array) -> Array:
        own = _factor(spec, path)
        rate = speed if own is None else speed * numbers["factors"][own]
        return p - rate.astype(p.dtype) * move

    return jax.tree_util.tree_map_with_path(moved, params, moves), state


def _factor(spec: OptimizerSpec, path: tuple[Any, ...]) -> int | None:
    """The number of the first pattern that a path matches."""
    text = "/".join(_names(path))
    found = (i for i, pattern in enumerate(spec.factor_paths) if re.fullmatch(pattern, text))
    return next(found, None)


def _is_table(path: tuple[Any, ...]) -> bool:
    """Whether each row of a parameter is the vector of one thing, as a word or a position."""
    return _names(path)[-1] in ("embedding", "input", "output")


def _clip_rows(g_VD: Array, most: Array) -> Array:
    norm_V1 = jnp.sqrt(jnp.sum(jnp.square(g_VD), -1, keepdims=True))
    return g_VD * (most / jnp.maximum(norm_V1, most)).astype(g_VD.dtype)


def _decays(spec: OptimizerSpec, path: tuple[Any, ...]) -> bool:
    return re.fullmatch(spec.decay_mask, _names(path)[-1]) is not None


def _names(path: tuple[Any, ...]) -> list[str]:
    return [str(getattr(part, "key", part)) for part in path]


def _axes(path: tuple[Any, ...], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The axes that a kernel sums over and those it gives; None if it is no matrix of a layer."""
    names = _names(path)
    if names[-1] != "kernel" or names[0] == "head":
        return None
    axes = tuple(range(int(SCANNED in names), rank))
    inputs = len(axes) - 1 if names[-2] in ("out", "convolution") else 1
    return axes[:inputs], axes[inputs:]


def _labels(params: Tree) -> Tree:
    return jax.tree_util.tree_map_with_path(
        lambda path, p: "other" if _axes(path, jnp.ndim(p)) is None else "matrix", params
    )


def _dimensions(params: Tree) -> Tree:
    def of(path, p):
        axes = _axes(path, jnp.ndim(p))
        return None if axes is None else contrib.MuonDimensionNumbers(*axes)

    return jax.tree_util.tree_map_with_path(of, params)


def _by_side(moves: Tree, params: Tree) -> Tree:
    def scale(path, move):
        axes = _axes(path, jnp.ndim(move))
        if axes is None:
            return move
        greater = max(math.prod(move.shape[i] for i in side) for side in axes)
        return move * (0.2 * math.sqrt(greater))

    return jax.tree_util.tree_map_with_path(scale, moves)


OPTIMIZERS: dict[str, Callable[[OptimizerSpec], optax.GradientTransformation]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adam,
    "adafactor": adafactor,
    "lion": lion,
    "muon": muon,
}

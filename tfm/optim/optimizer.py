"""Optimizers and schedules, built inside the training step from traced numbers.

Whether clipping or decay is on is structure; its value is data: one compiled step serves every
learning rate, decay and clip. A parameter's path determines its kind: a matrix, a bias, a layer of
a scanned stack.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax import numpy as jnp
from jax.tree_util import tree_map_with_path as map_with_path
from optax import contrib

from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, SpecError, call, field, rate
from tfm.layers.stack import SCANNED

Tree = Any
Schedule = Callable[[Array, int], Array]  # from (step, steps) to a fraction of the peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    """How parameters are updated. None switches a feature off."""

    name: Named = call(lambda: OPTIMIZERS, "adamw", later=True)
    learning_rate: float = field(1e-3, above=0)  # the peak of the schedule
    schedule: Named = call(lambda: SCHEDULES, "constant")
    weight_decay: float | None = field(None, least=0)
    decay_mask: str = field(r"kernel|embedding|input|output", pattern=True)  # names that decay
    clip: float | None = field(1.0, above=0)  # the largest norm of the gradient
    clip_rows: float | None = field(None, above=0)  # the same for each row of an embedding
    b1: float = rate(0.9)
    b2: float = rate(0.999)
    eps: float = field(1e-8, above=0)
    momentum: float | None = rate(None)  # for sgd
    frozen: str | None = field(None, pattern=True)  # paths of frozen parameters
    factor_paths: tuple[str, ...] = field((), pattern=True)  # the first match counts
    factors: tuple[float, ...] = field((), least=0)  # of the learning rate, one for each path

    def decays(self, path: tuple[Any, ...]) -> bool:
        """Returns True if weight decay applies to the parameter at a path."""
        return re.fullmatch(self.decay_mask, _names(path)[-1]) is not None

    def check(self) -> None:
        if len(self.factor_paths) != len(self.factors):
            raise SpecError(
                "factors",
                f"{{key}} has {len(self.factors)} numbers, but factor_paths={self.factor_paths} "
                f"has {len(self.factor_paths)}",
            )
        if self.momentum is not None and "sgd" not in self.name.names:
            raise SpecError(
                "momentum", f"{{key}}={self.momentum}: only 'sgd' has momentum, not {self.name!r}"
            )


def sgd(spec: OptimizerSpec) -> optax.GradientTransformation:
    """Gradient descent, with `momentum` of a running sum.  Robbins & Monro 1951; Polyak 1964."""
    return optax.identity() if spec.momentum is None else optax.trace(spec.momentum)


def adam(spec: OptimizerSpec) -> optax.GradientTransformation:
    """m / (√v + ε).  Kingma & Ba 2015; with decoupled decay AdamW, Loshchilov & Hutter 2019."""
    return optax.scale_by_adam(spec.b1, spec.b2, spec.eps)


def adafactor(spec: OptimizerSpec) -> optax.GradientTransformation:
    """Factored second moments, clipped updates, relative steps.  Shazeer & Stern 2018.

    A scanned stack is one tensor, so its update differs from that of unrolled layers.
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
    """Orthogonalized momentum for matrices, Adam for other parameters.  Jordan et al. 2024.

    Scaled by 0.2·√(larger side), so that Adam's learning rates fit.  Liu et al. 2025.
    """
    matrices = optax.chain(
        contrib.scale_by_muon(weight_dimension_numbers=functools.partial(map_with_path, _axes)),
        optax.stateless(lambda updates, _: map_with_path(_by_side, updates)),
    )
    kinds = functools.partial(map_with_path, _kind)
    return optax.partition({"matrix": matrices, "other": adam(spec)}, kinds)


def numbers(spec: OptimizerSpec) -> dict[str, Any]:
    """Returns the numbers that the compiled step takes as arrays."""
    names = ("learning_rate", "weight_decay", "clip", "clip_rows", "factors")
    values = {name: getattr(spec, name) for name in names}
    return {name: value for name, value in values.items() if value not in (None, ())}


def init(spec: OptimizerSpec, params: Tree) -> Tree:
    """Returns the initial state. Frozen parameters have none."""
    return spec.name.entry(spec).init(split(spec, params)[0])


def split(spec: OptimizerSpec, params: Tree) -> tuple[Tree, Tree]:
    """Returns the trained and the frozen parameters, each as nested dicts."""
    if spec.frozen is None:
        return params, {}
    flat = flatten_dict(params)
    paths = {path for path in flat if re.fullmatch(spec.frozen, "/".join(path))}
    if not paths or len(paths) == len(flat):
        raise UserError(
            f"optimizer.frozen={spec.frozen!r} is the path of {'every' if paths else 'no'} "
            f"parameter; this model has {_some(flat)}"
        )
    moving = unflatten_dict({path: x for path, x in flat.items() if path not in paths})
    return moving, unflatten_dict({path: flat[path] for path in paths})


def merge(moving: Tree, frozen: Tree) -> Tree:
    """Undoes `split`."""
    if not frozen:
        return moving
    return unflatten_dict({**flatten_dict(moving), **flatten_dict(frozen)})


def check_params(spec: OptimizerSpec, params: Tree) -> None:
    """Raises if the spec names parameters that do not exist or are frozen."""
    moving = flatten_dict(split(spec, params)[0])
    if spec.clip_rows is not None and not any(map(_is_table, moving)):
        raise UserError(
            f"optimizer.clip_rows={spec.clip_rows}: this model trains no embedding; it has "
            + _some(moving)
        )
    for text in spec.factor_paths:
        if not any(re.fullmatch(text, "/".join(path)) for path in moving):
            raise UserError(
                f"optimizer.factor_paths: {text!r} is the path of no trained parameter; this "
                f"model has {_some(moving)}"
            )


def _some(paths: Iterable[tuple[str, ...]]) -> str:
    return f"{', '.join(sorted(map('/'.join, paths))[:4])}, …"


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
    """Returns new parameters and state, without frozen ones. `norm` is that of all gradients."""
    if "clip" in numbers:
        shrink = numbers["clip"] / jnp.maximum(norm, numbers["clip"])
        grads = jax.tree.map(lambda g: g * shrink.astype(g.dtype), grads)
    if "clip_rows" in numbers:
        clip = optax.stateless_with_tree_map(lambda g, p: _clip_rows(g, numbers["clip_rows"]))
        grads = _apply(optax.masked(clip, _by_path(_is_table)), grads, params)
    decay = optax.identity()
    if "weight_decay" in numbers:
        decay = optax.add_decayed_weights(numbers["weight_decay"], _by_path(spec.decays))
    adam_decay = "adam" in spec.name.names  # an L2 penalty, as in the paper
    if adam_decay:
        grads = _apply(decay, grads, params)
    updates, state = spec.name.entry(spec).update(grads, state, params)
    if not adam_decay:
        updates = _apply(decay, updates, params)
    rate = numbers["learning_rate"] * spec.schedule.entry(step, steps)

    def scaled(path: tuple[Any, ...], update: Array) -> Array:
        index = _factor(spec, path)
        factor = rate if index is None else rate * numbers["factors"][index]
        return -factor.astype(update.dtype) * update

    updates = map_with_path(scaled, updates)
    return optax.apply_updates(params, updates), state


def _apply(transform: optax.GradientTransformation, updates: Tree, params: Tree) -> Tree:
    """Returns the updates of a transformation without state."""
    return transform.update(updates, transform.init(params), params)[0]


def _by_path(predicate: Callable[[tuple[Any, ...]], bool]) -> Callable[[Tree], Tree]:
    """Returns a mask: True for parameters whose path has a property."""
    return lambda tree: map_with_path(lambda path, _: predicate(path), tree)


def _factor(spec: OptimizerSpec, path: tuple[Any, ...]) -> int | None:
    """Returns the index of the first pattern that a path matches."""
    text = "/".join(_names(path))
    return next((i for i, p in enumerate(spec.factor_paths) if re.fullmatch(p, text)), None)


def _is_table(path: tuple[Any, ...]) -> bool:
    """Returns True for embeddings: each row is the vector of a word or a position."""
    return _names(path)[-1] in ("embedding", "input", "output")


def _clip_rows(g_VD: Array, most: Array) -> Array:
    norm_V1 = jnp.sqrt(jnp.sum(jnp.square(g_VD), -1, keepdims=True))
    return g_VD * (most / jnp.maximum(norm_V1, most)).astype(g_VD.dtype)


def _names(path: tuple[Any, ...]) -> list[str]:
    return [str(getattr(part, "key", part)) for part in path]


def _kind(path: tuple[Any, ...], _: Array) -> str:
    """Returns "matrix" for the kernels of layers."""
    names = _names(path)
    return "matrix" if names[-1] == "kernel" and names[0] != "head" else "other"


def _axes(path: tuple[Any, ...], kernel: Array) -> contrib.MuonDimensionNumbers:
    """Returns the input and the output axes of a kernel."""
    names = _names(path)
    axes = tuple(range(int(SCANNED in names), kernel.ndim))
    inputs = len(axes) - 1 if {"out", "convolution"} & set(names[-2:-1]) else 1
    return contrib.MuonDimensionNumbers(axes[:inputs], axes[inputs:])


def _by_side(path: tuple[Any, ...], update: Array) -> Array:
    larger = max(math.prod(update.shape[i] for i in side) for side in _axes(path, update))
    return update * (0.2 * math.sqrt(larger))


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adam,
    "adafactor": adafactor,
    "lion": lion,
    "muon": muon,
}


def constant(warmup: int = 0) -> Schedule:
    """Stays constant after the warm-up."""
    return _ramp("constant", jnp.ones_like, warmup)


def cosine(warmup: int = 0, final: float = 0.1) -> Schedule:
    """Falls along half a cosine to `final`.  Loshchilov & Hutter 2017."""

    def after(progress: Array) -> Array:
        return final + (1 - final) * (1 + jnp.cos(jnp.pi * progress)) / 2

    return _ramp("cosine", after, warmup, final)


def linear(warmup: int = 0, final: float = 0.0) -> Schedule:
    """Falls linearly to `final`."""
    return _ramp("linear", lambda t: 1 - (1 - final) * t, warmup, final)


def wsd(warmup: int = 0, decay: float = 0.2, final: float = 0.0) -> Schedule:
    """Stays constant, then falls linearly over the last fraction `decay`.  Hu et al. 2024."""
    if not 0 < decay <= 1:
        raise UserError(f"wsd: decay={decay} must be in (0, 1]")

    def after(progress: Array) -> Array:
        return 1 - (1 - final) * jnp.maximum(progress - (1 - decay), 0) / decay

    return _ramp("wsd", after, warmup, final)


def noam(warmup: int = 4000) -> Schedule:
    """Rises linearly over `warmup` steps, then falls as 1/√step.  Vaswani et al. 2017, §5.3."""
    if warmup < 1:
        raise UserError(f"noam: warmup={warmup} must be at least 1")
    return _WarmUp(
        warmup,
        lambda step, steps: jnp.minimum((step + 1) / warmup, jnp.sqrt(warmup / (step + 1))),
    )


@dataclasses.dataclass(frozen=True)
class _WarmUp:
    """A schedule that tells how long its warm-up is, so that a config can be checked."""

    warmup: int
    rate: Schedule

    def __call__(self, step: Array, steps: int) -> Array:
        return self.rate(step, steps)


def _ramp(name: str, after: Callable[[Array], Array], warmup: int, final: float = 0.0) -> Schedule:
    """Returns a schedule that rises linearly over `warmup` steps, then is `after(progress)`."""
    if warmup < 0 or not 0 <= final <= 1:
        raise UserError(f"{name}: need warmup ≥ 0 and final in [0, 1], not {warmup} and {final}")

    def schedule(step: Array, steps: int) -> Array:
        up = (step + 1) / max(warmup, 1)
        progress = jnp.clip((step - warmup) / max(steps - warmup, 1), 0, 1)
        return jnp.where(step < warmup, up, after(progress))

    return _WarmUp(warmup, schedule)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "wsd": wsd,
    "noam": noam,
}

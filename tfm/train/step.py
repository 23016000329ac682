"""One step of training, compiled once for every learning rate, decay, dropout rate and seed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.evaluate.metrics import evaluate
from tfm.objectives.tokens import Batch, inputs_of, losses
from tfm.ops.dropout import Dropouts
from tfm.train import optimizer
from tfm.train.optimizer import OptimizerSpec

Numbers = Mapping[str, Any]
State = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSpec:
    """What a step is made of, besides the model and the optimiser."""

    steps: int
    accumulate: int = 1  # parts of a batch, one after another, whose gradients are summed
    ema: float | None = None  # decay of the running mean of the weights that is evaluated
    label_smoothing: float | None = None
    not_finite: str = "stop"  # or "skip": what to do about a loss or gradient that is not finite


def init(module: nn.Module, opt: OptimizerSpec, spec: StepSpec, batch: Batch, seed: Array) -> State:
    """The state before the first step, a function of the seed."""
    inputs = inputs_of(batch)
    variables = dict(module.init(jax.random.fold_in(jax.random.key(seed), 0), **inputs))
    params = variables.pop("params")
    state = {
        "step": jnp.int32(0),
        "params": params,
        "rest": variables,
        "optimizer": optimizer.init(opt, params),
        "since": _nothing(),  # the last line of the log
        "skipped": jnp.int32(0),
        "diverged": jnp.int32(-1),  # the step at which the run stopped counting, if it did
    }
    if spec.ema is not None:
        state["ema"] = params
    return state


def _nothing() -> dict[str, Array]:
    return {name: jnp.float32(0) for name in ("loss", "right", "count", "norm", "steps")}


def step(
    module: nn.Module,
    opt: OptimizerSpec,
    spec: StepSpec,
    state: State,
    batch: Batch,
    numbers: Numbers,
) -> State:
    """The state after one more batch. `numbers` are the arrays of `numbers_of`."""
    key = jax.random.fold_in(jax.random.key(numbers["seed"]), state["step"] + 1)
    total = jnp.sum(next(x for name, x in batch.items() if name.startswith("weights")))

    def loss(params, rest, part, key):
        options: dict[str, Any] = {}
        if numbers["dropout"]:
            options["dropouts"] = Dropouts(numbers["dropout"], key)
        if "batch_stats" in rest:
            options["train"] = True
        logits: Any
        logits, rest = module.apply(
            {"params": params, **rest}, **inputs_of(part), **options, mutable=list(rest)
        )
        sums = losses(logits, part, numbers.get("label_smoothing"))
        sums = {name: jnp.sum(x) for name, x in sums.items()}
        wanted = sums.pop("smooth", sums["loss"])
        return wanted / jnp.maximum(total, 1), (sums, rest)

    differentiate = jax.grad(loss, has_aux=True)

    def one(carry, x):
        grads, sums, rest = carry
        part, key = x
        more, (own, rest) = differentiate(state["params"], rest, part, key)
        return (jax.tree.map(jnp.add, grads, more), jax.tree.map(jnp.add, sums, own), rest), None

    if spec.accumulate == 1:
        grads, (sums, rest) = differentiate(state["params"], state["rest"], batch, key)
    else:
        parts = jax.tree.map(lambda x: x.reshape(spec.accumulate, -1, *x.shape[1:]), batch)
        zeros = jax.tree.map(jnp.zeros_like, state["params"])
        begin = zeros, {name: jnp.float32(0) for name in ("loss", "right", "count")}, state["rest"]
        keys = jax.random.split(key, spec.accumulate)
        (grads, sums, rest), _ = jax.lax.scan(one, begin, (parts, keys))

    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
    finite = jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
    params, opt_state = optimizer.update(
        opt, numbers, grads, state["optimizer"], state["params"], state["step"], spec.steps
    )
    new = {**state, "params": params, "optimizer": opt_state, "rest": rest}
    since = {**sums, "norm": norm, "steps": jnp.float32(1)}
    new["since"] = jax.tree.map(jnp.add, state["since"], since)
    if "ema" in state:
        ema = numbers["ema"]
        new["ema"] = jax.tree.map(
            lambda old, now: ema * old + (1 - ema) * now, state["ema"], params
        )
    # A run that has diverged stands still, whenever it is that somebody looks.
    stands = state["diverged"] >= 0
    good = finite & ~stands
    new = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state)
    if spec.not_finite == "stop":
        new["diverged"] = jnp.where(finite | stands, state["diverged"], state["step"])
    else:
        new["skipped"] = state["skipped"] + ~finite
    new["step"] = state["step"] + 1
    return new


def numbers_of(
    opt: OptimizerSpec, spec: StepSpec, rates: Mapping[str, float], seed: int
) -> Numbers:
    """What of a run is data: the compiled step takes any of these without compiling again."""
    held = {**optimizer.numbers(opt), "label_smoothing": spec.label_smoothing, "ema": spec.ema}
    arrays = {name: jnp.float32(value) for name, value in held.items() if value is not None}
    dropout = {place: jnp.float32(rate) for place, rate in rates.items()}
    return {**arrays, "dropout": dropout, "seed": jnp.uint32(seed)}


def compiled(
    module: nn.Module, opt: OptimizerSpec, spec: StepSpec
) -> tuple[Callable[..., Any], ...]:
    """init, step and evaluate as jitted functions; the step gives its state's memory on."""
    start = jax.jit(lambda batch, seed: init(module, opt, spec, batch, seed))
    go = jax.jit(
        lambda state, batch, numbers: step(module, opt, spec, state, batch, numbers),
        donate_argnums=0,
    )
    look = jax.jit(lambda variables, batch: evaluate(module, variables, batch))
    return start, go, look

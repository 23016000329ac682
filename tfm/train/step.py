"""One training step, compiled once for all learning rates, decays, dropout rates and seeds."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import optax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.config.files import user_entries
from tfm.config.spec import Named
from tfm.layers.dims import Dropouts
from tfm.objectives.base import COUNTED, Batch, Objective, eval_step, head_options, sums_of
from tfm.optim import optimizer
from tfm.optim.optimizer import OptimizerSpec
from tfm.run.checkpoint import evaluated
from tfm.run.spec import RunSpec, TrainSpec

Numbers = Mapping[str, Any]
Steps = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]


class TrainState(flax.struct.PyTreeNode):
    """Everything that a run carries from one step to the next."""

    step: Array
    params: Any
    model_state: Any  # other variables of the model, such as batch statistics
    opt_state: Any
    metrics: dict[str, Array]  # sums since the last line of the log
    skipped: Array  # steps
    diverged: Array  # the step at which it diverged, or −1
    ema: Any = None  # the running mean of the parameters
    carry: Any = None  # the states of a recurrent model after the last batch, one for each row

    def items(self) -> dict[str, dict[str, Any]]:
        """Splits the state for a checkpoint: what the model is evaluated with, and the rest."""
        names = ("params", "model_state", "ema")
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return {
            "variables": {name: x for name, x in fields.items() if name in names},
            "training": {name: x for name, x in fields.items() if name not in names},
        }

    def variables(self) -> dict[str, Any]:
        """Returns the variables that the model is evaluated with."""
        return evaluated(self.items()["variables"])


def zero_metrics() -> dict[str, Array]:
    return {name: jnp.float32(0) for name in (*COUNTED, "norm", "steps")}


def init(
    module: nn.Module, opt: OptimizerSpec, spec: TrainSpec, batch: Batch, seed: Array
) -> TrainState:
    """Returns the state before the first step, a function of the seed."""
    key = jax.random.fold_in(jax.random.key(seed), 0)
    variables = dict(module.init(key, **batch.inputs))
    params = variables.pop("params")
    optimizer.check_params(opt, params)
    return TrainState(
        step=jnp.int32(0),
        params=params,
        model_state=variables,
        opt_state=optimizer.init(opt, params),
        metrics=zero_metrics(),
        skipped=jnp.int32(0),
        diverged=jnp.int32(-1),
        ema=None if spec.ema is None else params,
        carry=module.init_cache(len(batch.weights)) if spec.carry else None,
    )


def train_step(
    module: nn.Module,
    objective: Objective,
    opt: OptimizerSpec,
    spec: TrainSpec,
    state: TrainState,
    batch: Batch,
    numbers: Numbers,
) -> TrainState:
    """Returns the state after one more batch. `numbers` are the arrays of `numbers_of`."""
    key = jax.random.fold_in(jax.random.key(numbers["seed"]), state.step + 1)
    total = jnp.maximum(jnp.sum(batch.weights), 1)
    moving, frozen = optimizer.split(opt, state.params)
    more = {}
    if spec.carry:  # truncated backpropagation through time: the batch before gets no gradient
        carry = jax.tree.map(lambda x: jnp.where(batch.begins_B[:, None], 0, x), state.carry)
        state, more = state.replace(carry=carry), {"carry": carry}

    def loss(moving, model_state, part, more, key):
        params = optimizer.merge(moving, frozen)
        dropouts = Dropouts(numbers["dropout"], key) if numbers["dropout"] else None
        output: Any
        output, model_state = module.apply(
            {"params": params, **model_state},
            **part.inputs,
            **more,
            train=True,
            dropouts=dropouts,
            capture=("losses", *more),
            mutable=list(model_state),
            **head_options(spec.loss_chunk),
        )
        x, intermediates = output
        smoothing = numbers.get("label_smoothing")
        variables = {"params": params, **model_state}
        sums = sums_of(module, objective, variables, x, part, smoothing, spec.loss_chunk)
        minimised = jnp.sum(sums.get("smoothed", sums["loss"])) / total
        sums = {name: jnp.sum(sums[name]) for name in COUNTED}
        for auxiliary in intermediates["losses"].values():
            minimised += auxiliary / spec.accumulate
        return minimised, (sums, model_state, {name: intermediates[name] for name in more})

    gradient = jax.grad(loss, has_aux=True)

    def accumulate(before, part_and_key):
        grads, sums, model_state = before
        part_grads, (part_sums, model_state, last) = gradient(moving, model_state, *part_and_key)
        grads, sums = jax.tree.map(jnp.add, (grads, sums), (part_grads, part_sums))
        return (grads, sums, model_state), last

    if spec.accumulate == 1:
        grads, (sums, model_state, last) = gradient(moving, state.model_state, batch, more, key)
    else:
        parts = jax.tree.map(lambda x: x.reshape(spec.accumulate, -1, *x.shape[1:]), (batch, more))
        zeros = jax.tree.map(jnp.zeros_like, moving)
        sums = {name: jnp.float32(0) for name in COUNTED}
        keys = jax.random.split(key, spec.accumulate)
        start = zeros, sums, state.model_state
        (grads, sums, model_state), last = jax.lax.scan(accumulate, start, (*parts, keys))
        last = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), last)

    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
    moving, opt_state = optimizer.update(
        opt, numbers, grads, norm, state.opt_state, moving, state.step, spec.steps
    )
    ema = state.ema
    if ema is not None:
        decay, before = numbers["ema"], optimizer.split(opt, ema)[0]
        mean = jax.tree.map(lambda old, now: decay * old + (1 - decay) * now, before, moving)
        ema = optimizer.merge(mean, frozen)
    metrics = {**sums, "norm": norm, "steps": jnp.float32(1)}
    new = state.replace(
        params=optimizer.merge(moving, frozen),
        model_state=model_state,
        opt_state=opt_state,
        metrics=jax.tree.map(jnp.add, state.metrics, metrics),
        ema=ema,
        **last,
    )
    # A run that has diverged no longer changes, even before the loop notices.
    stopped = state.diverged >= 0
    new = jax.tree.map(lambda a, b: jnp.where(finite & ~stopped, a, b), new, state)
    if spec.on_nonfinite == "stop":
        diverged = jnp.where(finite | stopped, state.diverged, state.step)
        return new.replace(step=state.step + 1, diverged=diverged)
    return new.replace(step=state.step + 1, skipped=state.skipped + ~finite)


def numbers_of(
    opt: OptimizerSpec, spec: TrainSpec, rates: Mapping[str, float], seed: int
) -> Numbers:
    """Returns the arrays of a run, which a compiled step accepts with any values."""
    values = {**optimizer.numbers(opt), "label_smoothing": spec.label_smoothing, "ema": spec.ema}
    known = {name: value for name, value in values.items() if value is not None}
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in known.items()}
    dropout = {site: jnp.float32(rate) for site, rate in rates.items()}
    return {**arrays, "dropout": dropout, "seed": jnp.uint32(seed)}


def compiled(module: nn.Module, objective: Objective, opt: OptimizerSpec, spec: TrainSpec) -> Steps:
    """Returns jitted init, train_step and eval_step. A step donates its state."""
    step = functools.partial(train_step, module, objective, opt, spec)
    return (
        jax.jit(functools.partial(init, module, opt, spec)),
        jax.jit(step, donate_argnums=0),
        jax.jit(functools.partial(eval_step, module, objective, chunk=spec.loss_chunk)),
    )


def run_steps(run: RunSpec) -> Steps:
    """Returns `compiled` functions; runs that differ only in numbers share them."""
    entries = tuple(user_entries(run).items())  # an edited entry has the same name in the spec
    return _run_steps(*structure(run), entries)


@functools.lru_cache(maxsize=16)
def _run_steps(
    model: Any, objective: Named, opt: OptimizerSpec, train: TrainSpec, entries: Any
) -> Any:
    return compiled(model.build(), objective.entry, opt, train)


def run_numbers(run: RunSpec) -> Numbers:
    return numbers_of(run.optimizer, run.train, run.model.rates, run.seed)


@functools.lru_cache(maxsize=16)
def schedule(schedule: Named, steps: int) -> Callable[[Any], Any]:
    """Returns the compiled factor of the learning rate at a step."""
    return jax.jit(lambda step: schedule.entry(step, steps))


def structure(run: RunSpec) -> tuple[Any, Named, OptimizerSpec, TrainSpec]:
    """Returns the part of a run that is compiled: its specs without their numbers."""
    model: Any = run.model
    if hasattr(model, "dropout"):
        sites = {site: _on(rate) for site, rate in model.rates.items()}
        model = dataclasses.replace(model, dropout=dataclasses.replace(model.dropout, **sites))
    opt, names = run.optimizer, ("weight_decay", "clip", "clip_rows")
    on: dict[str, Any] = {name: _on(getattr(opt, name)) for name in names}
    opt = dataclasses.replace(opt, learning_rate=1.0, factors=(1.0,) * len(opt.factors), **on)
    same = ("steps", "accumulate", "carry", "loss_chunk", "on_nonfinite")
    on = {name: _on(getattr(run.train, name)) for name in ("ema", "label_smoothing")}
    on |= {name: getattr(run.train, name) for name in same}
    return model, run.objective, opt, TrainSpec(**on)


def _on(value: float | None) -> float | None:
    """Keeps whether a feature is on, which is structure, and drops its value, which is data."""
    return None if value is None else 0.5

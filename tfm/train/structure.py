"""What of a run is compiled, and what it costs: its structure without its numbers."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from tfm.config.files import user_entries
from tfm.config.spec import Named
from tfm.describe.flops import flops
from tfm.objectives.base import Batch
from tfm.objectives.batches import Share
from tfm.optim.optimizer import OptimizerSpec
from tfm.run.spec import RunSpec, TrainSpec
from tfm.train import step as steps


def train_flops(run: RunSpec, shapes: Sequence[Share]) -> int:
    """Forward and backward over all steps, for batches of these shapes; not the optimiser's."""
    return round(sum(run.train.steps * one.share * step_flops(run, one.batch) for one in shapes))


def step_flops(run: RunSpec, batch: Batch) -> int:
    shapes = {name: (x.shape, x.dtype.name) for name, x in batch.inputs.items()}
    return _step_flops(structure(run)[0], tuple(shapes.items()), _own(run))


@functools.lru_cache(maxsize=64)
def _step_flops(model: Any, shapes: Any, own: Any) -> int:
    inputs = {name: jax.ShapeDtypeStruct(*what) for name, what in shapes}
    return flops(model, inputs)[1].total


def numbers_of(run: RunSpec) -> steps.Numbers:
    """What of a run is given to its compiled step as arrays."""
    return steps.numbers_of(run.optimizer, run.train, run.model.rates, run.seed)


def compiled(run: RunSpec) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """init, train_step and eval_step; runs that differ only in numbers share them."""
    return _compiled(*structure(run), _own(run))


def _own(run: RunSpec) -> tuple[Any, ...]:
    """The user's own entries: a spec names them, but an edited one is another."""
    return tuple(user_entries(run).items())


def structure(run: RunSpec) -> tuple[Any, Named, OptimizerSpec, TrainSpec]:
    """What is compiled: the run without its numbers. Its sizes are those of `open_data`."""
    model: Any = run.model
    if hasattr(model, "dropout"):
        on = {site: _on(rate) for site, rate in model.rates.items()}
        model = dataclasses.replace(model, dropout=dataclasses.replace(model.dropout, **on))
    opt = dataclasses.replace(
        run.optimizer,
        learning_rate=1.0,
        weight_decay=_on(run.optimizer.weight_decay),
        clip=_on(run.optimizer.clip),
        clip_rows=_on(run.optimizer.clip_rows),
        factors=(1.0,) * len(run.optimizer.factors),
    )
    train = TrainSpec(
        steps=run.train.steps,
        accumulate=run.train.accumulate,
        ema=_on(run.train.ema),
        label_smoothing=_on(run.train.label_smoothing),
        carry=run.train.carry,
        loss_chunk=run.train.loss_chunk,
        on_nonfinite=run.train.on_nonfinite,
    )
    return model, run.objective, opt, train


def _on(value: float | None) -> float | None:
    """Whether it is on is structure; how much it is, is not."""
    return None if value is None else 0.5


@functools.lru_cache(maxsize=16)
def _compiled(model: Any, objective: Named, opt: OptimizerSpec, train: TrainSpec, own: Any) -> Any:
    return steps.compiled(model.build(), objective.entry, opt, train)


@functools.lru_cache(maxsize=16)
def schedule(schedule: Named, steps: int) -> Callable[[Any], Any]:
    return jax.jit(lambda step: schedule.entry(step, steps))

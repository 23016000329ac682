"""Estimates the cost of a sweep: parameters and FLOPs from shapes, time from a few steps."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp

from tfm.objectives.batches import each_shape
from tfm.run.spec import RunSpec, open_datasets, plan_of, step_flops, train_flops
from tfm.sweep.plan import Job
from tfm.train.step import run_numbers, run_steps, structure

TEST_SECONDS = 1.0  # how long steps are timed
MOST_FLOPS = 2e11  # a more expensive step is not timed


@dataclasses.dataclass(frozen=True)
class Cost:
    parameters: int
    flops: int  # of the whole training


@dataclasses.dataclass(frozen=True)
class Speed:
    """The speed of one core of this machine on one of the jobs."""

    flops_per_second: float
    compile_seconds: float
    data_seconds: float  # to open the data


def costs(jobs: Sequence[Job]) -> list[Cost]:
    """Returns the cost of each job. Jobs of one structure are counted once."""
    known: dict[Any, Cost] = {}
    result = []
    for job in jobs:
        key = structure(job.run)[0], job.run.data
        if key not in known:
            known[key] = _step_cost(job.run)
        step = known[key]
        result.append(dataclasses.replace(step, flops=step.flops * job.run.train.steps))
    return result


def _step_cost(run: RunSpec) -> Cost:
    data = open_datasets(run)
    shapes = each_shape(run.objective.entry, data["train"], plan_of(run, data["train"]))
    init, _, _ = run_steps(run)
    state = jax.eval_shape(init, shapes[0].batch, jnp.uint32(0))
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    return Cost(parameters, train_flops(run, shapes) // run.train.steps)


def cheapest(jobs: Sequence[Job], costs: Sequence[Cost]) -> Job | None:
    """Returns the job with the cheapest steps, or None if even they would take too long."""
    each = [cost.flops / job.run.train.steps for job, cost in zip(jobs, costs, strict=True)]
    least = min(range(len(jobs)), key=lambda i: each[i])
    return jobs[least] if each[least] <= MOST_FLOPS else None


def speed(run: RunSpec) -> Speed:
    """Measures a few steps of a run in this process."""
    start = time.monotonic()
    data = open_datasets(run)
    opened = time.monotonic()
    plan = plan_of(run, data["train"])
    batch = each_shape(run.objective.entry, data["train"], plan)[0].batch
    init, train_step, eval_step = run_steps(run)
    numbers = run_numbers(run)
    state = train_step(init(batch, jnp.uint32(0)), batch, numbers)
    jax.block_until_ready(eval_step(state.variables(), batch))
    compiled = time.monotonic()
    steps = 0
    while time.monotonic() < compiled + TEST_SECONDS:
        state = jax.block_until_ready(train_step(state, batch, numbers))
        steps += 1
    flops = step_flops(run, batch) * steps
    return Speed(flops / (time.monotonic() - compiled), compiled - opened, opened - start)


def seconds(
    jobs: Sequence[Job], costs: Sequence[Cost], speed: Speed, workers: int, cores: int
) -> float:
    """Estimates the duration of the jobs at that speed, each structure compiled once."""
    structures = len({job.compiles for job in jobs})
    work = sum(cost.flops for cost in costs) / speed.flops_per_second
    work += structures * speed.compile_seconds + len(jobs) * speed.data_seconds
    return work / max(min(workers, cores, len(jobs)), 1)

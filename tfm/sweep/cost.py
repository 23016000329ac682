"""What a sweep will cost, before it is run: parameters and FLOPs from shapes, time by trying."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp

from tfm.data.pipeline import batch as batch_of
from tfm.models import build
from tfm.sweep.plan import Job
from tfm.train import loop, spec
from tfm.train.step import numbers_of

TRY = 1.0  # seconds of steps that are timed
LARGEST = 2e11  # FLOPs of a step that is still tried


@dataclasses.dataclass(frozen=True)
class Cost:
    parameters: int
    flops: int  # of the whole training


@dataclasses.dataclass(frozen=True)
class Speed:
    """Of this machine, on one of the jobs."""

    flops_per_second: float
    compile_seconds: float


def costs(jobs: Sequence[Job]) -> list[Cost]:
    """The cost of each job; those of one structure are counted once."""
    known: dict[Any, Cost] = {}
    out = []
    for job in jobs:
        key = loop.structure(job.run)[0], job.run.data.task, job.run.data.batch
        if key not in known:
            known[key] = _cost(job)
        one = known[key]
        out.append(dataclasses.replace(one, flops=one.flops * job.run.train.steps))
    return out


def _cost(job: Job) -> Cost:
    """Of one step."""
    run = dataclasses.replace(job.run, train=dataclasses.replace(job.run.train, steps=1))
    batch = _batch(job)
    start, _, _ = loop.compiled(run)
    state = jax.eval_shape(start, batch, jnp.uint32(0))
    parameters = sum(x.size for x in jax.tree.leaves(state["params"]))
    return Cost(parameters, loop.train_flops(run, batch))


def _batch(job: Job) -> dict[str, Any]:
    source = spec.sources(job.run, peek=True)["train"]
    return batch_of(source, 0, 0, job.run.data.batch)


def speed(jobs: Sequence[Job], costs: Sequence[Cost]) -> Speed | None:
    """Measured on the job whose steps are the cheapest; None if even they are too dear to try."""
    each = [cost.flops / job.run.train.steps for job, cost in zip(jobs, costs, strict=True)]
    cheapest = min(range(len(jobs)), key=lambda i: each[i])
    if each[cheapest] > LARGEST:
        return None
    run, batch = jobs[cheapest].run, _batch(jobs[cheapest])
    begin = time.monotonic()
    start, go, _ = loop.compiled(run)
    numbers = numbers_of(run.optimizer, run.train, build.rates(run.model), run.seed)
    state = jax.block_until_ready(go(start(batch, jnp.uint32(0)), batch, numbers))
    compiled = time.monotonic()
    steps = 0
    while time.monotonic() < compiled + TRY:
        state = jax.block_until_ready(go(state, batch, numbers))
        steps += 1
    return Speed(each[cheapest] * steps / (time.monotonic() - compiled), compiled - begin)


def seconds(
    jobs: Sequence[Job], costs: Sequence[Cost], speed: Speed, workers: int, cores: int
) -> float:
    """How long the jobs may take: their FLOPs at that speed, and each structure compiled once."""
    busy = min(workers, cores, len(jobs))
    structures = len({job.compiles for job in jobs})
    work = sum(cost.flops for cost in costs) / speed.flops_per_second
    return (work + structures * speed.compile_seconds) / max(busy, 1)

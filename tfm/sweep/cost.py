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
from tfm.train.spec import RunSpec
from tfm.train.step import numbers_of

TRY = 1.0  # seconds of steps that are timed
LARGEST = 2e11  # FLOPs of a step that is still tried


@dataclasses.dataclass(frozen=True)
class Cost:
    parameters: int
    flops: int  # of the whole training


@dataclasses.dataclass(frozen=True)
class Speed:
    """Of one core of this machine, on one of the jobs."""

    flops_per_second: float
    compile_seconds: float
    begin_seconds: float  # to make the data


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


def cheapest(jobs: Sequence[Job], costs: Sequence[Cost]) -> Job | None:
    """The job whose steps are the cheapest to try; None if even they are too dear."""
    each = [cost.flops / job.run.train.steps for job, cost in zip(jobs, costs, strict=True)]
    least = min(range(len(jobs)), key=lambda i: each[i])
    return jobs[least] if each[least] <= LARGEST else None


def speed(run: RunSpec) -> Speed:
    """Measured here and now, with a few steps of a run."""
    begin = time.monotonic()
    data = spec.sources(run)
    begun = time.monotonic()
    batch = batch_of(data["train"], 0, 0, run.data.batch)
    start, go, look = loop.compiled(run)
    numbers = numbers_of(run.optimizer, run.train, build.rates(run.model), run.seed)
    state = go(start(batch, jnp.uint32(0)), batch, numbers)
    jax.block_until_ready(look(loop.variables(state), batch))
    compiled = time.monotonic()
    steps = 0
    while time.monotonic() < compiled + TRY:
        state = jax.block_until_ready(go(state, batch, numbers))
        steps += 1
    each = loop.train_flops(run, batch) / run.train.steps
    pace = each * steps / (time.monotonic() - compiled)
    return Speed(pace, compiled - begun, begun - begin)


def seconds(
    jobs: Sequence[Job], costs: Sequence[Cost], speed: Speed, workers: int, cores: int
) -> float:
    """How long the jobs may take at that speed, each structure compiled once."""
    structures = len({job.compiles for job in jobs})
    work = sum(cost.flops for cost in costs) / speed.flops_per_second
    work += structures * speed.compile_seconds + len(jobs) * speed.begin_seconds
    return work / max(min(workers, cores, len(jobs)), 1)

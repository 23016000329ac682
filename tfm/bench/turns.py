"""Contenders that are timed in turns, each in a process of its own.

They meet the same noise of the machine, and none meets the threads, caches or flags of another: who
is not at turn waits on a pipe.
"""

import importlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfm.names import UserError

Make = tuple[str, Any]  # "module:function", and what it is called with: it gives a cases.Run


def in_turns(
    contenders: Mapping[str, Make], cores: int | None, rounds: int, seconds: float
) -> Iterator[dict[str, float]]:
    """For each round, the seconds that one step of each contender took.

    `cores` is how many each may use, or None for all. A turn lasts about `seconds`.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    processes = []
    try:
        for name, make in contenders.items():  # one after the other: none compiles beside another
            pipes[name], theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, cores), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            _ask(name, pipes[name], 2)  # compiles
        counts = {}
        for name, pipe in pipes.items():
            counts[name] = max(1, round(seconds / _ask(name, pipe, 2)))
        for _ in range(rounds):
            yield {name: _ask(name, pipe, counts[name]) for name, pipe in pipes.items()}
    finally:
        for pipe in pipes.values():
            pipe.close()  # at which they end
        for process in processes:
            process.join(5)
            process.kill()


def _ask(name: str, pipe: Any, count: int) -> float:
    pipe.send(count)
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise UserError(f"{name} could not be timed; its error is above") from None


def _serve(pipe: Any, make: Make, cores: int | None) -> None:
    if cores is not None:  # before a library counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        os.environ["OMP_NUM_THREADS"] = str(cores)
    where, argument = make
    module, _, function = where.partition(":")
    run: Callable[[int], float] = getattr(importlib.import_module(module), function)(argument)
    while True:
        try:
            count = pipe.recv()
        except EOFError:
            return
        pipe.send(run(count))


def ratios(rounds: Sequence[Mapping[str, float]], to: str) -> dict[str, tuple[float, float, float]]:
    """Of each other contender's time to that of `to`, round by round: the median and quartiles."""
    out = {}
    for name in rounds[0]:
        if name != to:
            each = [one[name] / one[to] for one in rounds]
            low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
            out[name] = middle, low, high
    return out

"""Contenders that are timed in turns, each in a process of its own.

They meet the same noise of the machine, and none meets the threads, caches or flags of another: who
is not at turn waits on a pipe.
"""

import importlib
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tfm
from tfm.config.names import UserError

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


def library_config(name: str) -> str:
    """The path of a config file of the clone that tfm is installed from."""
    path = pathlib.Path(tfm.__file__).parent.parent / name
    if not path.is_file():
        raise UserError(
            f"no {path}: this is measured in a clone, installed with `pip install -e .`"
        )
    return str(path)


def whole_process(name: str, command: Sequence[str], **environment: str) -> tuple[float, str]:
    """The seconds that a command takes from its start to its end, and what it prints."""
    start = time.perf_counter()
    env = {**os.environ, **environment}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    seconds = time.perf_counter() - start
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        raise UserError(f"{name} could not be timed: {lines[-1] if lines else ran.returncode}")
    return seconds, ran.stdout


def ratios(rounds: Sequence[Mapping[str, float]], to: str) -> dict[str, tuple[float, float, float]]:
    """Of each other contender's time to that of `to`, round by round: the median and quartiles."""
    out = {}
    for name in rounds[0]:
        if name != to:
            each = [one[name] / one[to] for one in rounds]
            # One round is its own median and quartiles.
            cuts = statistics.quantiles(each * (1 + (len(each) == 1)), n=4, method="inclusive")
            out[name] = cuts[1], cuts[0], cuts[2]
    return out

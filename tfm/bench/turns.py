"""Times implementations in turns, each in its own process.

All of them meet the same noise of the machine, and none meets the threads, caches or flags of
another: a process waits on a pipe until its turn.
"""

import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

import tfm
from tfm.config.names import UserError
from tfm.config.spec import Named
from tfm.runtime import safe_path
from tfm.terminal import table

Run = Callable[[int], float]  # takes a number of steps, and returns the seconds per step
Maker = tuple[str, Any]  # "module:function" and its argument; the function returns a Run
Ratio = tuple[float, float, float]  # the median over rounds, and the quartiles
CORES: dict[str, int | None] = {"all": None, "one": 1}


def in_turns(
    makers: Mapping[str, Maker], cores: int | None, rounds: int, seconds: float
) -> Iterator[dict[str, float]]:
    """Yields, for each round, the seconds per step of each implementation.

    `cores` is how many each may use, None for all. A turn takes about `seconds`.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    processes = []
    try:
        for name, maker in makers.items():  # in turn: none compiles beside another
            pipes[name], theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, maker, cores), daemon=True)
            with safe_path():
                process.start()
            processes.append(process)
            theirs.close()
            _ask(name, pipes[name], 2)  # compiles
        counts = {n: max(1, round(seconds / _ask(n, pipe, 2))) for n, pipe in pipes.items()}
        for _ in range(rounds):
            yield {name: _ask(name, pipe, counts[name]) for name, pipe in pipes.items()}
    finally:
        for pipe in pipes.values():
            pipe.close()  # ends its process
        for process in processes:
            process.join(5)
            process.kill()


def _ask(name: str, pipe: Any, count: int) -> float:
    pipe.send(count)
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise UserError(f"{name} could not be timed; its error is above") from None


def _serve(pipe: Any, maker: Maker, cores: int | None) -> None:
    if cores is not None:  # before a library counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        os.environ["OMP_NUM_THREADS"] = str(cores)
    where, argument = maker
    module, _, function = where.partition(":")
    run: Run = getattr(importlib.import_module(module), function)(argument)
    while True:
        try:
            count = pipe.recv()
        except EOFError:
            return
        pipe.send(run(count))


def timed(step: Callable[[Any], Any], state: Any = None) -> Run:
    """Returns a function that times a number of steps, from one state to the next."""

    def run(count: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(count):
            state = step(state)
        jax.block_until_ready(state)
        return (time.perf_counter() - start) / count

    return run


@dataclasses.dataclass(frozen=True)
class Speed:
    """One row of a comparison with one other implementation."""

    case: str
    cores: str
    per_second: dict[str, float]  # the median over rounds
    ratio: Ratio  # the first implementation's speed over the second's


def compare(
    case: str, makers: Mapping[str, Maker], cores: Named, rounds: int, seconds: float, size: int
) -> Speed:
    """Measures how many tokens or words two implementations process, `size` in each step."""
    ours, theirs = makers
    times = list(in_turns(makers, cores.entry, rounds, seconds))
    speed = {name: size / statistics.median(row[name] for row in times) for name in makers}
    return Speed(case, str(cores), speed, ratios(times, ours)[theirs])


def speed_table(rows: Sequence[Speed], unit: str) -> Any:
    names = list(rows[0].per_second)
    out = table(
        *("case", "cores", *(f">{name}\n{unit}/s" for name in names), ">×"),
        caption=f"×: our speed over that of {names[1]}, the median over rounds, and the quartiles.",
    )
    for row in rows:
        speeds = [f"{speed:,.0f}" for speed in row.per_second.values()]
        out.add_row(row.case, row.cores, *speeds, ratio_text(row.ratio))
    return out


def whole_process(name: str, command: Sequence[str]) -> tuple[float, str]:
    """Returns the seconds that a command takes from start to end, and its output."""
    start = time.perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        raise UserError(f"{name} could not be timed: {lines[-1] if lines else process.returncode}")
    return seconds, process.stdout


def ratios(rounds: Sequence[Mapping[str, float]], to: str) -> dict[str, Ratio]:
    """Returns every other implementation's time over that of `to`, paired by round."""
    out = {}
    for name in rounds[0]:
        if name != to:
            each = [times[name] / times[to] for times in rounds]
            # A single round is its own median and quartiles.
            cuts = statistics.quantiles(each * (1 + (len(each) == 1)), n=4, method="inclusive")
            out[name] = cuts[1], cuts[0], cuts[2]
    return out


def ratio_text(ratio: Ratio) -> str:
    median, low, high = (f"{x:.2f}" for x in ratio)
    return f"{median} ({low}–{high})"


def library_config(name: str) -> str:
    """Returns the path of a config in the clone that tfm is installed from."""
    path = pathlib.Path(tfm.__file__).parent.parent / name
    if not path.is_file():
        raise UserError(f"no {path}: run this in a clone installed with `pip install -e .`")
    return str(path)


def not_installed(package: str) -> str:
    return f"{package} is not installed: pip install {package}, or pip install -e '.[bench]'"

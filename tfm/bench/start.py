"""Time from the start of a command to its first step, and what a sweep spends besides steps.

  tfm bench start [--config.KEY=VALUE …] [--json]

`tfm train` is started with an empty compilation cache (cold), and again with what that left (warm),
in turns. Its time is split into imports, the check of the compiler, data, tracing, lowering, and
compiling or loading what was compiled before; the rest is the first step, the proof that nothing
leaks, and the run's folder. Then a sweep of tiny runs of one structure is run with one worker in a
temporary folder. Its steps take what a step takes between two lines of the log in which nothing is
compiled or evaluated; all the other time of the worker is overhead.
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track

from tfm.bench.turns import library_config, whole_process
from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.help import keys_text
from tfm.config.names import UserError
from tfm.config.spec import Spec, SpecError, size, to_spec
from tfm.run.identity import cores
from tfm.sweep.worker import work
from tfm.terminal import console, table

STUDY = '''"""What does a sweep of tiny runs spend besides steps?"""

from tfm.sweep.space import product, seeds

BASE = {config!r}


def sweep():
    return product({{"model.layers": [1], "model.width": [{width}]}}, seeds({runs}))
'''
LINES = 5  # of the log of a tiny run


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartBench(Spec):
    """What to start."""

    run: str = "configs/tasks/reverse.py"  # a config of this clone
    rounds: int = size(3)  # cold and warm
    runs: int = size(6)  # of the sweep
    steps: int = size(500)  # of each of them
    width: int = size(32)

    def check(self) -> None:
        if self.steps < 2 * LINES:
            raise SpecError("steps", f"{{key}}={self.steps} must be at least {2 * LINES}")


@dataclasses.dataclass(frozen=True)
class Start:
    """Seconds to the first step, and of each part; medians over rounds."""

    cache: str
    seconds: float
    parts: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Seconds of a sweep with one worker."""

    runs: int
    worker_start: float  # until a worker is ready, on a warm cache
    whole: float  # of the command
    in_steps: float
    overhead_share: float  # 1 − in_steps / whole
    overhead_per_run: float  # of those after the first, which share its compilation


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(f"{__doc__}{keys_text(StartBench, {})}", end="")
        return
    given = arguments.split(argv, flags=("json",))
    spec = to_spec(StartBench, from_command_line(given.config, StartBench, {}))
    starts, sweep = measure_starts(spec), measure_sweep(spec)
    if "json" in given.flags:
        both = {"starts": [dataclasses.asdict(x) for x in starts]}
        print(json.dumps({**both, "sweep": dataclasses.asdict(sweep)}, indent=1))
    else:
        _print(starts, sweep)


def measure_starts(spec: StartBench) -> list[Start]:
    found: dict[str, list[Any]] = {"cold": [], "warm": []}
    rounds = track(range(spec.rounds), "starting", console=Console(stderr=True))
    for _ in rounds:
        with tempfile.TemporaryDirectory() as folder:
            for cache, own in found.items():
                command = [sys.executable, "-m", "tfm.bench.first_step", str(time.monotonic())]
                command += [f"--config={library_config(spec.run)}", f"--workdir={folder}/{cache}"]
                _, printed = whole_process("tfm train", command, TFM_CACHE=f"{folder}/cache")
                own.append(json.loads(printed))
    return [
        Start(
            cache,
            statistics.median(one["seconds"] for one in own),
            {
                part: statistics.median(one["parts"][part] for one in own)
                for part in own[0]["parts"]
            },
        )
        for cache, own in found.items()
    ]


def measure_sweep(spec: StartBench) -> Sweep:
    with tempfile.TemporaryDirectory() as folder:
        study, runs = pathlib.Path(folder, "study.py"), pathlib.Path(folder, "runs")
        text = {"config": library_config(spec.run), "width": spec.width, "runs": spec.runs}
        study.write_text(STUDY.format(**text))
        every = spec.steps // LINES
        command = [sys.executable, "-m", "tfm.cli", "sweep", str(study), f"--workdir={runs}",
                   "--jobs=1", "--quiet", f"--config.train.steps={spec.steps}",
                   f"--config.train.log_every={every}", "--config.train.eval_every=None",
                   "--config.optimizer.schedule=constant"]  # fmt: skip
        whole, _ = whole_process("tfm sweep", command, TFM_CACHE=f"{folder}/cache")
        logs = sorted(runs.glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        if len(logs) != spec.runs:
            raise UserError(f"{len(logs)} of {spec.runs} runs have a log")
        each = [step_seconds(path.read_text(), every) * spec.steps for path in logs]
        ends = [(path.parent / "summary.json").stat().st_mtime for path in logs]
        between = [b - a - own for a, b, own in zip(ends, ends[1:], each[1:], strict=False)]
        ready = worker_start(f"{folder}/cache", f"{folder}/worker.log")
    per_run = statistics.median(between) if between else float("nan")
    return Sweep(spec.runs, ready, whole, sum(each), 1 - sum(each) / whole, per_run)


def step_seconds(log: str, every: int) -> float:
    """Of one step: the median over lines of the log but the first, in which the step is compiled,
    and the last, which may be shorter."""
    lines = [json.loads(line) for line in log.splitlines()]
    whole = [one["seconds"] for one in lines if one["split"] == "train"][1:-1]
    return statistics.median(whole) / every


def worker_start(cache: str, log: str) -> float:
    """Seconds until a worker process of a sweep is ready for its first order."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    before = os.environ.get("TFM_CACHE")
    os.environ["TFM_CACHE"] = cache
    try:
        start = time.perf_counter()
        process = context.Process(target=work, args=(theirs, log, cores()[0]), daemon=True)
        process.start()
        theirs.close()
        said = ours.recv()
        seconds = time.perf_counter() - start
    finally:
        if before is None:
            del os.environ["TFM_CACHE"]
        else:
            os.environ["TFM_CACHE"] = before
    ours.close()  # at which it ends
    process.join()
    if said["kind"] != "ready":
        raise UserError(said["error"])
    return seconds


def _print(starts: Sequence[Start], sweep: Sweep) -> None:
    out = table(
        *("cache", ">seconds", *(f">{part}" for part in starts[0].parts)),
        title="from the start of `tfm train` to its first step, seconds",
    )
    for one in starts:
        out.add_row(one.cache, f"{one.seconds:.2f}", *(f"{x:.2f}" for x in one.parts.values()))
    console().print(out, "")
    console().print(
        f"a worker is ready after {sweep.worker_start:.1f} s. A sweep of {sweep.runs} tiny runs, "
        f"one worker: {sweep.whole:.1f} s, {sweep.in_steps:.1f} s of it in steps "
        f"({sweep.overhead_share:.0%} overhead); each run after the first spends "
        f"{sweep.overhead_per_run:.2f} s besides its steps"
    )

"""The plan of a sweep with many points: its time, and its memory in a process of its own."""

import dataclasses
import multiprocessing
import pathlib
import resource
import sys
import tempfile
import time
from typing import Any

from tfm.bench.turns import library_config
from tfm.config.names import UserError

CONFIG = "configs/tasks/reverse.py"
STUDY = '''"""How long does a plan of {points} points take?"""

BASE = {config!r}
VARIANT = ("optimizer.learning_rate",)


def sweep():
    for n in range({points}):
        yield {{"optimizer.learning_rate": 1e-4 * (1 + n // 5), "seed": n % 5}}
'''


@dataclasses.dataclass(frozen=True)
class Plan:
    seconds: float
    memory_mb: float  # by which the peak of the process grew


def measure(points: int) -> Plan:
    """Expand a study of so many points, of five seeds each, all of one structure."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, points), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise UserError(f"a plan of {points} points failed; its error is above") from None
    finally:
        process.join()


def _serve(pipe: Any, points: int) -> None:
    from tfm.sweep import plan, study

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "study.py")
        file.write_text(STUDY.format(points=points, config=library_config(CONFIG)))
        loaded = study.load(folder)
        plan.expand(dataclasses.replace(loaded, sweep=lambda: [{"seed": 0}], variant=None))  # warm
        before, start = _peak(), time.perf_counter()
        jobs = plan.expand(loaded)
        seconds = time.perf_counter() - start
        assert len(jobs) == points
        pipe.send(Plan(seconds, (_peak() - before) / 1e6))


def _peak() -> int:
    """Bytes of memory that this process had at most."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found

"""Shows the progress of a sweep: a live table on a terminal, elsewhere a line now and then."""

import collections
import time
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tfm.evaluate.metric import LOW
from tfm.report.results import values
from tfm.sweep.launch import Progress
from tfm.terminal import plain

EVERY = 30.0  # seconds between lines where there is no terminal
LIVE = 0.25  # seconds between updates of the table
STATES = ("done", "running", "failed", "damaged", "waiting")


class Display:
    """The watcher of a launch."""

    def __init__(self, metric: str, quiet: bool):
        self.metric, self.quiet = metric, quiet
        self.console = Console(stderr=True, highlight=False, markup=False)
        self.start = self.last = time.monotonic()
        self.first: float | None = None  # the share that was done at the start
        self.live: Live | None = None

    def __enter__(self) -> "Display":
        if not self.quiet and self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, jobs: Sequence[Progress]) -> None:
        if self.quiet:
            return
        if self.first is None:
            self.first = sum(job.share for job in jobs)
        if time.monotonic() < self.last + (EVERY if self.live is None else LIVE):
            return
        self.last = time.monotonic()
        if self.live is None:
            self.console.print(self._line(jobs))
        else:
            self.live.update(self._table(jobs), refresh=True)

    def _line(self, jobs: Sequence[Progress]) -> str:
        count = collections.Counter(job.state for job in jobs)
        text = ", ".join(f"{count[state]} {state}" for state in STATES if count[state])
        share = sum(job.share for job in jobs)
        gained = share - (self.first or 0.0)
        if gained <= 0:
            return f"{text}; time left unknown"
        seconds = (time.monotonic() - self.start) * (len(jobs) - share) / gained
        return f"{text}; {duration(seconds)} left"

    def _table(self, jobs: Sequence[Progress]) -> Group:
        bar = ProgressBar(total=len(jobs), completed=sum(job.share for job in jobs), width=60)
        now = Table("running", "step", "loss", box=box.SIMPLE_HEAD, pad_edge=False)
        for job in jobs:
            if job.state == "running":
                loss = f"{job.line['loss']:.4f}" if "loss" in job.line else "…"
                step = f"{job.line.get('step', 0)} of {job.job.run.train.steps}"
                now.add_row(Text(plain(job.job.name)), step, loss)
        best = Table("task", "best so far", self.metric, box=box.SIMPLE_HEAD, pad_edge=False)
        for task, (name, value) in leaders(jobs).items():
            best.add_row(Text(plain(task)), Text(plain(name)), f"{value:.4f}")
        failed = [Text(plain(f"{j.job.name}: {j.error}"), "red") for j in jobs if j.error]
        return Group(Text(self._line(jobs)), bar, now, best, *failed[-5:])


def leaders(jobs: Sequence[Progress]) -> dict[str, tuple[str, float]]:
    """Returns the variant with the best mean over finished runs, for each task.

    A variant that diverged with any seed is left out.
    """
    cells: dict[tuple[str, str], list[float | None]] = {}
    sign = 1
    for job in jobs:
        if job.summary is not None:
            value = values(job.summary).get(job.job.key)
            cell = job.job.task, job.job.variant
            cells.setdefault(cell, []).append(value if job.summary["status"] == "done" else None)
            sign = -1 if job.job.metric.better == LOW else 1
    best: dict[str, tuple[str, float]] = {}
    for (task, variant), results in cells.items():
        numbers = [number for number in results if number is not None]
        if len(numbers) < len(results):
            continue
        mean = sum(numbers) / len(numbers)
        if task not in best or sign * mean > sign * best[task][1]:
            best[task] = variant, mean
    return best


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

"""Runs the jobs of a sweep on this machine, in worker processes, through any interruption.

A job is a folder named by a hash of everything that decides its result. A finished job is kept, an
interrupted one is resumed, and one that fails is tried again a few times. So the same command
starts, resumes and extends a sweep. Only one launcher may work in the folder of a sweep at a time,
and only one worker in the folder of a run.
"""

import contextlib
import dataclasses
import itertools
import multiprocessing
import pathlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

from tfm import disk
from tfm.config.names import UserError
from tfm.config.spec import to_tree
from tfm.run.folder import DISK_ERRORS, Damaged, Folder
from tfm.runtime import cores, safe_path
from tfm.sweep.cost import Speed
from tfm.sweep.plan import Job
from tfm.sweep.study import Study
from tfm.sweep.worker import work

GRACE = 20.0  # seconds for workers to save their runs before they are killed


@dataclasses.dataclass
class Progress:
    """The progress of a job."""

    job: Job
    state: str = "waiting"  # running, done, failed, damaged
    line: dict[str, Any] = dataclasses.field(default_factory=dict)  # the last one logged
    summary: dict[str, Any] | None = None
    error: str = ""
    failures: int = 0  # since it last made progress
    furthest: int = 0  # the last step that was logged
    kept: bool = False  # done before this launch

    @property
    def share(self) -> float:
        if self.state in ("done", "failed", "damaged"):
            return 1.0
        return self.line.get("step", 0) / self.job.run.train.steps


Show = Callable[[Sequence[Progress]], None]


def launch(
    study: Study, jobs: Sequence[Job], folder: Folder, show: Show, workers: int, retries: int
) -> list[Progress]:
    """Runs the jobs that are not done; returns all in order. The caller locks the folder."""
    folder.write("sweep.json", describe(study, jobs))
    progress = [_before(job, folder.path) for job in jobs]
    left = sum(p.state == "waiting" for p in progress)
    if left:
        with _stop_on_sigterm(), _Pool(folder.path, min(workers, left)) as pool:
            _serve(pool, progress, show, retries)
    show(progress)
    return progress


def describe(study: Study, jobs: Sequence[Job]) -> dict[str, Any]:
    """Returns what a report needs to know about a sweep besides its run folders."""
    return {
        "study": study.name,
        "question": study.question,
        "metric": study.metric,
        "key": jobs[0].key,
        "declaration": dataclasses.asdict(jobs[0].metric),
        "baseline": study.baseline,
        "runs": [job.tree for job in jobs],
    }


def _before(job: Job, folder: pathlib.Path) -> Progress:
    """Returns a job as done, waiting, or damaged, in which case its folder is left alone."""
    path = folder / job.id
    try:
        summary = Folder(path).summary(job.id)
    except Damaged as e:
        return Progress(job, "damaged", error=f"{e}; delete the folder {path} to run it again")
    (path / "failure.json").unlink(missing_ok=True)  # it is tried again
    kept = summary is not None
    return Progress(job, "done" if kept else "waiting", summary=summary, kept=kept)


class _Pool:
    """Worker processes, each on its own core if there are enough cores."""

    def __init__(self, folder: pathlib.Path, size: int):
        self.folder = folder
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[_Worker | None] = [None] * size
        self.failed_starts = 0  # workers in a row that died before they were ready
        self.cores = cores()
        (folder / "workers").mkdir(exist_ok=True)
        try:
            disk.check_tree(folder / "workers")
        except OSError as e:
            raise UserError(f"cannot use {e.filename}: {e.strerror}") from e

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the workers; those that run a job save it first."""
        alive = [worker for worker in self.workers if worker is not None]
        for worker in alive:
            if worker.progress is None:
                worker.pipe.close()
            else:
                worker.process.terminate()
        until = time.monotonic() + GRACE
        try:
            for worker in alive:
                worker.process.join(max(0.0, until - time.monotonic()))
        finally:
            for worker in alive:
                worker.process.kill()
                worker.process.join()

    def log(self, number: int) -> pathlib.Path:
        return self.folder / "workers" / f"{number}.log"

    def worker(self, number: int) -> "_Worker":
        worker = self.workers[number]
        if worker is None:
            ours, theirs = self.context.Pipe()
            args = theirs, str(self.log(number)), self.cores[number % len(self.cores)]
            process = self.context.Process(target=work, args=args, daemon=True)
            # Ctrl-C is blocked in a new worker until it has set its own handler.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                with safe_path():
                    process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            theirs.close()
            worker = self.workers[number] = _Worker(process, ours)
        return worker

    def send(self, number: int, job: Job, **order: Any) -> None:
        order |= {"planned": job.planned, "config": to_tree(job.run), "files": job.files}
        with contextlib.suppress(OSError):  # `events` reports a worker that has died
            self.worker(number).pipe.send(order)

    def give(self, number: int, progress: Progress) -> None:
        worker, job = self.worker(number), progress.job
        worker.progress, worker.compiled = progress, job.compiles
        progress.state, progress.line = "running", {}
        self.send(number, job, do="train", workdir=str(self.folder / job.id))

    def events(self, timeout: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields messages of workers with their numbers, and "died" for a worker that died."""
        pipes: dict[Any, int] = {w.pipe: i for i, w in enumerate(self.workers) if w is not None}
        for ready in connection.wait(list(pipes), timeout):
            number = pipes[ready]
            worker = self.workers[number]
            assert worker is not None
            try:
                event = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(GRACE)
                worker.process.kill()
                worker.process.join()
                self._count_death(number, worker)
                event = {"kind": "died", "error": _death(worker.process.exitcode)}
            if event["kind"] == "wrong":  # the compiler: no result could be trusted
                raise UserError(event["error"])
            if event["kind"] == "ready":
                worker.ready, self.failed_starts = True, 0
                continue
            yield number, event
            if event["kind"] in ("died", "stopped"):
                self.workers[number] = None

    def _count_death(self, number: int, worker: "_Worker") -> None:
        """Raises if one worker after another dies at its start, which is not the fault of a job."""
        self.failed_starts += not worker.ready
        if self.failed_starts > len(self.workers) + 1:
            log = self.log(number)
            lines = log.read_text().splitlines() if log.exists() else []
            last = next(filter(None, reversed(lines)), _death(worker.process.exitcode))
            raise UserError(f"workers cannot start: {last} (see {log})")


def measure_speed(job: Job) -> Speed:
    """Measures how fast a worker runs a job."""
    with tempfile.TemporaryDirectory() as folder, _Pool(pathlib.Path(folder), 1) as pool:
        worker = pool.worker(0)
        pool.send(0, job, do="time")
        try:
            while True:
                for _, event in pool.events(timeout=1.0):
                    if "speed" in event:
                        return event["speed"]
                    raise UserError(f"{job.name}: a step cannot be timed: {event['error']}")
        finally:
            worker.process.kill()  # it has nothing to save


@dataclasses.dataclass
class _Worker:
    process: Any
    pipe: connection.Connection
    progress: Progress | None = None
    compiled: Any = None
    ready: bool = False


def _serve(pool: _Pool, jobs: Sequence[Progress], show: Show, retries: int) -> None:
    queue = [job for job in jobs if job.state == "waiting"]
    running = 0
    while queue or running:
        for number, worker in enumerate(pool.workers):
            if queue and (worker is None or worker.progress is None):
                chosen = _next(queue, worker.compiled if worker else None, pool)
                queue.remove(chosen)
                pool.give(number, chosen)
                running += 1
        show(jobs)
        for number, event in pool.events(timeout=0.5):
            worker = pool.workers[number]
            assert worker is not None
            job = worker.progress
            if job is None:  # it died between two jobs
                continue
            if event["kind"] == "line":
                job.line = event["line"]
                if job.line["step"] > job.furthest:
                    job.furthest, job.failures = job.line["step"], 0
                continue
            worker.progress, running = None, running - 1
            if event["kind"] == "done":
                job.state, job.summary, job.error = "done", event["summary"], ""
                continue
            job.error = event["error"]
            if any(text in job.error for text in DISK_ERRORS):
                raise UserError(f"{job.error}: make room, and the same command resumes the sweep")
            job.failures += 1
            if event.get("final") or job.failures > retries:
                job.state = "failed"
                failed = Folder(pool.folder / job.job.id).make()
                failed.write("failure.json", {"error": job.error})
            else:
                job.state = "waiting"
                queue.insert(0, job)


def _next(queue: Sequence[Progress], compiled: Any, pool: _Pool) -> Progress:
    """Prefers a job that this worker has compiled, then one that no other worker has."""
    others = [w.compiled for w in pool.workers if w is not None and w.progress is not None]
    here = (job for job in queue if job.job.compiles == compiled)
    nowhere = (job for job in queue if job.job.compiles not in others)
    return next(itertools.chain(here, nowhere, queue))


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM act like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

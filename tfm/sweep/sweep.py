"""Runs a sweep, or estimates its cost: stale runs, launching, results."""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

from tfm.config.names import UserError
from tfm.report import results
from tfm.run.folder import Damaged, Folder
from tfm.run.library_code import is_stale
from tfm.runtime import cores, machine_memory, settings
from tfm.sweep import cost
from tfm.sweep.launch import Progress, launch, measure_speed
from tfm.sweep.plan import Job
from tfm.sweep.show import Display
from tfm.sweep.study import Study

WORKER_BYTES = 1_000_000_000  # of a worker with a small model: Python, JAX and compiled code


def affordable(workers: int) -> tuple[int, str | None]:
    """Returns the number of workers that fit into memory, and a warning if they are fewer."""
    free = machine_memory("SC_AVPHYS_PAGES")
    if free is None or workers <= (most := max(1, free // WORKER_BYTES)):
        return workers, None
    return most, (
        f"--jobs={workers}: a worker needs about {WORKER_BYTES / 1e9:.1f} GB and "
        f"{free / 1e9:.0f} GB are free, so there are {most}"
    )


def sweep(
    study: Study,
    jobs: Sequence[Job],
    workdir: str,
    workers: int,
    retries: int = 2,
    stale: str | None = None,
    quiet: bool = False,
) -> tuple[results.Results, Sequence[Progress]]:
    """Runs the jobs that are not done yet, and writes the results.

    `stale` says what to do with runs made by other library code: "keep" or "again".
    """
    folder = Folder(workdir)
    with folder.lock(mark="sweep.json"):
        _move_stale(stale_jobs(jobs, workdir), len(jobs), folder.path, stale)
        with Display(study.metric, quiet) as display:
            done = launch(study, jobs, folder, display.show, workers, retries)
        outcome = results.read(workdir, settings())
        results.write(outcome, folder)
    return outcome, done


def stale_jobs(jobs: Sequence[Job], workdir: str) -> list[Job]:
    """Returns the jobs that other library code has started or finished."""
    stale = []
    for job in jobs:
        path = pathlib.Path(workdir) / job.id
        with contextlib.suppress(Damaged):  # reported by the launch
            if path.is_dir() and is_stale(Folder(path).read("profile.json"), settings()):
                stale.append(job)
    return stale


def _move_stale(stale: Sequence[Job], total: int, folder: pathlib.Path, choice: str | None) -> None:
    """Moves runs of other library code to the folder `stale`: all, or only unfinished ones."""
    if stale and choice is None:
        raise UserError(
            f"{len(stale)} of {total} runs in {folder} were made by other library code and cannot "
            "be compared with new ones: --stale=again runs them again, --stale=keep shows them as "
            "they are"
        )
    target = folder / "stale"
    for job in stale:
        if choice == "again" or not (folder / job.id / "summary.json").exists():
            target.mkdir(exist_ok=True)
            names = (target / f"{job.id}.{n}" for n in itertools.count())
            (folder / job.id).rename(next(path for path in names if not path.exists()))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The cost of a sweep. Without a speed, no step was timed."""

    costs: Sequence[cost.Cost]  # of each job
    done: set[str]  # ids of finished jobs
    stale: int  # number of jobs made by other library code
    speed: cost.Speed | None = None
    seconds: float | None = None  # for the jobs that are not done


def estimate(jobs: Sequence[Job], workdir: str, workers: int, stale: str | None) -> Estimate:
    """Counts FLOPs from shapes, and times a few steps of the cheapest job that is not done."""
    old = {job.id for job in stale_jobs(jobs, workdir)}
    costs = cost.costs(jobs)
    kept = [job.id for job in jobs if job.id not in old or stale == "keep"]
    done = {id_ for id_ in kept if (pathlib.Path(workdir) / id_ / "summary.json").is_file()}
    todo = [n for n, job in enumerate(jobs) if job.id not in done]
    todo_jobs, todo_costs = [jobs[n] for n in todo], [costs[n] for n in todo]
    cheapest = cost.cheapest(todo_jobs, todo_costs) if todo else None
    if cheapest is None:
        return Estimate(costs, done, len(old))
    speed = measure_speed(cheapest)
    seconds = cost.seconds(todo_jobs, todo_costs, speed, workers, len(cores()))
    return Estimate(costs, done, len(old), speed, seconds)

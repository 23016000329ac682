"""Runs the variants of a study and compares them.

Each point is a run in its own folder, named by a hash of everything that decides its result.
Finished runs are kept, interrupted ones resumed and failed ones retried, so the same command
starts, resumes and extends a sweep. It ends with a table of variants × tasks, and writes
results.md, results.csv and runs.csv. Workers use the CPU unless $JAX_PLATFORMS says otherwise.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence

import jax

from tfm.cli.main import Parser, whole
from tfm.config.names import UserError, pick
from tfm.report import results
from tfm.run.folder import Damaged, Folder
from tfm.run.identity import cores
from tfm.run.library_code import is_stale
from tfm.run.spec import RunSpec
from tfm.runtime import settings
from tfm.sweep import cost, plan
from tfm.sweep import study as studies
from tfm.sweep.launch import Progress, launch, measure_speed
from tfm.sweep.plan import Job
from tfm.sweep.show import Display, duration
from tfm.sweep.study import Study
from tfm.terminal import console, plain, table

STALE = {"keep": "show them as they are", "again": "run them again"}
ROWS = 40  # of the list of a dry run
WORKER_BYTES = 1_000_000_000  # of a worker with a small model: Python, JAX and what it compiles
WIDTH = 120  # of the tables where there is no terminal


@dataclasses.dataclass(frozen=True)
class Options:
    workdir: str
    workers: int
    retries: int
    stale: str | None
    quiet: bool
    json: bool


def main(argv: Sequence[str]) -> int:
    parser = Parser("sweep", __doc__, config=RunSpec)
    parser.add_argument("study", metavar="STUDY", help="a folder with a study.py, or that file")
    parser.add_argument("--workdir", metavar="FOLDER", help="the folder of the runs (runs/NAME)")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=whole(),
        default=len(cores()),
        help="worker processes, of one core each (one for each core)",
    )
    parser.add_argument(
        "--retries", metavar="N", type=whole(0), default=2, help="tries after a failure (2)"
    )
    parser.add_argument(
        "--stale",
        metavar="keep|again",
        help="runs made by other library code: keep marks them in the table, again reruns them",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and their cost; run none"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse(argv)
    for text in args.config:
        if text.startswith("--config="):
            raise UserError(
                f"{text}: a study names its own configs; --config.KEY=VALUE changes them"
            )
    if args.stale is not None:
        pick(STALE, args.stale, "--stale")
    if args.dry_run and args.quiet:
        raise UserError("--quiet: a dry run only prints; leave one of the two out")
    workers = _affordable(args.jobs)
    jax.config.update("jax_platforms", "cpu")  # for planning; workers follow $JAX_PLATFORMS
    study = studies.load(args.study)
    jobs = plan.expand(study, args.config)
    options = Options(
        workdir=args.workdir or os.path.join("runs", study.name),
        workers=workers,
        retries=args.retries,
        stale=args.stale,
        quiet=args.quiet or args.json,
        json=args.json,
    )
    return (dry_run if args.dry_run else sweep)(study, jobs, options)


def _affordable(workers: int) -> int:
    """As many workers as memory allows."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system
        return workers
    most = max(1, free // WORKER_BYTES)
    if workers > most:
        print(
            f"--jobs={workers}: a worker needs about {WORKER_BYTES / 1e9:.1f} GB and "
            f"{free / 1e9:.0f} GB are free, so there are {most}",
            file=sys.stderr,
        )
    return min(workers, most)


def sweep(study: Study, jobs: Sequence[Job], options: Options) -> int:
    """Run what is not done yet, and print the table."""
    start, workdir, folder = time.monotonic(), options.workdir, Folder(options.workdir)
    with folder.lock(mark="sweep.json"):
        _move_stale(_stale(jobs, workdir), len(jobs), folder.path, options.stale)
        try:
            with Display(study.metric, options.quiet) as display:
                done = launch(study, jobs, folder, display, options.workers, options.retries)
        except KeyboardInterrupt:
            print(f"stopped: {workdir} is kept; the same command resumes it", file=sys.stderr)
            raise
        found = results.read(workdir, settings())
        results.write(found, folder)
    if options.json:
        print(json.dumps(results.to_json(found), indent=1))
    else:
        _print(found, done, workdir, time.monotonic() - start)
    said = {"failed": f"failed; see {os.path.join(workdir, 'workers')}", "damaged": "are damaged"}
    wrong = [job for job in done if job.state in said]
    for job in wrong:
        print(plain(f"{job.state}: {job.job.name}: {job.error}"), file=sys.stderr)
    for state, text in said.items():
        if number := sum(job.state == state for job in wrong):
            print(f"{number} of {len(done)} runs {text}", file=sys.stderr)
    return 1 if wrong else 0


def _stale(jobs: Sequence[Job], workdir: str) -> list[Job]:
    """The jobs that other library code has started or finished."""
    paths = [(job, pathlib.Path(workdir) / job.id) for job in jobs]
    started = [(job, path) for job, path in paths if path.is_dir()]
    stale = []
    for job, path in started:
        with contextlib.suppress(Damaged):  # which the launch reports
            if is_stale(Folder(path).read("profile.json"), settings()):
                stale.append(job)
    return stale


def _move_stale(stale: Sequence[Job], total: int, folder: pathlib.Path, choice: str | None) -> None:
    """Move runs of other library code to the folder `stale`: all, or only unfinished ones."""
    if stale and choice is None:
        raise UserError(
            f"{len(stale)} of {total} runs in {folder} were made by other library code and cannot "
            "be compared with new ones: --stale=again runs them again, --stale=keep shows them as "
            "they are"
        )
    aside = folder / "stale"
    for job in stale:
        if choice == "again" or not (folder / job.id / "summary.json").exists():
            aside.mkdir(exist_ok=True)
            free = (aside / f"{job.id}.{n}" for n in itertools.count())
            (folder / job.id).rename(next(path for path in free if not path.exists()))


def _print(found: results.Results, done: Sequence[Progress], workdir: str, seconds: float) -> None:
    out = console(WIDTH)
    out.print(plain(f"{found.study}: {found.question.splitlines()[0]}") + "\n")
    for title, columns, rows in results.tables(found):
        out.print(plain(title))
        shown = table(*columns)
        for row in rows:
            shown.add_row(*row)
        out.print(shown, "")
    out.print(results.NOTE + "\n")
    kept = sum(job.kept for job in done)
    ran = f"{len(done) - kept} runs in {duration(seconds)}" + f", {kept} from before" * (kept > 0)
    out.print(f"{ran}; {workdir}/results.md, results.csv, runs.csv")


def dry_run(study: Study, jobs: Sequence[Job], options: Options) -> int:
    """Print what would be run, and what it would cost."""
    stale = {job.id for job in _stale(jobs, options.workdir)}
    each = cost.costs(jobs)
    done = {
        job.id
        for job in jobs
        if (pathlib.Path(options.workdir) / job.id / "summary.json").is_file()
        and (job.id not in stale or options.stale == "keep")
    }
    left = [(job, one) for job, one in zip(jobs, each, strict=True) if job.id not in done]
    speed = seconds = None
    if left:
        left_jobs, left_costs = zip(*left, strict=True)
        timed = cost.cheapest(left_jobs, left_costs)
        if timed is not None:
            speed = measure_speed(timed)
            seconds = cost.seconds(left_jobs, left_costs, speed, options.workers, len(cores()))
    if options.json:
        rows = [
            {"id": job.id, "variant": job.variant, "task": job.task, "seed": job.run.seed,
             "point": job.point, "done": job.id in done, **dataclasses.asdict(one)}
            for job, one in zip(jobs, each, strict=True)
        ]  # fmt: skip
        print(json.dumps({"runs": rows, "seconds": seconds}, indent=1))
        return 0
    out = console(WIDTH)
    out.print(f"{study.name}: {study.question.splitlines()[0]}\n")
    runs = table("run", "variant", "task", ">seed", ">parameters", ">training FLOPs")
    for job, one in list(zip(jobs, each, strict=True))[:ROWS]:
        mark = " done" if job.id in done else ""
        numbers = str(job.run.seed), f"{one.parameters:,}", f"{one.flops:.3g}"
        runs.add_row(job.id + mark, job.variant, job.task, *numbers)
    out.print(runs, "")
    if len(jobs) > ROWS:
        out.print(f"… and {len(jobs) - ROWS} more; --json lists them all")
    total = sum(one.flops for _, one in left)
    out.print(f"{len(jobs)} runs, {len(left)} to do: {total:.3g} FLOPs", end="")
    if speed is not None and seconds is not None:
        out.print(
            f"; about {duration(seconds)} with {options.workers} jobs (a timed step: "
            f"{speed.flops_per_second:.2g} FLOPs a second, {speed.compile_seconds:.0f} s to "
            "compile)"
        )
    else:
        out.print("; no step was timed, so there is no estimate" if left else "")
    if stale and options.stale is None:
        out.print(f"{len(stale)} runs are stale: choose --stale=keep or --stale=again")
    return 0

"""Run the variants of a study, and compare them.

  tfm sweep STUDY [--workdir=runs/NAME] [--jobs=N] [--dry-run] [--quiet] [--json]
                  [--retries=2] [--stale=keep|again] [--config.KEY=VALUE …]

STUDY is a folder with a study.py (tfm/sweep/study.py says what is in it). Each point is a run in a
folder of its own, named by what decides its result: finished ones are kept, half-done ones go on,
failed ones are tried again, so a sweep may be stopped, extended and restarted with this command.
--dry-run lists the runs with their parameters, FLOPs and an estimate of the time, and runs none.
--jobs is the number of worker processes, of one core each; without it, one for each core.
--config.KEY=VALUE changes the base config. Results by other library code are neither reused in
silence nor lost: --stale=keep marks them in the table, --stale=again puts them aside and runs them
again. Workers run on CPU unless $JAX_PLATFORMS says otherwise.

At the end, a table of variants × tasks; results.md, results.csv and runs.csv in the workdir.
"""

import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from tfm import arguments
from tfm.names import UserError, pick
from tfm.report import results
from tfm.sweep import cost, plan
from tfm.sweep import study as studies
from tfm.sweep.launch import Progress, launch, try_out
from tfm.sweep.plan import Job
from tfm.sweep.show import Display, duration
from tfm.sweep.study import Study
from tfm.train.folder import Folder
from tfm.train.identity import cores, is_stale

STALE = {"keep": "show them as they are", "again": "run them again"}
ROWS = 40  # of a dry run's list


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    given = arguments.split(
        argv,
        words=1,
        what="study",
        options=("workdir", "jobs", "retries", "stale"),
        flags=("dry-run", "quiet", "json"),
    )
    for text in given.config:
        if text.startswith("--config="):
            raise UserError(
                f"{text}: a study names its own configs; --config.KEY=VALUE changes them"
            )
    if "stale" in given.options:
        pick(STALE, given.options["stale"], "--stale")
    workers = arguments.whole(given, "jobs", len(cores()))
    retries = arguments.whole(given, "retries", 2, least=0)
    if {"dry-run", "quiet"} <= given.flags:
        raise UserError("--quiet: a dry run only tells; leave one of them out")
    jax.config.update("jax_platforms", "cpu")  # to plan; workers have $JAX_PLATFORMS
    study = studies.load(given.words[0])
    jobs = plan.expand(study, given.config)
    workdir = given.options.get("workdir", os.path.join("runs", study.name))
    if "dry-run" in given.flags:
        dry_run(study, jobs, workdir, workers, given)
    else:
        sweep(study, jobs, workdir, workers, retries, given)


def sweep(
    study: Study,
    jobs: Sequence[Job],
    workdir: str,
    workers: int,
    retries: int,
    given: arguments.Arguments,
) -> None:
    """Run what is to be run, and print the table."""
    begin, quiet, folder = time.monotonic(), bool(given.flags & {"quiet", "json"}), Folder(workdir)
    with folder.alone():
        _treat_stale(_stale(jobs, workdir), len(jobs), folder.path, given.options.get("stale"))
        try:
            with Display(study.metric, quiet) as display:
                done = launch(study, jobs, folder, display, workers, retries)
        except KeyboardInterrupt:
            print(f"stopped: {workdir} is kept; the same command goes on", file=sys.stderr)
            raise
        found = _write(folder)
    failed = [job for job in done if job.state == "failed"]
    if "json" in given.flags:
        print(json.dumps(results.tree(found), indent=1))
    else:
        _print(found, done, workdir, time.monotonic() - begin)
    for job in failed:
        print(f"failed: {job.job.name}: {job.error}", file=sys.stderr)
    if failed:
        logs = os.path.join(workdir, "workers")
        print(f"{len(failed)} of {len(done)} runs failed; see {logs}", file=sys.stderr)
        sys.exit(1)


def _stale(jobs: Sequence[Job], workdir: str) -> list[Job]:
    """The jobs whose folders other code has begun or finished."""
    paths = [(job, pathlib.Path(workdir) / job.id) for job in jobs]
    begun = [(job, path) for job, path in paths if path.is_dir()]
    return [job for job, path in begun if is_stale(Folder(path).read("profile.json"))]


def _treat_stale(
    old: Sequence[Job], all_jobs: int, folder: pathlib.Path, choice: str | None
) -> None:
    """Put aside what other code has made, or only what it has left half done; delete nothing."""
    if old and choice is None:
        raise UserError(
            f"{len(old)} of {all_jobs} runs in {folder} were made by other library code, so that "
            "they cannot be compared with new ones: --stale=again runs them again, --stale=keep "
            "shows them as they are"
        )
    aside = folder / "stale"
    for job in old:
        if choice == "again" or not (folder / job.id / "summary.json").exists():
            aside.mkdir(exist_ok=True)
            free = (aside / f"{job.id}.{n}" for n in itertools.count())
            (folder / job.id).rename(next(path for path in free if not path.exists()))


def _write(folder: Folder) -> results.Results:
    found = results.read(str(folder.path))
    folder.write_text("results.md", results.markdown(found))
    folder.write_text("results.csv", results.table_csv(found))
    folder.write_text("runs.csv", results.runs_csv(found))
    return found


def _console() -> Console:
    width = None if sys.stdout.isatty() else 120
    return Console(width=width, highlight=False, markup=False)


def _table(*columns: str, numbers: int) -> Table:
    """The last `numbers` columns hold numbers."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        right = i >= len(columns) - numbers
        out.add_column(name, justify="right" if right else "left", no_wrap=right)
    return out


def _print(found: results.Results, done: Sequence[Progress], workdir: str, seconds: float) -> None:
    console, tasks = _console(), found.tasks
    console.print(f"{found.study}: {found.question.splitlines()[0]}\n")
    main = _table(f"{found.metric}, 95 % intervals", *tasks, numbers=len(tasks))
    for variant in found.variants:
        main.add_row(variant, *(results.text(found.cell(variant, task)) for task in tasks))
    console.print(main)
    costs = _table("task", "variant", "parameters", "training FLOPs", "seconds", "runs", numbers=4)
    for place, cell in found.cells.items():
        costs.add_row(*place, *results.cost(cell))
    console.print(costs)
    kept = sum(job.kept for job in done)
    ran = f"{len(done) - kept} runs in {duration(seconds)}" + f", {kept} from before" * (kept > 0)
    console.print(f"{ran}; {workdir}/results.md, results.csv, runs.csv")


def dry_run(
    study: Study, jobs: Sequence[Job], workdir: str, workers: int, given: arguments.Arguments
) -> None:
    """What would be run, and what it would cost."""
    choice = given.options.get("stale")
    old = {job.id for job in _stale(jobs, workdir)}
    each = cost.costs(jobs)
    ended = {
        job.id: (pathlib.Path(workdir) / job.id / "summary.json").is_file()
        and (job.id not in old or choice == "keep")
        for job in jobs
    }
    left = [(job, one) for job, one in zip(jobs, each, strict=True) if not ended[job.id]]
    pace = guess = None
    if left:
        todo, dear = zip(*left, strict=True)
        tried = cost.cheapest(todo, dear)
        if tried is not None:
            pace = try_out(tried)
            guess = cost.seconds(todo, dear, pace, workers, len(cores()))
    if "json" in given.flags:
        rows = [
            {"id": job.id, "variant": job.variant, "task": job.task, "seed": job.run.seed,
             "point": job.point, "parameters": one.parameters, "flops": one.flops,
             "done": ended[job.id]}
            for job, one in zip(jobs, each, strict=True)
        ]  # fmt: skip
        print(json.dumps({"runs": rows, "seconds": guess}, indent=1))
        return
    console = _console()
    console.print(f"{study.name}: {study.question.splitlines()[0]}\n")
    table = _table("run", "variant", "task", "seed", "parameters", "training FLOPs", numbers=3)
    for job, one in list(zip(jobs, each, strict=True))[:ROWS]:
        mark = " done" if ended[job.id] else ""
        row = str(job.run.seed), f"{one.parameters:,}", f"{one.flops:.3g}"
        table.add_row(job.id + mark, job.variant, job.task, *row)
    console.print(table)
    if len(jobs) > ROWS:
        console.print(f"… and {len(jobs) - ROWS} more; --json lists them all")
    total = sum(one.flops for _, one in left)
    console.print(f"{len(jobs)} runs, {len(left)} to do: {total:.3g} FLOPs", end="")
    if guess is not None and pace is not None:
        console.print(
            f"; about {duration(guess)} with {workers} jobs (the cheapest steps, tried here: "
            f"{pace.flops_per_second:.2g} FLOPs a second, {pace.compile_seconds:.0f} s to compile)"
        )
    else:
        console.print("; no step was tried, so no time is guessed" if left else "")
    if old and choice is None:
        console.print(f"{len(old)} runs are stale: choose --stale=keep or --stale=again")

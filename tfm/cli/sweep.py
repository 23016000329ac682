"""Runs the variants of a study and compares them.

Each point is a run in its own folder, named by a hash of everything that decides its result.
Finished runs are kept, interrupted ones resumed and failed ones retried, so the same command
starts, resumes and extends a sweep. It ends with a table of variants × tasks, and writes
results.md, results.csv and runs.csv. Workers use the CPU unless $JAX_PLATFORMS says otherwise.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence

import jax

from tfm.cli.main import Parser
from tfm.config.names import UserError, pick
from tfm.report import results
from tfm.run.spec import RunSpec
from tfm.runtime import cores
from tfm.sweep import plan
from tfm.sweep import study as studies
from tfm.sweep.launch import Progress
from tfm.sweep.plan import Job
from tfm.sweep.show import duration
from tfm.sweep.study import Study
from tfm.sweep.sweep import affordable, estimate, sweep
from tfm.terminal import console, plain, table

STALE = {"keep": "mark them in the table", "again": "run them again"}
ROWS = 40  # of the list of a dry run
WIDTH = 120  # of the tables if there is no terminal


def main(argv: Sequence[str]) -> int:
    parser = Parser("sweep", __doc__, config=RunSpec)
    parser.add_argument("study", metavar="STUDY", help="a folder with a study.py, or that file")
    parser.add_value("--workdir", "FOLDER", "the folder of the runs (runs/NAME)")
    text = "worker processes, of one core each (one for each core)"
    parser.add_number("--jobs", text, len(cores()))
    parser.add_number("--retries", "tries after a failure (2)", 2, least=0)
    text = "runs made by other library code: keep marks them in the table, again reruns them"
    parser.add_value("--stale", "keep|again", text)
    parser.add_flag("--dry-run", "list the runs and their cost; run none")
    parser.add_flag("--quiet", "show no progress")
    parser.add_json()
    args = parser.parse(argv)
    for text in args.config:
        if text.startswith("--config="):
            hint = "a study names its own configs; --config.KEY=VALUE changes them"
            raise UserError(f"{text}: {hint}")
    if args.stale is not None:
        pick(STALE, args.stale, "--stale")
    if args.dry_run and args.quiet:
        raise UserError("--quiet: a dry run only prints; leave one of the two out")
    args.jobs, warning = affordable(args.jobs)
    if warning is not None:
        print(warning, file=sys.stderr)
    jax.config.update("jax_platforms", "cpu")  # for planning; workers follow $JAX_PLATFORMS
    study = studies.load(args.study)
    args.workdir = args.workdir or os.path.join("runs", study.name)
    jobs = plan.expand(study, args.config)
    return (_dry_run if args.dry_run else _run)(study, jobs, args)


def _run(study: Study, jobs: Sequence[Job], args: argparse.Namespace) -> int:
    start, workdir, quiet = time.monotonic(), args.workdir, args.quiet or args.json
    try:
        outcome, done = sweep(study, jobs, workdir, args.jobs, args.retries, args.stale, quiet)
    except KeyboardInterrupt:
        print(f"stopped: {workdir} is kept; the same command resumes it", file=sys.stderr)
        raise
    if args.json:
        print(json.dumps(results.to_json(outcome), indent=1))
    else:
        _print_results(outcome, done, workdir, time.monotonic() - start)
    states = {"failed": f"failed; see {os.path.join(workdir, 'workers')}", "damaged": "are damaged"}
    wrong = [job for job in done if job.state in states]
    for job in wrong:
        print(plain(f"{job.state}: {job.job.name}: {job.error}"), file=sys.stderr)
    for state, text in states.items():
        if number := sum(job.state == state for job in wrong):
            print(f"{number} of {len(done)} runs {text}", file=sys.stderr)
    return 1 if wrong else 0


def _print_results(
    outcome: results.Results, done: Sequence[Progress], workdir: str, seconds: float
) -> None:
    out = console(WIDTH)
    out.print(plain(f"{outcome.study}: {outcome.question.splitlines()[0]}") + "\n")
    for title, columns, rows in results.tables(outcome):
        out.print(plain(title))
        shown = table(*columns)
        for row in rows:
            shown.add_row(*row)
        out.print(shown, "")
    out.print(results.NOTE + "\n")
    kept = sum(job.kept for job in done)
    ran = f"{len(done) - kept} runs in {duration(seconds)}" + f", {kept} from before" * (kept > 0)
    out.print(f"{ran}; {workdir}/results.md, results.csv, runs.csv")


def _dry_run(study: Study, jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """Lists the runs and their cost."""
    sums = estimate(jobs, args.workdir, args.jobs, args.stale)
    costs = list(zip(jobs, sums.costs, strict=True))
    if args.json:
        rows = [
            {**job.tree, "done": job.id in sums.done, **dataclasses.asdict(cost)}
            for job, cost in costs
        ]
        print(json.dumps({"runs": rows, "seconds": sums.seconds}, indent=1))
        return 0
    out = console(WIDTH)
    out.print(f"{study.name}: {study.question.splitlines()[0]}\n")
    runs = table("run", "variant", "task", ">seed", ">parameters", ">training FLOPs")
    for job, cost in costs[:ROWS]:
        mark = " done" if job.id in sums.done else ""
        numbers = str(job.run.seed), f"{cost.parameters:,}", f"{cost.flops:.3g}"
        runs.add_row(job.id + mark, job.variant, job.task, *numbers)
    out.print(runs, "")
    if len(jobs) > ROWS:
        out.print(f"… and {len(jobs) - ROWS} more; --json lists them all")
    todo = [cost.flops for job, cost in costs if job.id not in sums.done]
    out.print(f"{len(jobs)} runs, {len(todo)} to do: {sum(todo):.3g} FLOPs", end="")
    if sums.speed is not None and sums.seconds is not None:
        out.print(
            f"; about {duration(sums.seconds)} with {args.jobs} jobs (a timed step: "
            f"{sums.speed.flops_per_second:.2g} FLOPs a second, "
            f"{sums.speed.compile_seconds:.0f} s to compile)"
        )
    else:
        out.print("; no step was timed, so there is no estimate" if todo else "")
    if sums.stale and args.stale is None:
        out.print(f"{sums.stale} runs are stale: choose --stale=keep or --stale=again")
    return 0

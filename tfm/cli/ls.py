"""Lists the runs in a folder, with their status and best validation metrics.

The status is done, diverged, failed, running, unfinished (the command that started the run resumes
it), imported, or damaged with the name of the damaged file. Folders that are no runs are listed
with the reason.
"""

import dataclasses
import json
from collections.abc import Sequence

from tfm.cli.main import Parser
from tfm.report.ls import runs
from tfm.terminal import console, table


def main(argv: Sequence[str]) -> None:
    parser = Parser("ls", __doc__)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="(runs)")
    parser.add_json()
    args = parser.parse(argv)
    listed = list(runs(args.folder))
    if args.json:
        print(json.dumps([dataclasses.asdict(run) for run in listed], indent=1))
        return
    out = table("run", "model", "status", ">best loss", "metrics", ">steps", ">when")
    for run in listed:
        model = " · ".join(filter(None, (run.family, run.objective, run.dataset)))
        status = f"{run.status}: {run.reason}" if run.reason else run.status
        loss = (run.best or {}).get("loss")
        best = "" if loss is None else f"{loss:.4f}"
        values = {name: (run.best or {}).get(name) for name in run.headlines if name != "loss"}
        metrics = ", ".join(f"{name} {x:.3f}" for name, x in values.items() if x is not None)
        steps = " of ".join(f"{n:,}" for n in (run.step, run.steps) if n is not None)
        when = (run.when or "")[:16].replace("T", " ")
        out.add_row(run.name, model, status, best, metrics, steps, when)
    console(200).print(out if listed else f"no runs in {args.folder}")

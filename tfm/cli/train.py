"""Train a model.

  tfm train --config=FILE.py[:ARGUMENT] [--config.KEY=VALUE …] --workdir=FOLDER [--quiet]
            [--trust]

A run whose loss or gradient stops being finite has diverged: the exit code is 3 then.
A run that was interrupted goes on where it was, and a finished one is not run again. The folder
holds config.json, profile.json, metrics.jsonl, summary.json, checkpoints, TensorBoard's files, and
in source/ a copy of the code of one's own that the config brings. --config=FOLDER/config.json goes
on from that copy, if --trust allows it to be run.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tfm.check.entries import check_entries
from tfm.config import arguments
from tfm.config import files as configs
from tfm.config.names import UserError
from tfm.run import spec
from tfm.runtime import cache_compilations, check_compiler, keep_memory
from tfm.train import loop

DIVERGED = 3  # exit code


class Bar:
    """A progress bar."""

    def __init__(self, run: spec.RunSpec, quiet: bool):
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self.task = self.bar.add_task("compiling", total=run.train.steps)

    def line(self, line: Mapping[str, Any]) -> None:
        if line["split"] == "train":
            speed = line["tokens"] / max(line["seconds"], 1e-9)
            rate = f"rate {line['learning_rate']:.2e}"
            text = f"loss {line['loss']:.4f}  {rate}  {speed:,.0f} tokens/s"
            self.bar.update(self.task, completed=line["step"], description=text)
        elif not self.bar.disable:
            names = [name for name in ("loss", "accuracy", "exact", "pearson") if name in line]
            values = ", ".join(f"{name} {line[name]:.4f}" for name in names)
            self.message(f"step {line['step']}: valid {values}")

    def message(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.bar.live.transient = error is not None  # then nothing of it is left on the screen
        self.bar.stop()


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    given = arguments.split(argv, options=("workdir",), flags=("quiet", "trust"))
    if "workdir" not in given.options:
        raise UserError("where to? Write --workdir=FOLDER")
    workdir = given.options["workdir"]
    trust = "trust" in given.flags
    run = spec.read(configs.from_command_line(given.config, spec.RunSpec, trust=trust))
    keep_memory()
    cache_compilations()
    check_compiler()
    check_entries(run)
    with Bar(run, "quiet" in given.flags) as bar:
        try:
            summary = loop.train(run, workdir, bar)
        except loop.Stopped as e:
            bar.message(f"stopped: {e}")
            sys.exit(128 + e.signal)
    print(json.dumps(summary, indent=1))
    if summary["status"] == "diverged":
        print(f"diverged at step {summary['diverged_at']}: try a lower rate", file=sys.stderr)
        sys.exit(DIVERGED)

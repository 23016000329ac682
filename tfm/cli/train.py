"""Trains a model, or resumes an interrupted run.

The run folder holds config.json, profile.json, metrics.jsonl, summary.json, checkpoints,
TensorBoard files and, in source/, a copy of the config's own code. A finished run is not run again;
--config=FOLDER/config.json continues from a run folder. The exit code is 3 if the run diverged: its
loss or gradient stopped being finite.
"""

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tfm.check.entries import check_entries
from tfm.cli.main import Parser
from tfm.config.files import from_command_line, user_entries
from tfm.run import spec
from tfm.runtime import cache_compilations, check_compiler, keep_memory
from tfm.terminal import plain
from tfm.train import loop

DIVERGED = 3  # exit code


class Bar:
    """Shows progress, speed and validation metrics on standard error."""

    def __init__(self, run: spec.RunSpec, quiet: bool):
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self.task = self.bar.add_task("compiling", total=run.train.steps)
        objective = run.objective.entry
        declared = [x.declares(run.model, objective, None) for x in (*run.during, *run.after)]
        metrics = itertools.chain(objective.declares(), *declared)
        self.headlines = {metric.name for metric in metrics if metric.headline}

    def line(self, line: Mapping[str, Any]) -> None:
        if line["split"] == "train" and "evaluator" not in line:
            speed = line["tokens"] / max(line["seconds"], 1e-9)
            rate = f"rate {line['learning_rate']:.2e}"
            text = f"loss {line['loss']:.4f}  {rate}  {speed:,.0f} tokens/s"
            self.bar.update(self.task, completed=line["step"], description=text)
        elif not self.bar.disable and "slice" not in line:
            values = [f"{name} {x:.4f}" for name, x in line.items() if name in self.headlines]
            where = " ".join(line[x] for x in ("split", "evaluator") if x in line)
            if values:
                self.message(f"step {line['step']}: {where} {', '.join(values)}")

    def message(self, text: str) -> None:
        self.bar.console.print(plain(text), highlight=False, markup=False)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.bar.live.transient = error is not None  # an error leaves no bar on the screen
        self.bar.stop()


def main(argv: Sequence[str]) -> int:
    parser = Parser("train", __doc__, config=spec.RunSpec)
    parser.add_value("--workdir", "FOLDER", "the run folder", required=True)
    parser.add_flag("--quiet", "show no progress bar")
    parser.add_trust()
    args = parser.parse(argv)
    run = spec.read(from_command_line(args.config, spec.RunSpec, trust=args.trust))
    keep_memory()
    cache_compilations()
    check_compiler()
    if user_entries(run):
        check_entries(run)
    with Bar(run, args.quiet) as bar:
        try:
            summary = loop.train(run, args.workdir, bar)
        except loop.Stopped as e:
            bar.message(f"stopped: {e}")
            return 128 + e.signal
    shown = {name: x for name, x in summary.items() if name != "metrics"}  # their declarations
    print(json.dumps(shown, indent=1))
    if summary["status"] != "diverged":
        return 0
    print(f"diverged at step {summary['diverged_at']}: try a lower rate", file=sys.stderr)
    return DIVERGED

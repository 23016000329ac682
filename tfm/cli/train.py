"""Trains a model, or resumes an interrupted run.

The run folder holds config.json, profile.json, metrics.jsonl, summary.json, checkpoints,
TensorBoard files and, in source/, a copy of the config's own code. A finished run is not run again;
--config=FOLDER/config.json continues from a run folder. The exit code is 3 if the run diverged: its
loss or gradient stopped being finite.
"""

import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tfm.check.entries import check_entries
from tfm.cli.main import Parser
from tfm.config.files import from_command_line, user_entries
from tfm.config.names import UserError
from tfm.data.reader import MASK, of_data
from tfm.run import spec
from tfm.run.folder import Folder
from tfm.runtime import cache_compilations, check_compiler, keep_memory
from tfm.terminal import plain
from tfm.train import loop

DIVERGED = 3  # exit code
PROMPT = 24  # characters of a text to continue
SHOWN = 160  # characters of any other text


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


def next_command(run: spec.RunSpec, workdir: str) -> str:
    """Returns a command that shows the trained model an example: the beginning of its text, or one
    of the validation data."""
    try:
        verb, *words = _prediction(run, Folder(workdir).read("data.json") or {})
    except UserError:  # the data were moved or edited meanwhile
        verb, words = "eval", []
    trust = ["--trust"] * bool(user_entries(run))
    return " ".join(["tfm", verb, *map(_quoted, [workdir, *words]), *trust])


def _quoted(word: str) -> str:
    """Quotes a word for the shell; if it has an apostrophe, with double quotes where they do."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)


def _prediction(run: spec.RunSpec, saved: Mapping[str, Any]) -> list[str]:
    """Returns the verb that fits the objective, an example of a text for it, and its options."""
    vocabulary = saved.get("vocabulary") if run.data.tokenizer is not None else None
    data, objective = spec.open_datasets(run, vocabulary), run.objective.entry
    dataset = data["train" if data["train"].form == "text" else "valid"]
    reader = of_data(dataset, run.data.dataset.entry, objective.added(dataset))
    example = dataset.take(np.zeros(1, np.int64))
    ids, segments = example.tokens.ids, example.segments
    parts = (ids, ids[:0]) if segments is None else (ids[segments == 0], ids[segments == 1])
    first, second = (plain(" ".join(reader.decode(part).split())) for part in parts)
    options = ["--part=0"] if reader.tasks else []
    if run.model.family == "word2vec" and first:
        return ["neighbors", max(first.split(), key=len)]
    if reader.numbers or not first:
        return ["eval", "--baselines"]
    if objective.classifies:
        return ["classify", first[:SHOWN], *([f"--second={second[:SHOWN]}"] if second else [])]
    if objective.tags:
        return ["tag", first[:SHOWN]]
    if objective.fills:
        words = first[:SHOWN].split()
        words[len(words) // 2] = MASK
        return ["fill", " ".join(words)]
    if not objective.writes or reader.form in ("labels", "tags"):
        return ["eval", "--baselines"]
    if not objective.continues(reader):
        return ["translate", first[:SHOWN], *options]
    start = first[:PROMPT].rpartition(" ")[0] or first[:PROMPT]  # whole words
    return ["generate", start, "--temperature=0.8", *options]


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
        if not args.quiet:
            print(f"try next: {next_command(run, args.workdir)}", file=sys.stderr)
        return 0
    print(f"diverged at step {summary['diverged_at']}: try a lower rate", file=sys.stderr)
    return DIVERGED

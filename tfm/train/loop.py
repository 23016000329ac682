"""The training loop, from a config to a summary, through any number of interruptions.

A run that was killed at any moment resumes from its newest complete checkpoint and ends with the
same results: batches are functions of (seed, step), counts between two lines of the log are part of
the state, and lines after the checkpoint are written again.
"""

import collections
import contextlib
import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax import numpy as jnp

from tfm.config.files import copy_source, user_entries
from tfm.config.names import UserError
from tfm.config.provenance import SOURCE
from tfm.config.spec import flat, to_tree
from tfm.data.dataset import Dataset
from tfm.data.plan.order import Prefetch
from tfm.data.reader import of_data
from tfm.evaluate import leaks, loss
from tfm.evaluate.evaluator import SPLITS, Evaluation, results_of
from tfm.objectives.base import Batch
from tfm.objectives.batches import Read, each_shape, read_of, train_batch
from tfm.run.checkpoint import Checkpoints
from tfm.run.evaluation import check_evaluators, context_of
from tfm.run.folder import Damaged, Folder, disk_errors, without_nonfinite
from tfm.run.identity import digests, identity, init_digest, profiles, record_profile
from tfm.run.library_code import is_stale
from tfm.run.load import LoadedRun
from tfm.run.spec import RunSpec, open_data, open_datasets, plan_of, train_flops
from tfm.runtime import check_memory, settings
from tfm.train.board import Board
from tfm.train.finetune import initial_variables, start_notes
from tfm.train.step import TrainState, run_numbers, run_steps, schedule, zero_metrics

TIMES = ("seconds", "wait")  # of a line of the log; all the rest is reproducible
AHEAD = 2  # steps that may be waiting for the device; a signal stops the run after them
SAVE_SECONDS = 180.0  # between two saves without `save_every`
SAVE_SHARE = 0.05  # of the time, at most, that these saves may take


class Watcher(Protocol):
    """Shows the progress of a run: each line of the log, and messages for people."""

    def line(self, line: Mapping[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...


class Stopped(Exception):  # noqa: N818
    """The run was stopped by a signal and has saved its state."""

    def __init__(self, text: str, signal: int):
        super().__init__(text)
        self.signal = signal


class Planned(NamedTuple):
    """The id of a run whose sizes are known, and what must not change until it starts."""

    id: str
    fingerprints: tuple[str, ...]  # of its data sets
    entries: Mapping[str, str]  # digests of the user's entries that it names
    init: str | None  # digest of the weights that it starts from


def train(
    run: RunSpec,
    workdir: str,
    watcher: Watcher,
    patience: float = 0.0,
    planned: Planned | None = None,
) -> dict[str, Any]:
    """Trains, or resumes training, in a folder; returns the summary.

    Waits up to `patience` seconds for another process to leave the folder. The sizes and the id of
    a run that was `planned` are taken from there.
    """
    folder = Folder(workdir)
    begun = folder.read("data.json") or {} if run.data.tokenizer is not None else {}
    if planned is None:
        run, data = open_data(run, begun.get("vocabulary"))
    else:
        data = open_datasets(run, begun.get("vocabulary"))
    init = init_digest(run, workdir)
    parts = tuple(dataset.fingerprint for dataset in data.values()), digests(run), init
    name = identity(run, *parts) if planned is None else planned.id
    if planned not in (None, (name, *parts)):
        raise UserError(f"a file that decides the result of {name} was edited since it began")
    with folder.lock(patience):
        try:
            known = folder.read("config.json")
            if known is not None and "id" not in known:
                raise UserError(f"{workdir} holds an imported model; choose another folder")
            if known is not None and known["id"] != name:
                raise UserError(
                    f"{workdir} holds another run: {_difference(known, run)}. Undo that, or "
                    f"write another --workdir; train.init_from={workdir} starts from its weights"
                )
            summary = folder.summary(name)
        except Damaged as e:
            raise UserError(f"{e}; delete the folder {workdir} to run it again") from e
        if summary is not None:
            stale = is_stale(folder.read("profile.json"), settings())
            watcher.message(f"{workdir}: finished before" + ", by other library code" * stale)
            return summary
        if not any((folder.path / "checkpoints").glob("[0-9]*")):
            check_leak(run, data, watcher)
            check_evaluators(run, data)
        copied = (folder.path / SOURCE).is_dir()
        entries = known["entries"] if known and copied else copy_source(run, folder.path)
        keys = {"id": name, "entries": entries, "init_digest": init}
        folder.write("config.json", {**keys, **to_tree(run)})
        train = data["train"]
        known = {name: getattr(train, name) for name in ("fingerprint", "vocab", "vocabulary")}
        reader = of_data(train, run.data.dataset.entry, run.objective.entry.added(train))
        folder.write("data.json", {**known, "reader": reader.to_tree()})
        for note in dict.fromkeys(note for dataset in data.values() for note in dataset.notes):
            watcher.message(note)
        record_profile(run, folder, watcher.message)
        with _Interrupts() as stop, disk_errors(workdir):
            return _Training(run, name, folder, data, watcher, stop).run()


def _difference(known: Mapping[str, Any], run: RunSpec) -> str:
    """Describes the settings in which a run differs from that of a config.json."""
    there, here = (flat(json.loads(json.dumps(x))) for x in (known, to_tree(run)))
    keys = [key for key in here if there.get(key, here[key]) != here[key]]
    texts = [f"{key} is {there[key]!r} there and {here[key]!r} here" for key in keys[:5]]
    more = f", and {len(keys) - 5} more keys differ" if len(keys) > 5 else ""
    before = {name: digest for name, _, digest, *_ in known.get("entries") or ()}
    edited = [f"{n} of {x.file}" for n, x in user_entries(run).items() if before.get(n) != x.digest]
    code = f"{', '.join(edited)} was edited since it began" if edited else "its data were edited"
    return ", ".join(texts) + more if keys else code


def check_leak(run: RunSpec, data: Mapping[str, Dataset], watcher: Watcher) -> None:
    """Raises if the model sees what it must predict: its loss would mean nothing."""
    objective, train, valid = run.objective.entry, data["train"], data["valid"]

    def model() -> tuple[Any, Any]:
        init, _, eval_step = run_steps(run)
        first = train_batch(objective, train, plan_of(run, train), run.seed, 0)
        check_memory((jax.eval_shape(init, first, jnp.uint32(run.seed)), first))
        return eval_step, init(first, jnp.uint32(run.seed)).variables()

    shorter = min(valid, train, key=lambda dataset: dataset.max_length)
    leak = leaks.find(objective, valid, run.data.eval_batch, model, shorter)
    if leak is None:
        return
    if not run.train.allow_leak:
        raise UserError(
            f"objective {run.objective!r}: {leak.reason}. The model sees the answer: {leak.cure}. "
            "train.allow_leak=True trains it anyway"
        )
    watcher.message(f"the model sees the answer: {leak.reason}")


@dataclasses.dataclass
class _Training:
    spec: RunSpec
    name: str
    folder: Folder
    data: Mapping[str, Dataset]
    watcher: Watcher
    stop: "_Interrupts"

    def __post_init__(self) -> None:
        run, folder, data = self.spec, self.folder, self.data
        self.objective = run.objective.entry
        self.plan = plan_of(run, data["train"])
        self.init, self.train_step, self.eval_step = run_steps(run)
        self.numbers = run_numbers(run)
        self.checkpoints = Checkpoints(folder.path, run.train.keep)
        self.board = Board(folder.path / "tensorboard")
        self.first = self._batch(0)
        self.shapes = each_shape(self.objective, data["train"], self.plan)
        self.share = schedule(run.optimizer.schedule, run.train.steps)

    def run(self) -> dict[str, Any]:
        train = self.spec.train
        try:
            state = self._restore()
            begin = int(state.step)
            logged = begin % train.log_every == 0 or begin == train.steps
            if logged and int(state.diverged) >= 0:  # killed between its last save and its end
                return self._finish(state, "diverged")
            logged_at = begin - begin % train.log_every
            self.read = [self._counted(step)[1] for step in range(logged_at, begin)]
            with Prefetch(self._counted, begin, train.steps) as batches:
                return self._steps(state, batches)
        finally:  # before other processes may use the folder; an error is already raised
            with contextlib.suppress(Exception):
                self.checkpoints.close()
            with contextlib.suppress(OSError):
                self.board.close()

    def _steps(self, state: TrainState, batches: Prefetch[tuple[Batch, Read]]) -> dict[str, Any]:
        train = self.spec.train
        eval_every = train.eval_every or train.steps
        queue = collections.deque[jax.Array]()
        self.clock = saved_at = time.monotonic()
        pause = SAVE_SECONDS
        for done in range(int(state.step) + 1, train.steps + 1):
            batch, read = batches.next()
            self.read.append(read)
            state = self.train_step(state, batch, self.numbers)
            queue.append(jnp.copy(state.step))  # `state` itself is donated to the next step
            if len(queue) > AHEAD:
                queue.popleft().block_until_ready()
            last = done == train.steps
            logs = done % train.log_every == 0 or last
            if logs:
                state = self._log(done, state, batches)
            score = self._evaluate(done, state) if done % eval_every == 0 or last else None
            now = time.monotonic()
            due = done % train.save_every == 0 if train.save_every else now - saved_at > pause
            if score is not None or due or self.stop.asked:
                self.folder.check_lock()
                jax.block_until_ready(state)
                now = time.monotonic()
                self.checkpoints.save(done, state.items(), score, self.folder.logged)
                saved_at = time.monotonic()
                pause = max(SAVE_SECONDS, (saved_at - now) / SAVE_SHARE)
            if logs and int(state.diverged) >= 0:
                return self._finish(state, "diverged")
            if self.stop.asked and not last:
                self.checkpoints.wait()
                raise Stopped(f"saved at step {done}", self.stop.asked)
        return self._finish(state, "done")

    def _restore(self) -> TrainState:
        seed = jnp.uint32(self.spec.seed)
        like = jax.eval_shape(self.init, self.first, seed)
        check_memory((like, self.first))
        items, damaged = self.checkpoints.newest(like.items(), self.folder.logged_until)
        for step, text in damaged.items():
            self.watcher.message(f"{text}; going on from the one before")
            self.checkpoints.delete(step)
        if items is None:
            state = self._initialized(self.init(self.first, seed))
        else:
            state = TrainState(**items["variables"], **items["training"])
            self.watcher.message(f"going on from step {int(state.step)}")
        self.folder.truncate_log(int(state.step))
        return state

    def _initialized(self, state: TrainState) -> TrainState:
        """Loads the weights of `train.init_from`, if there is one, into the first state."""
        train = self.spec.train
        if train.init_from is None:
            return state
        before = {"params": state.params, **state.model_state}
        data = self.data["train"]
        after, report = initial_variables(
            before, train.init_from, train.init_pattern, data.vocab, data.vocabulary
        )
        if init_digest(self.spec) != init_digest(self.spec, str(self.folder.path)):
            raise UserError(f"train.init_from={train.init_from!r} has changed since the run began")
        params = after.pop("params")
        for note in start_notes(self.spec, report):
            self.watcher.message(note)
        self.folder.write("init.json", report)
        ema = None if state.ema is None else jax.tree.map(jnp.copy, params)  # both are donated
        return state.replace(params=params, model_state=after, ema=ema)

    def _batch(self, step: int) -> Batch:
        return train_batch(self.objective, self.data["train"], self.plan, self.spec.seed, step)

    def _counted(self, step: int) -> tuple[Batch, Read]:
        batch = self._batch(step)
        return batch, read_of(batch)

    def _log(self, done: int, state: TrainState, batches: Prefetch[Any]) -> TrainState:
        sums = {name: float(x) for name, x in jax.device_get(state.metrics).items()}
        count, taken = max(sums["count"], 1.0), max(sums["steps"], 1.0)
        tokens = sum(read.tokens for read in self.read)
        peak, now = self.spec.optimizer.learning_rate, jnp.int32(done - 1)
        self._write(
            {
                "step": done,
                "split": "train",
                "loss": sums["loss"] / count,
                "accuracy": sums["correct"] / count,
                "gradient": sums["norm"] / taken,
                "learning_rate": peak * float(self.share(now)),
                "skipped": int(state.skipped),
                "tokens": tokens,
                "padding": sum(read.padding for read in self.read) / max(tokens, 1),
                "seconds": time.monotonic() - self.clock,
                "wait": batches.waited,
            }
        )
        self.clock, batches.waited, self.read = time.monotonic(), 0.0, []
        return state.replace(metrics=zero_metrics())

    def _evaluate(self, done: int, state: TrainState) -> float:
        metrics = self._measure(state, self.data["valid"])
        self._write({"step": done, "split": "valid", **metrics})
        self._run_evaluations(self.spec.during, done, state)
        return metrics["loss"]

    def _run_evaluations(
        self, evaluations: Sequence[Evaluation], done: int, state: TrainState, **marks: Any
    ) -> dict[str, Mapping[str, Any]]:
        """Runs and logs the config's evaluations; returns their details by "split:name"."""
        if not evaluations:
            return {}
        run, variables = self.spec, state.variables()
        loaded = LoadedRun(self.folder.path, done, run, run.model.build(), variables, [])
        vars(loaded)["data"] = data = self.data
        context = context_of(loaded, self.objective, self.eval_step, data.__getitem__, run.data)
        details = {}
        for evaluation in evaluations:
            result = evaluation.run(context)
            details[f"{evaluation.split}:{evaluation.name}"] = result.details
            for line in evaluation.lines(result):
                self._write({"step": done, **line, **marks})
        return details

    def _measure(self, state: TrainState, dataset: Dataset) -> dict[str, float]:
        size, objective = self.spec.data.eval_batch, self.objective
        sums = loss.measure(objective, dataset, self.eval_step, state.variables(), size)
        return loss.metrics(objective, sums, dataset)

    def _write(self, line: Mapping[str, Any]) -> None:
        self.folder.log(line)
        self.board.write(line)
        self.watcher.line(line)

    def _finish(self, state: TrainState, status: str) -> dict[str, Any]:
        self.checkpoints.wait()
        self.folder.check_log()
        after = self.spec.after if status == "done" else []
        details = self._run_evaluations(after, int(state.step), state, after=True)
        lines, valid = self.folder.read_log("valid"), self.data["valid"]
        summary = {
            "id": self.name,
            "status": status,
            "steps": int(state.step),
            "skipped": int(state.skipped),
            "parameters": sum(x.size for x in jax.tree.leaves(state.params)),
            "flops": train_flops(self.spec, self.shapes),
            "shapes": len(self.shapes),
            "limits": {
                "best": valid.best and valid.best.token,
                "floors": loss.floors(self.objective, self.data["train"], valid),
            },
            "valid": _without(lines[-1]) if lines else None,
            "best": _without(min(lines, key=_loss)) if lines else None,
            "tests": {x: self._measure(state, self.data[x]) for x in self.data if x not in SPLITS},
        }
        if self.spec.during or after:
            log = [line for line in self.folder.read_log() if line["step"] == int(state.step)]
            summary["evaluations"] = results_of(log, details)
        declared = {"loss": self.objective.declares(valid)}
        for x in (*self.spec.during, *after):
            declared[x.name] = x.declares(self.spec.model, self.objective, self.data[x.split])
        summary["metrics"] = {x: [*map(dataclasses.asdict, declared[x])] for x in declared}
        if status == "diverged":
            summary["diverged_at"] = int(state.diverged)
        self.folder.write("profile.json", {**profiles(self.folder), "log": self.folder.logged})
        self.folder.write("summary.json", summary)
        return without_nonfinite(summary)


def _loss(line: Mapping[str, Any]) -> float:
    """Returns the loss of a line, or infinity if it is not finite."""
    return math.inf if line["loss"] is None else line["loss"]


def _without(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("split", *TIMES)}


class _Interrupts:
    """Makes SIGTERM or a first Ctrl-C stop the run at the next step."""

    asked = 0  # the signal that asked to stop

    def __enter__(self) -> "_Interrupts":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, _: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

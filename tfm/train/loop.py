"""Training from a config to a summary, through any number of interruptions.

After a kill at any moment a run goes on from its newest whole checkpoint and ends as if nothing had
happened: batches are functions of (seed, step), what is counted between two lines of the log is
part of the state, and lines that a checkpoint does not cover are written again.
"""

import contextlib
import dataclasses
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import jax
import numpy as np
from jax import numpy as jnp

from tfm.data.pipeline import Source, batch, in_order
from tfm.evaluate.metrics import metrics, over
from tfm.inspect import describe
from tfm.models import build
from tfm.models.spec import DropoutSpec
from tfm.names import UserError, read
from tfm.objectives.tokens import inputs_of
from tfm.train import step as steps
from tfm.train.board import Board
from tfm.train.checkpoint import Checkpoints
from tfm.train.folder import Folder, finite, room
from tfm.train.identity import entries, identity, is_stale, profile
from tfm.train.optimizer import OptimizerSpec
from tfm.train.schedule import SCHEDULES
from tfm.train.spec import RunSpec, sources


class Watcher(Protocol):
    """Who is told how it goes: `line` is what was logged, `message` is for a person."""

    def line(self, line: Mapping[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...


class Stopped(Exception):  # noqa: N818
    """Asked to stop by a signal, the run has saved its state."""

    def __init__(self, text: str, signal: int):
        super().__init__(text)
        self.signal = signal


def train(
    run: RunSpec,
    workdir: str,
    watcher: Watcher,
    patience: float = 0.0,
    expected: str | None = None,
) -> dict[str, Any]:
    """Train, or go on training, in a folder; the summary when it is done.

    `patience` is for how many seconds to wait for another process to leave the folder, `expected`
    the id that the run had when it was planned.
    """
    data = sources(run)
    name = identity(run, [source.fingerprint for source in data.values()])
    if expected not in (None, name):
        raise UserError(f"a file that decides the result of {expected} was edited since it began")
    folder = Folder(workdir)
    with folder.alone(patience):
        known = folder.read("config.json")
        if known is not None and known["id"] != name:
            raise UserError(f"{workdir} holds another run ({known['id']}, not {name})")
        summary = folder.read("summary.json")
        if summary is not None:
            old = ", by other library code" if is_stale(folder.read("profile.json")) else ""
            watcher.message(f"{workdir}: finished before{old}")
            return summary
        own = [[entry, *where] for entry, where in entries(run).items()]
        folder.write("config.json", {"id": name, "entries": own, **asdict(run)})
        _record_profile(folder, watcher)
        with _Interrupts() as stop, room(workdir):
            return _Training(run, name, folder, data, watcher, stop).run()


class _Training:
    def __init__(
        self,
        run: RunSpec,
        name: str,
        folder: Folder,
        data: Mapping[str, Source],
        watcher: Watcher,
        stop: "_Interrupts",
    ):
        self.spec, self.name, self.folder, self.data = run, name, folder, data
        self.watcher, self.stop = watcher, stop
        self.start, self.go, self.look = compiled(run)
        self.numbers = steps.numbers_of(run.optimizer, run.train, build.rates(run.model), run.seed)
        self.checkpoints = Checkpoints(folder.path / "checkpoints", run.train.keep)
        self.board = Board(folder.path / "tensorboard")
        self.tokens = tokens_in(self._batch(0))
        self.share = _schedule(run.optimizer.schedule, run.train.steps)

    def run(self) -> dict[str, Any]:
        try:
            return self._run()
        finally:  # before the folder is left to others; what went wrong is already on its way
            with contextlib.suppress(Exception):
                self.checkpoints.close()
            with contextlib.suppress(OSError):
                self.board.close()

    def _run(self) -> dict[str, Any]:
        train = self.spec.train
        eval_every = train.eval_every or train.steps
        save_every = train.save_every or eval_every
        state = self._begin()
        self.clock = time.monotonic()
        begin = int(state["step"])
        seen = begin % train.log_every == 0 or begin == train.steps
        if seen and int(state["diverged"]) >= 0:  # killed between its last save and its end
            return self._finish(state, "diverged")
        for now in range(begin, train.steps):
            state = self.go(state, self._batch(now), self.numbers)
            done = now + 1
            last = done == train.steps
            logs = done % train.log_every == 0 or last
            if logs:
                state = self._log(done, state)
            loss = None
            if done % eval_every == 0 or last:
                loss = self._evaluate(done, state)
            if done % save_every == 0 or last or self.stop.asked:
                self.checkpoints.save(done, state, loss)
            if logs and int(state["diverged"]) >= 0:
                return self._finish(state, "diverged")
            if self.stop.asked and not last:
                self.checkpoints.wait()
                raise Stopped(f"saved at step {done}", self.stop.asked)
        return self._finish(state, "done")

    def _begin(self) -> steps.State:
        first, seed = self._batch(0), jnp.uint32(self.spec.seed)
        like = jax.eval_shape(self.start, first, seed)
        state, wrong = self.checkpoints.newest(like)
        for step, text in wrong.items():
            self.watcher.message(f"{text}; going on from the one before")
            self.checkpoints.delete(step)
        if state is None:
            state = self.start(first, seed)
        else:
            self.watcher.message(f"going on from step {int(state['step'])}")
        self.folder.forget_after(int(state["step"]))
        return state

    def _batch(self, now: int) -> dict[str, np.ndarray]:
        return batch(self.data["train"], self.spec.seed, now, self.spec.data.batch)

    def _log(self, done: int, state: steps.State) -> steps.State:
        since = {name: float(x) for name, x in jax.device_get(state["since"]).items()}
        count, taken = max(since["count"], 1.0), max(since["steps"], 1.0)
        seconds = time.monotonic() - self.clock
        self.clock = time.monotonic()
        peak, now = self.spec.optimizer.learning_rate, jnp.int32(done - 1)
        self._write(
            {
                "step": done,
                "split": "train",
                "loss": since["loss"] / count,
                "accuracy": since["right"] / count,
                "gradient": since["norm"] / taken,
                "learning_rate": peak * float(self.share(now)),
                "skipped": int(state["skipped"]),
                "tokens": int(taken) * self.tokens,
                "seconds": seconds,
            }
        )
        return {**state, "since": jax.tree.map(jnp.zeros_like, state["since"])}

    def _evaluate(self, done: int, state: steps.State) -> float:
        found = self._measure(state, self.data["valid"])
        self._write({"step": done, "split": "valid", **found})
        return found["loss"]

    def _measure(self, state: steps.State, source: Source) -> dict[str, float]:
        sums = over(self.look, variables(state), in_order(source, self.spec.data.eval_batch))
        return metrics(sums, source.bytes_per_token)

    def _write(self, line: Mapping[str, Any]) -> None:
        self.folder.log(line)
        self.board.write(line)
        self.watcher.line(line)

    def _finish(self, state: steps.State, status: str) -> dict[str, Any]:
        self.checkpoints.wait()
        lines = [line for line in self.folder.logged() if line["split"] == "valid"]
        summary = {
            "id": self.name,
            "status": status,
            "steps": int(state["step"]),
            "skipped": int(state["skipped"]),
            "parameters": sum(x.size for x in jax.tree.leaves(state["params"])),
            "flops": train_flops(self.spec, self._batch(0)),
            "valid": _without(lines[-1]) if lines else None,
            "best": _without(min(lines, key=_loss)) if lines else None,
            "tests": {
                name: self._measure(state, source)
                for name, source in self.data.items()
                if name not in ("train", "valid")
            },
        }
        if status == "diverged":
            summary["diverged_at"] = int(state["diverged"])
        self.folder.write("summary.json", summary)
        return finite(summary)


def _record_profile(folder: Folder, watcher: Watcher) -> None:
    """Note where the run runs; if that has changed since it began, say so."""
    before, now = (folder.read("profile.json") or {"profiles": []})["profiles"], profile()
    if before and now != before[-1]:
        keys = ", ".join(key for key in now if now[key] != before[-1].get(key))
        watcher.message(f"begun under another profile ({keys}): bits may differ from one run alone")
    if not before or now != before[-1]:
        folder.write("profile.json", {"profiles": [*before, now]})


def tokens_in(batch: Mapping[str, np.ndarray]) -> int:
    """What a model reads of a batch, padding too: that is computed as well."""
    return sum(x.size for name, x in inputs_of(batch).items() if x.dtype.kind in "iu")


def variables(state: steps.State) -> dict[str, Any]:
    """What is evaluated: the running mean of the weights, where there is one."""
    return {"params": state.get("ema", state["params"]), **state["rest"]}


def _loss(line: Mapping[str, Any]) -> float:
    """For the choice of the best; what is not a number comes last."""
    return math.inf if line["loss"] is None else line["loss"]


def _without(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("split", "seconds")}


def train_flops(run: RunSpec, batch: Mapping[str, Any]) -> int:
    """Forward and backward over all steps, for batches of this shape; not the optimiser's."""
    model, _, _ = structure(run)
    shapes = {name: (x.shape, x.dtype.name) for name, x in inputs_of(batch).items()}
    return run.train.steps * _step_flops(model, tuple(shapes.items()))


@functools.lru_cache(maxsize=64)
def _step_flops(model, shapes) -> int:
    inputs = {name: jax.ShapeDtypeStruct(*what) for name, what in shapes}
    return describe.flops(model, inputs)[1].total


def compiled(run: RunSpec) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """init, step and evaluate; runs that differ only in numbers share them."""
    return _compiled(*structure(run))


def structure(run: RunSpec) -> tuple[Any, OptimizerSpec, steps.StepSpec]:
    """What is compiled: the run without its numbers."""
    model: Any = run.model
    if hasattr(model, "dropout"):
        places = {k: _on(v) for k, v in asdict(model.dropout).items()}
        model = dataclasses.replace(model, dropout=DropoutSpec(**places))
    opt = dataclasses.replace(
        run.optimizer,
        learning_rate=1.0,
        weight_decay=_on(run.optimizer.weight_decay),
        clip=_on(run.optimizer.clip),
    )
    step = steps.StepSpec(
        steps=run.train.steps,
        accumulate=run.train.accumulate,
        ema=_on(run.train.ema),
        label_smoothing=_on(run.train.label_smoothing),
        not_finite=run.train.not_finite,
    )
    return model, opt, step


def _on(value: float | None) -> float | None:
    """Whether it is on is structure; how much it is, is not."""
    return None if value is None else 0.5


@functools.lru_cache(maxsize=16)
def _compiled(model, opt, step):
    return steps.compiled(build.model(model), opt, step)


@functools.lru_cache(maxsize=16)
def _schedule(text: str, steps: int) -> Callable[[Any], Any]:
    share = read(text, SCHEDULES, "optimizer.schedule")
    return jax.jit(lambda step: share(step, steps))


class _Interrupts:
    """Within it SIGTERM, or a first Ctrl-C, asks to stop at the next step."""

    asked = 0  # the signal that did

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

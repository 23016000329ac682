"""Training from a config to a summary, through any number of interruptions.

After a kill at any moment a run goes on from its newest whole checkpoint and ends as if nothing had
happened: batches are functions of (seed, step), what is counted between two lines of the log is
part of the state, and lines that a checkpoint does not cover are written again.
"""

import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax import numpy as jnp

from tfm.data.pipeline import Source, batch, in_order
from tfm.evaluate.metrics import metrics, over
from tfm.models import build
from tfm.models.spec import DropoutSpec
from tfm.names import UserError, read
from tfm.train import step as steps
from tfm.train.checkpoint import Checkpoints
from tfm.train.folder import Folder, different, digest, profile
from tfm.train.schedule import SCHEDULES
from tfm.train.spec import RunSpec, sources

NO_RESULT = ("log_every", "save_every", "keep")  # settings that change no number


class Watcher(Protocol):
    """Who is told how it goes: `line` is what was logged, `message` is for a person."""

    def line(self, line: Mapping[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...


class Stopped(Exception):  # noqa: N818
    """Asked to stop, the run has saved its state."""


def identity(run: RunSpec, data: Mapping[str, Source]) -> str:
    """A hash of what decides the result: settings off their defaults, and the data."""
    train = {k: v for k, v in different(run.train).items() if k not in NO_RESULT}
    return digest(
        {
            "seed": run.seed,
            "objective": run.objective,
            "family": run.model.family,
            "model": different(run.model),
            "data": {k: v for k, v in different(run.data).items() if k not in ("task", "tests")},
            "sources": [source.fingerprint for source in data.values()],
            "optimizer": different(run.optimizer),
            "train": train,
        }
    )


def train(run: RunSpec, workdir: str, watcher: Watcher) -> dict[str, Any]:
    """Train, or go on training, in a folder; the summary when it is done."""
    data = sources(run)
    name = identity(run, data)
    folder = Folder(workdir)
    with folder.alone():
        known = folder.read("config.json")
        if known is not None and known["id"] != name:
            raise UserError(f"{workdir} holds another run ({known['id']}, not {name})")
        summary = folder.read("summary.json")
        if summary is not None:
            watcher.message(f"{workdir}: finished before")
            return summary
        folder.write("config.json", {"id": name, **_plain(run)})
        folder.write("profile.json", profile())
        with _interrupts() as stop:
            return _Training(run, folder, data, watcher, stop).run()


class _Training:
    def __init__(
        self,
        run: RunSpec,
        folder: Folder,
        data: Mapping[str, Source],
        watcher: Watcher,
        stop: threading.Event,
    ):
        self.spec, self.folder, self.data, self.watcher, self.stop = (
            run,
            folder,
            data,
            watcher,
            stop,
        )
        self.start, self.go, self.look = compiled(run)
        self.numbers = steps.numbers_of(run.optimizer, run.train, build.rates(run.model), run.seed)
        self.checkpoints = Checkpoints(folder.path / "checkpoints", run.train.keep)
        self.share = read(run.optimizer.schedule, SCHEDULES, "optimizer.schedule")

    def run(self) -> dict[str, Any]:
        train = self.spec.train
        eval_every = train.eval_every or train.steps
        save_every = train.save_every or eval_every
        state = self._begin()
        self.clock = time.monotonic()
        for now in range(int(state["step"]), train.steps):
            state = self.go(state, self._batch(now), self.numbers)
            done = now + 1
            last = done == train.steps
            logs = done % train.log_every == 0 or last
            if logs:
                state = self._log(done, state)
            loss = None
            if done % eval_every == 0 or last:
                loss = self._evaluate(done, state)
            if done % save_every == 0 or last or self.stop.is_set():
                self.checkpoints.save(done, state, loss)
            if logs and int(state["diverged"]) >= 0:
                return self._finish(state, "diverged")
            if self.stop.is_set() and not last:
                self.checkpoints.wait()
                raise Stopped(f"saved at step {done}")
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
                "learning_rate": peak * float(self.share(now, self.spec.train.steps)),
                "skipped": int(state["skipped"]),
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
        self.watcher.line(line)

    def _finish(self, state: steps.State, status: str) -> dict[str, Any]:
        self.checkpoints.wait()
        lines = [line for line in self.folder.logged() if line["split"] == "valid"]
        summary = {
            "id": digest_of(self.folder),
            "status": status,
            "steps": int(state["step"]),
            "skipped": int(state["skipped"]),
            "parameters": sum(x.size for x in jax.tree.leaves(state["params"])),
            "valid": _without(lines[-1]) if lines else None,
            "best": _without(min(lines, key=lambda line: line["loss"])) if lines else None,
            "tests": {
                name: self._measure(state, source)
                for name, source in self.data.items()
                if name not in ("train", "valid")
            },
        }
        if status == "diverged":
            summary["diverged_at"] = int(state["diverged"])
        self.checkpoints.close()
        self.folder.write("summary.json", summary)
        return summary


def digest_of(folder: Folder) -> str:
    return (folder.read("config.json") or {})["id"]


def variables(state: steps.State) -> dict[str, Any]:
    """What is evaluated: the running mean of the weights, where there is one."""
    return {"params": state.get("ema", state["params"]), **state["rest"]}


def _without(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("split", "seconds")}


def _plain(run: RunSpec) -> dict[str, Any]:
    """As a config that describes the same run again."""
    return dataclasses.asdict(run)


def compiled(run: RunSpec) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """init, step and evaluate; runs that differ only in numbers share them."""
    model: Any = run.model
    if hasattr(model, "dropout"):
        places = {k: _on(v) for k, v in dataclasses.asdict(model.dropout).items()}
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
    return _compiled(model, opt, step)


def _on(value: float | None) -> float | None:
    """Whether it is on is structure; how much it is, is not."""
    return None if value is None else 0.5


@functools.lru_cache(maxsize=16)
def _compiled(model, opt, step):
    return steps.compiled(build.model(model), opt, step)


class _interrupts:  # noqa: N801
    """Within it, SIGTERM asks to stop at the next step."""

    def __enter__(self) -> threading.Event:
        self.event = threading.Event()
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, lambda *_: self.event.set())
        return self.event

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)

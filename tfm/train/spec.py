"""What a run is: a model, its data, what is wanted of it, and how it is trained."""

import dataclasses
import os
import pathlib
from typing import Any

import jax
from ml_collections import ConfigDict

from tfm import origin
from tfm.config import from_spec, run_file, to_spec
from tfm.config import load as load_config
from tfm.data.pipeline import Source, in_order, load
from tfm.models import build
from tfm.models.spec import EncoderSpec, ModelSpec
from tfm.names import UserError, pick, suggest
from tfm.objectives.tokens import inputs_of
from tfm.train import optimizer
from tfm.train.optimizer import OptimizerSpec
from tfm.train.step import StepSpec

OBJECTIVES = {  # objective → the families that serve it
    "next_token": ("decoder", "recurrent"),
    "seq2seq": ("encoder_decoder", "seq2seq"),
    "tag": ("encoder", "recurrent"),
    "classify": ("encoder", "recurrent", "bag", "convolution"),
}
NOT_FINITE = {
    "stop": "stop, and mark the run as diverged",
    "skip": "leave the step out, and count it",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec:
    task: str
    examples: int | None = None  # to train on; None: all there are
    valid_examples: int | None = None  # to evaluate on
    tests: tuple[str, ...] = ()  # more tasks to evaluate on at the end, as other lengths
    seed: int = 0  # which examples there are; the order is the run's
    batch: int = 64
    eval_batch: int = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSpec(StepSpec):
    log_every: int = 50
    eval_every: int | None = None  # None: at the end
    save_every: int | None = None  # None: when it is evaluated
    keep: int = 2  # checkpoints, besides the best


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    seed: int
    objective: str
    model: ModelSpec
    data: DataSpec
    optimizer: OptimizerSpec
    train: TrainSpec


PARTS: dict[str, type] = {"data": DataSpec, "optimizer": OptimizerSpec, "train": TrainSpec}


def read(config: ConfigDict) -> RunSpec:
    """The run that a config describes; every key known, every value of its type."""
    known = ("seed", "objective", "model", *PARTS)
    for key in config:
        if key not in known:
            raise UserError(f"unknown key {key!r}{suggest(key, known)}")
    for key in ("objective", "data", "train"):
        if key not in config:
            raise UserError(f"missing key {key!r}: a run needs {', '.join(known)}")
    seed, objective = config.get("seed", 0), config["objective"]
    if not isinstance(objective, str):
        raise UserError(f"objective must be a name, not {objective!r}")
    parts: dict[str, Any] = {}
    for name, cls in PARTS.items():
        group = config.get(name, ConfigDict())
        if not isinstance(group, ConfigDict):
            raise UserError(f"{name} must be a group, not {group!r}")
        parts[name] = to_spec(cls, group, f"{name}.")
    run = RunSpec(seed=seed, objective=objective, model=build.spec(config), **parts)
    check(run)
    return run


def of_folder(workdir: str) -> RunSpec:
    """The run that a folder holds; the files whose tables it uses are run first."""
    held = load_config(os.path.join(workdir, "config.json")).to_dict()
    for name, file, digest in held.pop("entries", []):
        table, _, entry = name.partition(".")
        run_file(pathlib.Path(file))
        if origin.digest(pathlib.Path(file), table, entry) != digest:
            raise UserError(f"{workdir}: {table}[{entry!r}] of {file} was edited since it was run")
    held.pop("id", None)
    return read(ConfigDict(held))


def fill(config: ConfigDict) -> ConfigDict:
    """The config with a value for every key, so that each can be overridden."""
    run = read(config)
    tree = {"seed": run.seed, "objective": run.objective, "model": from_spec(run.model)}
    return ConfigDict(tree | {name: from_spec(getattr(run, name)) for name in PARTS}).lock()


def check(run: RunSpec) -> None:
    """Raise what can be known without data or compilation."""
    if type(run.seed) is not int or not 0 <= run.seed < 2**32:
        raise UserError(f"seed={run.seed!r} must be a whole number from 0 to 2³² − 1")
    families = pick(OBJECTIVES, run.objective, "objective")
    if run.model.family not in families:
        fits = [name for name, others in OBJECTIVES.items() if run.model.family in others]
        raise UserError(
            f"objective={run.objective!r} is for {', '.join(families)}; model.family="
            f"{run.model.family!r} is for: {', '.join(fits) or 'none yet'}"
        )
    shape = {"next_token": "N:N", "tag": "N:N", "classify": "N:1"}.get(run.objective)
    if getattr(run.model, "shape", shape) != shape:
        raise UserError(f"objective={run.objective!r} needs model.shape={shape!r}")
    if isinstance(run.model, EncoderSpec) and run.model.heads != (run.objective,):
        raise UserError(f"objective={run.objective!r} needs model.heads=({run.objective!r},)")
    optimizer.check(run.optimizer)
    pick(NOT_FINITE, run.train.not_finite, "train.not_finite")
    data, train = run.data, run.train
    least = {
        "data.examples": data.examples,
        "data.valid_examples": data.valid_examples,
        "data.batch": data.batch,
        "data.eval_batch": data.eval_batch,
        "train.steps": train.steps,
        "train.log_every": train.log_every,
        "train.eval_every": train.eval_every,
        "train.save_every": train.save_every,
        "train.keep": train.keep,
        "train.accumulate": train.accumulate,
    }
    for key, value in least.items():
        if value is not None and value < 1:
            raise UserError(f"{key}={value} must be at least 1")
    if len(set(data.tests)) < len(data.tests):
        raise UserError(f"data.tests={data.tests} names a task twice")
    if data.batch % train.accumulate:
        raise UserError(f"train.accumulate={train.accumulate} must divide data.batch={data.batch}")
    for key, rate in {"ema": train.ema, "label_smoothing": train.label_smoothing}.items():
        if rate is not None and not 0 <= rate < 1:
            raise UserError(f"train.{key}={rate} must be in [0, 1)")


def sources(run: RunSpec, peek: bool = False) -> dict[str, Source]:
    """The examples to train on, to evaluate on, and those of `data.tests` by their spelling.

    What does not fit the model is an error. With `peek` there is one example of each.
    """
    data, found = run.data, dict[str, Source]()
    wanted = {"train": (data.task, data.examples), "valid": (data.task, data.valid_examples)}
    for name, (task, count) in wanted.items():
        found[name] = load(task, name, run.objective, count, data.seed, peek)
    for task in data.tests:
        found[task] = load(task, "test", run.objective, data.valid_examples, data.seed, peek)
    for name, source in found.items():
        for key, needed in source.needs.items():
            has = getattr(run.model, key, None)
            has = run.model.vocab if has is None else has
            if has < needed:
                raise UserError(f"model.{key}={has}: the task ({name}) needs at least {needed}")
    module, seen = build.model(run.model), set[str]()
    for name, source in found.items():
        one = inputs_of(next(in_order(source, 1)))
        shapes = str({key: x.shape for key, x in one.items()})
        if shapes in seen:
            continue
        seen.add(shapes)
        try:  # what cannot be shows in the shapes, before the first step
            jax.eval_shape(lambda inputs: module.init(jax.random.key(0), **inputs), one)
        except UserError as e:
            raise UserError(f"the task {name!r}: {e}") from e
    return found

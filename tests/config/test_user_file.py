"""A file outside of the repository brings every part of a run: its own registry entries."""

import csv
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import tfm
from tfm.cli import main as cli
from tfm.config import files as config

STUDY = '''
"""Does a mean over the past help to repeat the token before?"""

import numpy as np
from flax import linen as nn
from jax import numpy as jnp
from ml_collections import ConfigDict

from tfm.data.dataset import FIRST, Examples, Generated, Ragged
from tfm.layers.context import Auxiliary
from tfm.layers.context import Mixer
from tfm.objectives.base import Batch, Objective
from tfm.sweep.space import product, seeds


class Previous(nn.Module):
    """Adds a learned share of the token before."""

    dims: object

    @nn.compact
    def __call__(self, x_BTD, context, cache=None):
        before_BTD = jnp.pad(x_BTD, [(0, 0), (1, 0), (0, 0)])[:, :-1]
        y_BTD = self.dims.dense(self.dims.width, name="out")(before_BTD)
        size = jnp.mean(jnp.square(y_BTD)) * 1e-3
        return y_BTD, cache, Auxiliary(losses={"size": size})


def previous():
    return Mixer(lambda spec, dims, position, **o: Previous(dims, **o), cacheable=False)


def walk(length: int = 8, vocab: int = 9):
    def make(draws):
        return Examples(tokens=Ragged.of(draws.integers(FIRST, vocab, (length,))))

    return Generated(make, form="text", vocab=vocab, max_length=length)


class Repeat(Objective):
    """Say the token before."""

    families = ("decoder",)
    forms = ("text",)

    def shown(self, examples, dataset, rng):
        return True

    def prepare(self, examples, dataset, rng):
        tokens = examples.tokens.padded(dataset.max_length).astype(np.int32)
        labels, weights = np.roll(tokens, 1, 1), np.ones(tokens.shape, np.float32)
        weights[:, 0] = 0
        return Batch({"tokens_BT": tokens}, labels, weights)


MIXERS = {"previous": previous}
DATASETS = {"walk": walk}
OBJECTIVES = {"repeat": Repeat()}
BASE = "config.py"
VARIANT = "model.mixer"
METRIC = "accuracy"


def sweep():
    return product({"model.mixer": ["previous", "none"], "objective": ["repeat"]}, seeds(2))
'''
CONFIG = """
from ml_collections import ConfigDict


def get_config():
    return ConfigDict({
        "objective": "next_token",
        "model": {"family": "decoder", "width": 16, "layers": 1, "max_length": 8,
                  "feedforward": {"width": 16}, "mixer": "none"},
        "data": {"dataset": "walk", "examples": 1000, "valid_examples": 64, "batch": 32},
        "optimizer": {"learning_rate": 1e-2},
        "train": {"steps": 60, "log_every": 30},
    })
"""


def run(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "tfm", *map(str, argv)],
        capture_output=True,
        text=True,
        **options,
    )


@pytest.mark.ci
def test_ideas_from_outside_are_swept(tmp_path):
    study = tmp_path / "idea"
    study.mkdir()
    (study / "study.py").write_text(STUDY)
    (study / "config.py").write_text(CONFIG)
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = run("sweep", study, "--workdir", env=env)
    assert "has no value" in done.stderr
    done = run("sweep", study, f"--workdir={tmp_path / 'runs'}", "--quiet", env=env)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "runs" / "results.csv") as file:
        mean = {row["variant"]: float(row["mean"]) for row in csv.DictReader(file)}
    assert mean["previous"] > 0.95
    assert mean["none"] < 0.4  # without a mixer the token before cannot be known
    edited = (study / "study.py").read_text().replace("y_BTD = self", "y_BTD = 2.0 * self")
    (study / "study.py").write_text(edited)
    planned = run("sweep", study, f"--workdir={tmp_path / 'runs'}", "--dry-run", env=env)
    assert "4 runs, 2 to do" in planned.stdout  # an edited mixer is another mixer


PARTS = '''
import dataclasses

import jax.flatten_util
import optax
from flax import linen as nn
from jax import numpy as jnp
from ml_collections import ConfigDict

from tfm.evaluate.evaluator import Evaluator, Result
from tfm.layers.recurrent import Cell
from tfm.evaluate.metric import LOW, Metric
from tfm.models.spec import Family, ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size(Evaluator):
    """The root mean square of the parameters, times `factor`."""

    factor: float = 1.0

    def declares(self, spec, objective, dataset):
        return (Metric("rms", LOW),)

    def evaluate(self, context, dataset):
        flat, _ = jax.flatten_util.ravel_pytree(context.variables["params"])
        value = float(self.factor * jnp.sqrt(jnp.mean(flat**2)))
        return Result({"rms": value}, {"examples": {"rms": float(len(dataset))}})


def signs(spec):
    """Moves every parameter by the sign of its gradient."""
    return optax.scale_by_sign()


def half(after: int = 1):
    """Half of the rate from step `after` on."""
    return lambda step, steps: jnp.where(step < after, 1.0, 0.5)


def average(x, h, carry):
    return (carry + jnp.tanh(x + h)) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigramSpec(ModelSpec):
    family: str = "bigram"
    like = "decoder"


class Bigram(nn.Module):
    """Logits of the next token, from the token before it alone."""

    spec: BigramSpec

    @nn.compact
    def __call__(self, tokens_BT, *, valid_BT=None, dropouts=None, train=False, capture=()):
        vocab = self.spec.vocab
        logits_BTV = nn.Embed(vocab, vocab, name="table")(tokens_BT)
        return (logits_BTV, {"losses": {}}) if capture else logits_BTV


EVALUATORS = {"size": Size}
OPTIMIZERS = {"signs": signs}
SCHEDULES = {"half": half}
CELLS = {"average": Cell(average, ("",), ("i",))}
FAMILIES = {"bigram": Family(BigramSpec, Bigram)}


def get_config(family="bigram"):
    recurrent = {"family": "recurrent", "cell": "average", "width": 4, "hidden": 4}
    return ConfigDict({
        "objective": "next_token",
        "model": {"family": "bigram"} if family == "bigram" else recurrent,
        "data": {"dataset": "dyck(length=8)", "examples": 20, "valid_examples": 6, "batch": 4},
        "optimizer": {"name": "signs", "schedule": "half(after=1)", "learning_rate": 0.25,
                      "clip": None},
        "train": {"steps": 2, "log_every": 1},
        "evaluate": {"during": ("size",), "after": ("size(factor=2.0, name='double', rows=3)",)},
    })
'''


@pytest.mark.parametrize("family", ["bigram", "recurrent"])
def test_a_file_brings_every_part_of_a_run(family, tmp_path, own_tables):
    (tmp_path / "parts.py").write_text(PARTS)
    argv = ["train", f"--config={tmp_path / 'parts.py'}:{family}", f"--workdir={tmp_path / 'run'}"]
    assert cli.main([*argv, "--quiet"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    size, double = summary["evaluations"]
    assert double["metrics"]["rms"] == pytest.approx(2 * size["metrics"]["rms"])
    rows = [evaluation["slices"]["examples"]["rms"] for evaluation in (size, double)]
    assert rows == [6.0, 3.0]
    assert summary["metrics"]["double"][0]["better"] == "low"
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if line["split"] == "train"]
    assert rates == [0.25, 0.125]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    wanted = {"EVALUATORS.size", "OPTIMIZERS.signs", "SCHEDULES.half"}
    wanted.add("FAMILIES.bigram" if family == "bigram" else "CELLS.average")
    assert {name for name, *_ in config["entries"]} == wanted
    if family == "bigram":  # every gradient is ±1 or 0, times 0.25 and then 0.125
        loaded = tfm.load(tmp_path / "run", trust=True)
        key = jax.random.fold_in(jax.random.key(0), 0)
        start = loaded.model.init(key, np.zeros((1, 2), np.int32))["params"]
        moved = loaded.params["table"]["embedding"] - start["table"]["embedding"]
        steps = np.array([-0.375, -0.25, -0.125, 0.0, 0.125, 0.25, 0.375])
        assert np.abs(np.asarray(moved)[..., None] - steps).min(-1).max() < 1e-6
        assert np.abs(moved).max() > 0.3


def test_a_mistake_in_an_evaluator_costs_no_training(tmp_path, own_tables, capsys):
    """It is found before the first step, the corrected file trains in the same folder, and an edit
    after that is named."""
    file, folder = tmp_path / "parts.py", tmp_path / "run"
    argv = ["train", f"--config={file}", f"--workdir={folder}", "--quiet"]
    file.write_text(PARTS.replace("jnp.mean(flat", "jnp.maen(flat"))
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    line = PARTS[: PARTS.index("jnp.mean(flat")].count("\n") + 1
    assert "evaluate.during: 'size' cannot be run: AttributeError: " in error
    assert f"'maen' ({file}, line {line})" in error
    assert error.count("\n") == 1
    assert not (folder / "config.json").exists()

    file.write_text(PARTS)
    assert cli.main(argv) == 0
    file.write_text(PARTS.replace("jnp.mean(flat**2)", "jnp.mean(flat**4)"))
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert f"{folder} holds another run: EVALUATORS.size of {file} was edited since" in error
    assert f"another --workdir; train.init_from={folder} starts from its weights" in error


def test_eval_uses_evaluators_of_the_run(tmp_path, own_tables, capsys):
    """Only the copy of the user's file has them. Their metrics must be declared, as in a run."""
    file, folder = tmp_path / "parts.py", tmp_path / "run"
    more = '"rms": value, **({"more": 1.0} if self.factor > 2 else {})}'
    file.write_text(PARTS.replace('"rms": value}', more))
    assert cli.main(["train", f"--config={file}", f"--workdir={folder}", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    file.unlink()
    for table, name in config._added_by:  # as in another process
        del config.TABLES[table][name]
    config._added_by.clear()
    evaluate = ["eval", str(folder), "--trust"]
    assert cli.main([*evaluate, "--evaluate=size(factor=2.0)"]) == 0
    rms = json.loads(capsys.readouterr().out)["size(factor=2.0)"]["rms"]
    assert rms == pytest.approx(2 * summary["evaluations"][0]["metrics"]["rms"])
    assert cli.main([*evaluate, "--evaluate=size(factor=3.0)"]) == 2
    assert "size(factor=3.0) computes 'more' and does not declare it" in capsys.readouterr().err

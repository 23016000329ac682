"""A file outside of the repository brings a mixer, an objective and a data set, and sweeps them."""

import csv
import os
import subprocess
import sys

import pytest

STUDY = '''
"""Does a mean over the past help to repeat the token before?"""

import numpy as np
from flax import linen as nn
from jax import numpy as jnp
from ml_collections import ConfigDict

from tfm.data.dataset import FIRST, Examples, Generated, Ragged
from tfm.layers.context import Auxiliary
from tfm.layers.mixers import Mixer
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
        [sys.executable, "-m", "tfm.cli", *map(str, argv)],
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

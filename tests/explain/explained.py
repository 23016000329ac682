"""Small models with random weights, as runs whose text is numbers: their ids."""

import json

import jax
import numpy as np

from tests.helpers.by_hand import init
from tfm.data.reader import Reader
from tfm.interop.folder import objective_of
from tfm.models.spec import model_spec
from tfm.run.load import LoadedRun
from tfm.run.spec import read

SMALL = {
    "vocab": 13,
    "width": 8,
    "layers": 2,
    "max_length": 16,
    "attention": {"heads": 2},
    "feedforward": {"width": 12},
}
PLAIN = {"vocab": 13, "width": 6, "hidden": 5}


def loaded(folder, family, params=None, name="run", **changes):
    """A run folder as an import leaves it, but for its weights, which are only here."""
    own = PLAIN if family in ("recurrent", "seq2seq") else SMALL
    model = {**own, "family": family, **changes}
    objective, form = objective_of(model_spec({"model": model}), {}, None)
    if family == "word2vec":
        objective, form = "word2vec", "text"
    if model.get("shape") == "N:1" or family in ("bag", "convolution"):
        objective, form = "classify", "labels"
    data, train = {"dataset": "none"}, {"steps": 1}
    run = read({"objective": objective, "model": model, "data": data, "train": train})
    spec, module = run.model, run.model.build()
    path = folder / name
    path.mkdir(exist_ok=True)
    reader = Reader(kind="numbers", vocab=13, form=form, decoder_start=1, ends=(2,), between=(1,))
    known = {"fingerprint": "", "vocab": 13, "vocabulary": None, "reader": reader.to_tree()}
    (path / "data.json").write_text(json.dumps(known))
    shapes = spec.example(1, 4)
    inputs = {name: np.zeros(shape.shape, np.int32) for name, shape in shapes.items()}
    variables = init(module, **inputs)
    if params is not None:
        variables = {**variables, "params": params(variables["params"])}
    return LoadedRun(path, 0, run, module, jax.tree.map(np.asarray, variables), [])

"""Small models with random weights, as runs whose text is numbers: their ids."""

import jax
import numpy as np

from tests.helpers.by_hand import init
from tfm.models.spec import model_spec
from tfm.run.load import LoadedRun

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
    spec = model_spec({"model": {**own, "family": family, **changes}})
    module = spec.build()
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "huggingface.json").write_text('{"decoder_start_token_id": 1}')
    shapes = spec.example(1, 4)
    inputs = {name: np.zeros(shape.shape, np.int32) for name, shape in shapes.items()}
    variables = init(module, **inputs)
    if params is not None:
        variables = {**variables, "params": params(variables["params"])}
    return LoadedRun(path, 0, spec, module, jax.tree.map(np.asarray, variables), None, [])

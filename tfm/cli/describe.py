"""A model as a tree: its shapes and parameters, what it computes, and the memory it needs.

  tfm describe --config=FILE.py[:ARGUMENT] [--config.KEY=VALUE …] [--batch=N] [--length=N] [--json]
               [--trust]

Everything follows from shapes, so nothing is allocated and no size is too large. The batch is 1
and the length the model's own, at most 2048, unless they are given; an encoder–decoder reads and
writes that length. Sizes that the config leaves open come from its data. FILE may be a run's
config.json; code that its folder holds is run only with --trust.

FLOPs are counted as XLA counts them (a multiply-add is two, transcendental functions are not in the
total) and with all pairs of tokens, as masks skip none. Training is forward and backward, with what
`remat` computes again and without the optimizer. Activations are what `jax.vjp` saves for the
backward pass up to the model's outputs, without dropout, under the implementation of attention that
the config asks for and the way its layers are run.
"""

import json
from collections.abc import Sequence

from tfm.config import arguments
from tfm.config.files import from_command_line
from tfm.config.names import UserError
from tfm.config.spec import Tree
from tfm.describe.model import describe
from tfm.describe.show import show, to_json
from tfm.models.spec import ModelSpec, model_spec
from tfm.run.spec import RunSpec, open_data, read


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    given = arguments.split(argv, options=("batch", "length"), flags=("json", "trust"))
    sizes = {name: arguments.whole(given, name, 1) for name in given.options}
    tree = from_command_line(given.config, RunSpec, trust="trust" in given.flags)
    found = describe(_model(tree), **sizes)
    if "json" in given.flags:
        print(json.dumps(to_json(found), indent=1))
    else:
        show(found)


def _model(tree: Tree) -> ModelSpec:
    """The model of a config. With data, it is the one that would be trained."""
    if "data" in tree:
        return open_data(read(tree))[0].model
    spec = model_spec(tree)
    if spec.vocab is None:
        raise UserError("model.vocab is open, and there is no data: write --config.model.vocab=N")
    return spec

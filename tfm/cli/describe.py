"""Prints a model as a tree: shapes, parameters, FLOPs and memory.

Everything follows from shapes: nothing is allocated, so no size is too large. Sizes that the config
leaves open come from its data. The config may be the config.json of a run.

FLOPs are counted as XLA counts them: a multiply-add is two, transcendental functions are not part
of the total, and masked pairs of tokens count. Training is the forward and the backward pass,
including what `remat` computes again, without the optimizer. Activations are what `jax.vjp` saves
for the backward pass up to the model's outputs, without dropout, for the configured implementation
of attention and of the layer stack.
"""

import json
from collections.abc import Sequence

from tfm.cli.main import Parser
from tfm.config.files import from_command_line
from tfm.config.names import UserError
from tfm.config.spec import Tree
from tfm.describe.description import describe
from tfm.describe.tables import show, to_json
from tfm.models.spec import ModelSpec, model_spec
from tfm.run.spec import RunSpec, open_data, read


def main(argv: Sequence[str]) -> None:
    parser = Parser("describe", __doc__, config=RunSpec)
    parser.add_number("--batch", "the batch size (1)", 1)
    parser.add_number(
        "--length",
        "the length of the input, and of the target of an encoder–decoder (the model's maximum, at "
        "most 2048)",
    )
    parser.add_json()
    parser.add_trust()
    args = parser.parse(argv)
    tree = from_command_line(args.config, RunSpec, trust=args.trust)
    description = describe(_model(tree), args.batch, args.length)
    if args.json:
        print(json.dumps(to_json(description), indent=1))
    else:
        show(description)


def _model(tree: Tree) -> ModelSpec:
    """Returns the model of a config; its data, if any, decide the open sizes."""
    if tree.get("data", {}).get("dataset", "none") != "none":
        return open_data(read(tree))[0].model
    spec = model_spec(tree)
    if spec.vocab is None:
        raise UserError("model.vocab is open, and there is no data: write --config.model.vocab=N")
    return spec

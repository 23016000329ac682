"""Measures speed and memory beside other implementations."""

import dataclasses
import importlib
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track

from tfm.cli.main import HELP, Parser
from tfm.config.files import from_command_line
from tfm.config.names import UserError, pick
from tfm.config.spec import to_spec
from tfm.terminal import console

# Modules of tfm/bench: each has a `Bench` spec, `measure(spec)` yields rows, `report(spec, rows)`
# returns a table.
BENCHES = {
    "attention": "time and memory of attention, beside jax.nn.dot_product_attention",
    "decode": "tokens per second, beside transformers on PyTorch",
    "nanogpt": "nanoGPT's small model from start to end, beside PyTorch",
    "train": "time of a training step, beside plain Flax and PyTorch",
    "word2vec": "words per second of Word2Vec, beside gensim",
}


def main(argv: Sequence[str]) -> None:
    names = "\n".join(f"  {name:<10} {text}" for name, text in BENCHES.items())
    if argv and argv[0] in HELP:
        print(f"tfm bench NAME [--config.KEY=VALUE …] [--json]\n\n{names}")
        return
    if not argv:
        raise UserError(f"which bench? One of: {', '.join(BENCHES)}")
    pick(BENCHES, argv[0], "bench")
    bench: Any = importlib.import_module(f"tfm.bench.{argv[0]}")
    parser = Parser(f"bench {argv[0]}", bench.__doc__, config=bench.Bench)
    parser.add_json()
    args = parser.parse(argv[1:])
    spec = to_spec(bench.Bench, from_command_line(args.config, bench.Bench, {}))
    rows = list(track(bench.measure(spec), "compiling and timing", console=Console(stderr=True)))
    if args.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        console().print(bench.report(spec, rows))

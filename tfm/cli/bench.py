"""Measures speed and memory beside other implementations."""

import importlib
from collections.abc import Sequence

from tfm.cli.main import HELP
from tfm.config.names import UserError, pick

BENCHES = {
    name: name
    for name in (
        *("attention", "compile", "data", "decode", "growth", "nanogpt", "start", "train"),
        "word2vec",
    )
}


def main(argv: Sequence[str]) -> None:
    if argv and argv[0] in HELP:
        print(f"tfm bench NAME: measure one of: {', '.join(BENCHES)}\n  tfm bench NAME --help")
        return
    if not argv:
        raise UserError(f"which bench? One of: {', '.join(BENCHES)}")
    importlib.import_module(f"tfm.bench.{pick(BENCHES, argv[0], 'bench')}").main(argv[1:])

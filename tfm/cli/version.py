"""Prints the versions of tfm and its main libraries, and checks the compiler."""

import os
from collections.abc import Sequence
from importlib import metadata

from tfm.cli.main import Parser
from tfm.runtime import check_compiler

PACKAGES = ("tfm", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ml_collections")


def main(argv: Sequence[str]) -> None:
    Parser("version", __doc__).parse(argv)
    for package in PACKAGES:
        print(package, metadata.version(package))
    check_compiler()
    print("compiler checked, with XLA_FLAGS=" + os.environ.get("XLA_FLAGS", ""))

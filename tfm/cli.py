"""The command line: verbs only. Nothing heavy is imported until a verb needs it."""

import os
import sys
from collections.abc import Callable, Sequence

HELP = ("-h", "--help", "help")
USAGE = """\
tfm: does this change to a sequence model help, and how sure are we?

  tfm VERB [--config=FILE.py[:ARGUMENT]] [--config.KEY=VALUE …]

verbs
  sweep              run the variants of a study, and compare them
  train              train a model, or go on with one that was interrupted
  eval               what a trained model is worth, with intervals
  describe           a model as a tree: parameters, FLOPs, memory
  import, export     Hugging Face weights in and out
  bench attention    time and memory of every implementation of attention
  bench compile      compile time of scanned and unrolled layers
  version            the versions of tfm and of what it stands on

  tfm VERB --help    what a verb does, and the keys of its config
"""


def bench(argv: Sequence[str]) -> None:
    from tfm.bench import attention
    from tfm.bench import compile as compile_time
    from tfm.names import UserError, pick

    benches = {"attention": attention.main, "compile": compile_time.main}
    if argv and argv[0] in HELP:
        print(f"tfm bench WHAT: measure one of: {', '.join(benches)}\n  tfm bench WHAT --help")
        return
    if not argv:
        raise UserError(f"bench what? One of: {', '.join(benches)}")
    pick(benches, argv[0], "bench")(argv[1:])


def version(argv: Sequence[str]) -> None:
    """The versions of tfm and of what it stands on."""
    from importlib import metadata

    if argv:
        print(version.__doc__)
        return
    for package in ("tfm", "jax", "flax", "ml_collections"):
        print(package, metadata.version(package))


def describe(argv: Sequence[str]) -> None:
    from tfm.inspect.describe import main

    main(argv)


def train(argv: Sequence[str]) -> None:
    from tfm.train.main import main_train

    main_train(argv)


def sweep(argv: Sequence[str]) -> None:
    from tfm.report.main import main

    main(argv)


def evaluate(argv: Sequence[str]) -> None:
    from tfm.train.main import main_eval

    main_eval(argv)


def import_weights(argv: Sequence[str]) -> None:
    from tfm.interop.folder import main_import

    main_import(argv)


def export_weights(argv: Sequence[str]) -> None:
    from tfm.interop.folder import main_export

    main_export(argv)


VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "bench": bench,
    "describe": describe,
    "eval": evaluate,
    "export": export_weights,
    "import": import_weights,
    "sweep": sweep,
    "train": train,
    "version": version,
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in HELP:
        print(USAGE, end="")
        return 0
    from tfm.names import UserError, pick

    try:
        pick(VERBS, argv[0], "verb")(argv[1:])
    except UserError as e:
        files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
        where = "".join(f" ({file})" for file in files if file not in str(e))
        print(f"tfm: {e}{where}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())

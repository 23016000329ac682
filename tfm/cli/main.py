"""The command line: verbs only. Nothing heavy is imported until a verb needs it."""

import importlib
import os
import sys
from collections.abc import Sequence

HELP = ("-h", "--help", "help")
USAGE = """\
tfm: does this change to a sequence model help, and how sure are we?

  tfm VERB [--config=FILE.py[:ARGUMENT]] [--config.KEY=VALUE …]

verbs
  sweep              run the variants of a study, and compare them
  check              check the ideas of a file: their tiles, causality, gradients
  train              train a model, or resume a run that was interrupted
  eval               evaluate a trained model, with intervals
  generate           write on from a text; show how likely the next tokens are
  translate          write the target of a source, line by line
  classify, tag      the class of a text; the tag of each word
  fill               predict the masked tokens of a text
  neighbors          the nearest word vectors, and analogies
  ls                 list runs: what they are, their status, their best loss
  data               what a config's data are; the cache of tokenised data
  describe           a model as a tree: parameters, FLOPs, memory
  explain            a page that shows what a model does with a text, inside
  import, export     Hugging Face weights in and out
  bench attention    time and memory of every implementation of attention
  bench train        time of a training step, beside plain Flax and PyTorch
  bench data         time to make a batch, beside a model's step
  bench decode       tokens per second, beside transformers on PyTorch
  bench word2vec     words per second of Word2Vec, beside gensim
  bench compile      compile time of scanned and unrolled layers
  bench growth       time and memory of a step as length, depth, batch, vocabulary, points grow
  bench start        time to the first step, and what a sweep spends besides steps
  bench nanogpt      nanoGPT's small model from start to end, beside PyTorch
  version            the versions of tfm and of its main libraries; checks the compiler

  tfm VERB --help    what a verb does, and the keys of its config
"""


VERBS = {  # where each verb starts
    "bench": "tfm.cli.main:bench",
    "check": "tfm.cli.check:main",
    "classify": "tfm.cli.classify:main",
    "data": "tfm.cli.data:main",
    "describe": "tfm.cli.describe:main",
    "eval": "tfm.cli.eval:main",
    "explain": "tfm.cli.explain:main",
    "export": "tfm.interop.folder:main_export",
    "fill": "tfm.cli.fill:main",
    "generate": "tfm.cli.generate:main",
    "import": "tfm.interop.folder:main_import",
    "ls": "tfm.report.ls:main",
    "neighbors": "tfm.cli.neighbors:main",
    "sweep": "tfm.cli.sweep:main",
    "tag": "tfm.cli.tag:main",
    "train": "tfm.cli.train:main",
    "translate": "tfm.cli.translate:main",
    "version": "tfm.cli.main:version",
}
BENCHES = {
    "attention": "tfm.bench.attention:main",
    "compile": "tfm.bench.compile:main",
    "data": "tfm.bench.data:main",
    "decode": "tfm.bench.decode:main",
    "growth": "tfm.bench.growth:main",
    "nanogpt": "tfm.bench.nanogpt:main",
    "start": "tfm.bench.start:main",
    "train": "tfm.bench.train:main",
    "word2vec": "tfm.bench.word2vec:main",
}


def start(where: str, argv: Sequence[str]) -> None:
    module, _, function = where.partition(":")
    getattr(importlib.import_module(module), function)(argv)


def bench(argv: Sequence[str]) -> None:
    from tfm.config.names import UserError, pick

    if argv and argv[0] in HELP:
        print(f"tfm bench NAME: measure one of: {', '.join(BENCHES)}\n  tfm bench NAME --help")
        return
    if not argv:
        raise UserError(f"which bench? One of: {', '.join(BENCHES)}")
    start(pick(BENCHES, argv[0], "bench"), argv[1:])


def version(argv: Sequence[str]) -> None:
    """The versions of tfm and of its main libraries, and a check of the compiler."""
    from importlib import metadata

    from tfm import runtime

    if argv:
        print(version.__doc__)
        return
    for package in ("tfm", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ml_collections"):
        print(package, metadata.version(package))
    runtime.check_compiler()
    print("compiler checked, with XLA_FLAGS=" + os.environ.get("XLA_FLAGS", ""))


def print_keys(argv: Sequence[str]) -> None:
    """The keys of a run, or of the config that is given."""
    from tfm.config.help import keys_text
    from tfm.run.spec import RunSpec

    print(keys_text(argv, RunSpec), end="")


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in HELP:
        print(USAGE, end="")
        return 0
    from tfm.config.names import UserError, pick
    from tfm.terminal import plain

    try:
        start(pick(VERBS, argv[0], "verb"), argv[1:])
        if argv[0] in ("describe", "sweep", "train") and {"-h", "--help"} & set(argv):
            print_keys(argv)
    except UserError as e:
        files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
        where = "".join(f" ({file})" for file in files if file not in str(e))
        lines = f"tfm: {e}{where}".split("\n")
        print("\n".join(map(plain, lines)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as e:
        from tfm.config.files import own_error

        text = None if os.environ.get("TFM_TRACEBACK") else own_error(e)
        if text is None:
            raise
        print(plain(f"tfm: {text} (TFM_TRACEBACK=1 shows all of it)"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

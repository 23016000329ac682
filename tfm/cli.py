"""The command line: verbs only. Nothing heavy is imported until a verb needs it."""

import sys
from collections.abc import Callable, Sequence

HELP = ("-h", "--help", "help")
USAGE = """\
tfm: does this change to a sequence model help, and how sure are we?

  tfm VERB [--config=FILE.py[:ARGUMENT]] [--config.KEY=VALUE …]

verbs
  bench attention    time and memory of every implementation of attention
  version            the versions of tfm and of what it stands on

  tfm VERB --help    what a verb does, and the keys of its config
"""


def bench(argv: Sequence[str]) -> None:
    from tfm.bench import attention
    from tfm.names import UserError, pick

    benches = {"attention": attention.main}
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


VERBS: dict[str, Callable[[Sequence[str]], None]] = {"bench": bench, "version": version}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in HELP:
        print(USAGE, end="")
        return 0
    from tfm.names import UserError, pick

    try:
        pick(VERBS, argv[0], "verb")(argv[1:])
    except UserError as e:
        print(f"tfm: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

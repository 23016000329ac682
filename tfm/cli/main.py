"""The `tfm` command: finds the verb, parses its options, and reports mistakes in one line.

Every other file of this folder except `options.py` is a verb: `tfm NAME …` calls `main(argv)` of
`NAME.py`, and the first line of its docstring is its line in `tfm --help`. `tfm FILE.py …` does the
same for a file of yours. Nothing heavy is imported before a verb needs it.
"""

import argparse
import ast
import functools
import importlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tfm.config.names import UserError, pick, suggest

HELP = ("-h", "--help")
USAGE = """\
tfm: does this change to a sequence model help, and how sure are we?

  tfm VERB [ARGUMENTS] [--config=FILE.py[:ARGUMENT]] [--config.KEY=VALUE …]
  tfm VERB --help    explains a verb, and lists the keys of its config

  tfm train --config=configs/tasks/recall.py --workdir=runs/recall
  tfm sweep experiments/quickstart
"""


class Parser(argparse.ArgumentParser):
    """Parses the command line of a verb; mistakes raise a `UserError`.

    `config` is the spec whose keys `--config.KEY=VALUE` may set. `--help` lists them.
    """

    def __init__(self, verb: str, doc: str | None, config: Any = None):
        super().__init__(
            prog=f"tfm {verb}",
            description=doc,
            formatter_class=functools.partial(
                argparse.RawDescriptionHelpFormatter, width=100, max_help_position=30
            ),
            allow_abbrev=False,
        )
        self.config = config
        if config is not None:
            text = "the config; ARGUMENT is passed to its get_config()"
            self.add_value("--config", "FILE.py[:ARGUMENT]", text)
            self.add_value("--config.KEY", "VALUE", "replaces one key of it")

    def add_value(self, name: str, metavar: str, text: str, **options: Any) -> None:
        self.add_argument(name, metavar=metavar, help=text, **options)

    def add_flag(self, name: str, text: str) -> None:
        self.add_argument(name, action="store_true", help=text)

    def add_json(self) -> None:
        self.add_flag("--json", "print JSON")

    def add_trust(self) -> None:
        self.add_flag("--trust", "run the code in a run folder")

    def add_number(self, name: str, text: str, default: int | None = None, least: int = 1) -> None:
        """Adds an option that is a whole number."""

        def convert(text: str) -> int:
            if text.isdecimal() and int(text) >= least:
                return int(text)
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")

        self.add_value(name, "N", text, type=convert, default=default)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Returns the options. `config` lists the arguments that `from_command_line` reads."""
        argv = self._join(argv)
        config = [arg for arg in argv if self._is_config(arg)]
        if set(HELP) & set(argv):
            self._print_help(config, "--trust" in argv)
            raise SystemExit(0)
        rest = [arg for arg in argv if not self._is_config(arg)]
        self._check_options(rest)
        args, extra = self.parse_known_args(rest)
        files = [arg for arg in extra if ".py" in arg or arg.endswith("config.json")]
        if files and self.config is not None:
            raise UserError(f"write --config={files[0]}")
        if extra:
            hint = "; write a text in quotes" if hasattr(args, "text") else ""
            raise UserError(f"unexpected argument {extra[0]!r}{hint}")
        for action in self._get_positional_actions():
            if action.nargs is None and getattr(args, action.dest) == "":
                raise UserError(f"{action.metavar} is empty")
        args.config = config
        return args

    def error(self, message: str) -> Any:
        raise UserError(message.removeprefix("argument "))

    def _is_config(self, arg: str) -> bool:
        name = arg.partition("=")[0]
        return self.config is not None and (name == "--config" or name.startswith("--config."))

    def _join(self, argv: Sequence[str]) -> list[str]:
        """Writes `--NAME VALUE` as `--NAME=VALUE`."""
        out: list[str] = []
        for arg in argv:
            last = out[-1] if out else ""
            option = self._option_string_actions.get(last)
            takes_value = self._is_config(last) or (option is not None and option.nargs is None)
            if takes_value and "=" not in last and not arg.startswith("--"):
                out[-1] += f"={arg}"
            else:
                out.append(arg)
        return out

    def _check_options(self, argv: Sequence[str]) -> None:
        known, seen = self._option_string_actions, set()
        for arg in argv[: argv.index("--")] if "--" in argv else argv:
            name, equals, value = arg.partition("=")
            if not arg.startswith("--"):
                continue
            if name not in known:
                names = [option[2:] for option in known if option.startswith("--")]
                raise UserError(f"unknown option {arg!r}{suggest(name[2:], names, '--')}")
            if known[name].nargs == 0 and equals:
                raise UserError(f"{arg}: write {name}; it takes no value")
            if known[name].nargs is None and not value:
                raise UserError(f"{arg} has no value: write {name}=VALUE")
            if name in seen and known[name].default != []:  # lists collect values
                raise UserError(f"{name} is given more than once")
            seen.add(name)

    def _print_help(self, config: Sequence[str], trust: bool) -> None:
        self.print_help()
        if self.config is not None:
            from tfm.config.files import from_command_line
            from tfm.config.help import keys_text

            tree = from_command_line(config, self.config, {}, trust)
            print(keys_text(self.config, tree), end="")


def verbs() -> dict[str, pathlib.Path]:
    """Returns the file of each verb. `import_.py` is the verb `import`."""
    files = sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py"))
    return {f.stem.rstrip("_"): f for f in files if f.stem not in ("main", "options")}


def usage() -> str:
    lines = [USAGE, "verbs"]
    for name, file in verbs().items():
        doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        lines.append(f"  {name:<10} {doc.partition(chr(10))[0]}")
    return "\n".join(lines)


def run(verb: str, argv: Sequence[str]) -> int | None:
    """Runs a verb and returns its exit code; None is success."""
    if not verb.endswith(".py"):
        file = pick(verbs(), verb, "verb")
        return importlib.import_module(f"tfm.cli.{file.stem}").main(argv)
    from tfm.config.files import run_file

    module = run_file(pathlib.Path(verb))
    if not hasattr(module, "main"):
        raise UserError(f"{verb} defines no main(argv)")
    return module.main(argv)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in (*HELP, "help"):
        print(usage())
        return 0
    try:
        return run(argv[0], argv[1:]) or 0
    except UserError as e:
        files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
        where = "".join(f" ({file})" for file in files if file not in str(e))
        return _report(f"tfm: {e}{where}")
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
        return _report(f"tfm: {text} (TFM_TRACEBACK=1 shows the whole traceback)")


def _report(text: str) -> int:
    from tfm.terminal import plain

    print("\n".join(map(plain, text.split("\n"))), file=sys.stderr)
    return 2

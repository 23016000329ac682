"""The `tfm` command: finds the verb, parses its options, and reports mistakes in one line.

Every other file of this folder except `options.py` is a verb: `tfm NAME …` calls `main(argv)` of
`NAME.py`, and the first line of its docstring is its line in `tfm --help`. `tfm FILE.py …` does the
same for a file of yours. Nothing heavy is imported before a verb needs it.
"""

import argparse
import ast
import codecs
import functools
import importlib
import io
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tfm.config.names import UserError, pick, suggest
from tfm.runtime import check_platform

HELP = ("-h", "--help")
MOST = 2**31 - 1  # of whole numbers: sizes and numbers of rows are counted in 32 bits
LONGEST = 2000  # characters in a line of a message
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
            if text.isdecimal() and len(text) <= len(str(MOST)) and least <= int(text) <= MOST:
                return int(text)
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number of at least {least} and at most {MOST}"
            )

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
        end = rest.index("--") if "--" in rest else len(rest)
        # Options first: argparse gives an optional argument that follows an option to nobody.
        before = sorted(rest[:end], key=lambda arg: not arg.startswith("--"))
        args, extra = self.parse_known_args([*before, *rest[end:]])
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
    _prepare_streams()
    try:
        if not argv or argv[0] in (*HELP, "help"):
            print(usage())
            return 0
        code = run(argv[0], argv[1:]) or 0
        sys.stdout.flush()  # a full disk is reported here, not when Python ends
        return code
    except UserError as e:
        files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
        where = "".join(f" ({file})" for file in files if file not in str(e))
        return _report(f"{e}{where}")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has stopped, as `head` does
        _drop_output()
        return 141
    except Exception as e:
        text = None if os.environ.get("TFM_TRACEBACK") else _foreseen(e)
        if text is None:
            raise
        return _report(f"{text} (TFM_TRACEBACK=1 shows the whole traceback)")


def _prepare_streams() -> None:
    """Makes standard streams that are closed lead nowhere, reads UTF-8, and escapes characters
    that the encoding of the output lacks."""
    codecs.register_error("escape", _escape)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # the next file that is opened would take its number
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            if number:
                stream.reconfigure(errors="escape")
            else:
                stream.reconfigure(encoding="utf-8")


def _escape(error: Any) -> tuple[str, int]:
    """Spells characters as JSON does, so that JSON stays valid."""
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _foreseen(error: Exception) -> str | None:
    """Describes an error in a user's file, or of the system; None if it is neither."""
    if "tfm.config.files" in sys.modules:  # which runs such files
        from tfm.config.files import own_error

        if (text := own_error(error)) is not None:
            return text
    if isinstance(error, OSError) and error.strerror:
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return f"cannot read or write {error.filename or 'the output'}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}"
    if "jax" in sys.modules:
        try:
            check_platform()
        except UserError as e:
            return str(e)
    return None


def _drop_output() -> None:
    """Drops what has not been written, which Python would try to write when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(text: str) -> int:
    from tfm.terminal import plain

    for line in f"tfm: {text}".split("\n"):
        cut = line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
        print(plain(cut), file=sys.stderr)
    return 2

"""The command line of a verb: --NAME=VALUE, --FLAG, plain words, and the config's overrides."""

from collections.abc import Sequence
from typing import NamedTuple

from tfm.config.names import UserError, suggest

HELP = ("-h", "--help")


class Arguments(NamedTuple):
    words: list[str]
    options: dict[str, str]
    flags: set[str]
    config: list[str]  # --config=… and --config.…=…


def split(
    argv: Sequence[str],
    *,
    words: int = 0,
    most: int | None = None,
    kind: str = "folder",
    options: Sequence[str] = (),
    flags: Sequence[str] = (),
    config: bool = True,
) -> Arguments:
    """The parts of a command line. What is unknown, missing or too much is an error. There are
    exactly `words` plain words, or up to `most`: those after the first `words` are texts."""
    out = Arguments([], {}, set(), [])
    known = [*options, *flags, *(["config"] if config else [])]
    for arg in joined(argv, options, config):
        name, equals, value = arg.removeprefix("--").partition("=")
        if not arg.startswith("--"):
            out.words.append(arg)
        elif config and (name == "config" or name.startswith("config.")):
            out.config.append(arg)
        elif name in flags:
            if equals:
                raise UserError(f"{arg}: write --{name}; it takes no value")
            out.flags.add(name)
        elif name in options:
            if not value:
                raise UserError(f"{arg} gives no value: write --{name}=VALUE")
            if name in out.options:
                raise UserError(f"--{name} is given more than once")
            out.options[name] = value
        else:
            raise UserError(f"unknown option {arg!r}{suggest(name, known, '--')}")
    configs = [word for word in out.words if ".py" in word or word.endswith("config.json")]
    if config and len(out.words) > words and configs:
        raise UserError(f"write --config={configs[0]}")
    most = words if most is None else most
    if not words <= len(out.words) <= most:
        kinds = kind if words == 1 else f"{kind}s"
        text = ", and a text (in quotes)," if most > words else ""
        given = f": {' '.join(out.words)}" if out.words else ""
        raise UserError(f"expected {words} {kinds}{text} but got {len(out.words)}{given}")
    if "" in out.words[:words]:
        raise UserError(f"the name of a {kind} is empty")
    return out


def joined(argv: Sequence[str], options: Sequence[str], config: bool = True) -> list[str]:
    """The command line with `--NAME VALUE` as `--NAME=VALUE`."""
    out: list[str] = []
    for arg in argv:
        name = out[-1].removeprefix("--") if out and out[-1].startswith("--") else ""
        takes = name in options or (config and (name == "config" or name.startswith("config.")))
        if takes and "=" not in name and not arg.startswith("--"):
            out[-1] += f"={arg}"
        else:
            out.append(arg)
    return out


def whole(arguments: Arguments, name: str, default: int, least: int = 1) -> int:
    """The value of an option that is a whole number."""
    text = arguments.options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"'--{name}={text}': write --{name}=N, a whole number of at least {least}")
    return int(text)

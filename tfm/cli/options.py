"""What the verbs that use a model share on their command line: the run, its text, the settings."""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tfm.config import arguments
from tfm.config.arguments import Arguments
from tfm.config.names import UserError
from tfm.decode.spec import DecodeSpec, decoding_settings
from tfm.run.load import LoadedRun, load
from tfm.runtime import cache_compilations, check_compiler

SETTINGS = tuple(own.name for own in dataclasses.fields(DecodeSpec))
RUN = ("checkpoint",)  # options of a run
SETTINGS_HELP = """\
  --max_new=256           the most tokens that are written
  --temperature=0         0 takes the most likely token; above it, tokens are drawn
  --top_k=K --top_p=P --min_p=P   draw from the K most likely; from the fewest that sum to P; from
                          those at least P times as likely as the most likely one
  --repetition_penalty=R  tokens that were there before are less likely (R above 1)
  --beams=K --length_penalty=1 --stopping=estimate
                          beam search: log-probability / length**penalty; stopping is estimate,
                          full or never
  --n_best=1              sequences for each text; the score of each is its log-probability, with
                          beams divided by length**penalty
  --seed=0                of what is drawn
  --checkpoint=best       or last
  --trust                 code that the run folder holds may be run
"""


def parse(
    argv: Sequence[str],
    doc: str | None,
    options: Sequence[str] = (),
    flags: Sequence[str] = (),
    as_json: bool = True,
) -> Arguments | None:
    """The command line of a verb: a run, a text, its options and flags. None: its help was asked
    for, and is printed."""
    if set(arguments.HELP) & set(argv):
        print(doc, end="")
        return None
    return arguments.split(
        argv,
        words=1,
        most=2,
        options=(*RUN, *options),
        flags=(*flags, *(["json"] if as_json else []), "trust"),
        config=False,
    )


def load_run(given: Arguments) -> LoadedRun:
    """The run that a command line names; what is wrong with its checkpoints is told."""
    cache_compilations()
    check_compiler()
    loaded = load(given.words[0], trust="trust" in given.flags, **_some(given, RUN))
    for text in loaded.messages:
        print(text, file=sys.stderr)
    return loaded


def _some(given: Arguments, names: Sequence[str]) -> dict[str, Any]:
    return {name: given.options[name] for name in names if name in given.options}


def settings_of(given: Arguments, **usual: str) -> dict[str, Any]:
    """The settings of decoding that a command line gives, checked; where it gives none, `usual`."""
    return decoding_settings({**usual, **_some(given, SETTINGS)})


def part_of(given: Arguments) -> int | None:
    text = given.options.get("part")
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f"--part={text}: write --part=N, the number of a part of the mixture")
    return int(text)


def texts_of(given: Arguments, lines: bool) -> list[str]:
    """The texts: the words after the run, a file, or standard input; its lines or its whole."""
    words, file = given.words[1:], given.options.get("file")
    if words and file is not None:
        raise UserError(f"--file={file} and a text: give one of them")
    if words:
        return words
    if file is not None:
        try:
            text = pathlib.Path(file).read_text(encoding="utf-8")
        except OSError as e:
            raise UserError(f"--file={file}: cannot read it: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise UserError(f"--file={file}: it is not UTF-8: {e}") from e
    elif sys.stdin is None or sys.stdin.isatty():
        raise UserError("which text? Give it in quotes, as --file=FILE, or by standard input")
    else:
        text = sys.stdin.read()
    if not lines:
        return [text.removesuffix("\n")]
    found = text.split("\n")
    found = found[:-1] if found[-1] == "" else found
    where = file or "standard input"
    if not found:
        raise UserError(f"{where} is empty: there is no text in it")
    for number, line in enumerate(found, 1):
        if not line.strip():
            raise UserError(f"{where}, line {number}: there is no text in it")
    return found

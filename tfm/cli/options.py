"""Options that the verbs for trained models share: the run, its text, decoding."""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tfm.cli.main import Parser
from tfm.config.names import UserError
from tfm.decode.spec import DecodeSpec, decoding_settings
from tfm.run.load import LoadedRun, load
from tfm.runtime import cache_compilations, check_compiler
from tfm.terminal import plain

DECODING = {  # the fields of DecodeSpec
    "max_new": "most tokens to generate (256)",
    "temperature": "0 (default) takes the most likely token; above 0, tokens are sampled",
    "top_k": "sample from the X most likely tokens",
    "top_p": "sample from the fewest tokens whose probabilities sum to X",
    "min_p": "sample from tokens at least X times as likely as the most likely one",
    "repetition_penalty": "above 1, tokens that occurred before become less likely",
    "beams": "width of the beam search (1)",
    "length_penalty": "beams are ranked by log-probability / length**X (1)",
    "stopping": "when beam search stops: estimate (default), full or never",
    "n_best": "sequences for each text, with their scores (1)",
    "seed": "seed of the samples (0)",
}


class RunParser(Parser):
    """Parses the command line of a verb that uses a trained model: `tfm VERB RUN …`."""

    def __init__(self, verb: str, doc: str | None):
        super().__init__(verb, doc)
        self.add_argument("run", metavar="RUN", help="a run folder, trained or imported")
        self.add_value("--checkpoint", "NAME", "best or last (best)", default="best")
        self.add_trust()

    def add_text(self) -> None:
        self.add_value("text", "TEXT", "in quotes; without it, read --file or stdin", nargs="?")
        self.add_value("--file", "FILE", "read the text from a file")
        self.add_flag("--special", "read special tokens in the text, such as [SEP], as such")

    def add_part(self) -> None:
        self.add_number("--part", "the task, of a run trained on a mixture", least=0)

    def add_decoding(self) -> None:
        for field in dataclasses.fields(DecodeSpec):
            self.add_value(f"--{field.name}", "X", DECODING[field.name])


def load_run(args: argparse.Namespace) -> LoadedRun:
    """Loads the run; warns about damaged checkpoints."""
    cache_compilations()
    check_compiler()
    loaded = load(args.run, args.checkpoint, args.trust, getattr(args, "special", False))
    for message in loaded.messages:
        print(plain(message), file=sys.stderr)
    return loaded


def decoding(args: argparse.Namespace, **defaults: str) -> dict[str, Any]:
    """Returns the decoding settings on the command line, checked."""
    settings = {name: getattr(args, name) for name in DECODING}
    return decoding_settings(
        {**defaults, **{name: text for name, text in settings.items() if text is not None}}
    )


def report_unknown(loaded: LoadedRun, texts: Sequence[str]) -> None:
    """Says how many words of some texts the model's vocabulary does not know."""
    unknown = [word for text in texts for word in loaded.reader.unknown(text)]
    if unknown:
        names = list(dict.fromkeys(map(plain, unknown)))
        some = f"{', '.join(names[:5])}{', …' * (len(names) > 5)}"
        total = sum(len(text.split()) for text in texts)
        message = f"{len(unknown)} of {total} words are unknown to the vocabulary: {some}"
        print(message, file=sys.stderr)


def texts(args: argparse.Namespace, lines: bool) -> list[str]:
    """Returns the text on the command line, or the lines (or the whole) of a file or of stdin."""
    if args.text is not None and args.file is not None:
        raise UserError(f"--file={args.file} and a text: give one of them")
    where = "the text" if args.text is not None else args.file or "standard input"
    try:
        if args.text is not None:
            (args.text + (getattr(args, "second", None) or "")).encode()
            return [args.text]
        if args.file is not None:
            content = pathlib.Path(args.file).read_text(encoding="utf-8")
        elif sys.stdin is None or sys.stdin.isatty():
            raise UserError("there is no text: give it in quotes, as --file=FILE, or on stdin")
        else:
            content = sys.stdin.read()
    except OSError as e:
        raise UserError(f"--file={args.file}: cannot read it: {e.strerror}") from e
    except UnicodeError as e:
        raise UserError(f"{where} is not UTF-8: {e}") from e
    if not lines:
        return [content.removesuffix("\n")]
    rows = content.removesuffix("\n").split("\n") if content else []
    if not rows:
        raise UserError(f"{where} is empty: there is no text in it")
    for number, row in enumerate(rows, 1):
        if not row.strip():
            raise UserError(f"{where}, line {number}: there is no text in it")
    return rows

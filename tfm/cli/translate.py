"""Writes the target of a source text: a translation, an answer, a command.

For runs trained on pairs of texts, and for imported encoder–decoders. Each line of a file or of
stdin is one source; prints a line for each, in order, or with --n_best=N N lines with their scores.
A source longer than the model's maximum is an error: nothing is cut off.
"""

from collections.abc import Sequence

from tfm.cli.generate import show_sequences
from tfm.cli.options import RunParser, decoding, load_run, texts
from tfm.config.names import UserError
from tfm.run.predict import TextWriter
from tfm.terminal import show_json


def main(argv: Sequence[str]) -> None:
    parser = RunParser("translate", __doc__)
    parser.add_text()
    parser.add_part()
    parser.add_number("--batch", "batch size (32)", 32)
    parser.add_decoding()
    parser.add_json()
    args = parser.parse(argv)
    settings = decoding(args)
    lines = texts(args, lines=True)
    writer = TextWriter(load_run(args), args.part)
    if writer.continues:
        raise UserError(f"{args.run} was not trained on pairs of texts: tfm generate continues one")
    answers = writer.write(lines, settings, args.batch)
    if args.json:
        show_json(answers)
    else:
        show_sequences(answers)

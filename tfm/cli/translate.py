"""Writes the target of a source text: a translation, an answer, a command.

For runs trained on pairs of texts, and for imported encoder–decoders. Each line of a file or of
stdin is one source; prints a line for each, in order, or with --n_best=N N lines with their scores.
A source longer than the model's maximum is an error: nothing is cut off.
"""

import json
from collections.abc import Sequence

from tfm.cli.generate import written
from tfm.cli.main import whole
from tfm.cli.options import RunParser, decoding, load_run, texts
from tfm.config.names import UserError
from tfm.run.text import text_writer


def main(argv: Sequence[str]) -> None:
    parser = RunParser("translate", __doc__)
    parser.add_text()
    parser.add_part()
    parser.add_argument("--batch", metavar="N", type=whole(), default=32, help="batch size (32)")
    parser.add_decoding()
    parser.add_json()
    args = parser.parse(argv)
    settings = decoding(args)
    lines = texts(args, lines=True)
    writer = text_writer(load_run(args), args.part)
    if writer.goes_on:
        raise UserError(f"{args.run} was not trained on pairs of texts: tfm generate continues one")
    spec = writer.fitting(lines, settings)
    if args.json:
        print(json.dumps(written(writer, lines, spec, args.batch), indent=1, ensure_ascii=False))
        return
    for text, sequences in zip(lines, writer.write(lines, spec, args.batch), strict=True):
        for sequence in sequences:
            score = f"{sequence.score:.4f}\t" if spec.n_best > 1 else ""
            print(score + writer.text(writer.prompt(text), sequence.tokens))

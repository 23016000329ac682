"""Continues a text, or shows the probabilities of the next token.

The text is a prompt, given in quotes, as a file or on stdin; with --lines, each line is one. The
continuation is printed as it is generated, after its prompt; --json prints it with the
log-probability of each token. A prompt longer than the model's context is an error: nothing is cut
off.
"""

from collections.abc import Sequence
from typing import Any

from tfm.cli.options import RunParser, decoding, load_run, texts
from tfm.config.names import UserError
from tfm.run.predict import FILTERS, TextWriter
from tfm.terminal import console, plain, show, show_json, table

TEMPERATURES = (0.5, 1.0, 2.0)
SHOWN = 10  # tokens of a distribution
BAR = 20  # characters


def main(argv: Sequence[str]) -> None:
    parser = RunParser("generate", __doc__)
    parser.add_text()
    parser.add_flag("--lines", "each line is a prompt")
    parser.add_flag("--start", "generate from the start token, without a prompt")
    text = "show the probabilities of the next token at several temperatures"
    parser.add_flag("--distribution", text)
    parser.add_part()
    parser.add_decoding()
    parser.add_json()
    args = parser.parse(argv)
    settings = decoding(args, **({"temperature": "1"} if args.distribution else {}))
    if args.start and (args.text is not None or args.file is not None or args.lines):
        raise UserError("--start writes without a prompt: leave out the text")
    prompts: list[str | None] = [None] if args.start else [*texts(args, args.lines)]
    writer = TextWriter(load_run(args), args.part)
    if args.distribution:
        _distribution(writer, prompts, settings, args.json)
    elif args.json:
        show_json(writer.write(prompts, settings))
    elif len(prompts) == settings.get("beams", 1) == settings.get("n_best", 1) == 1:
        for piece in writer.stream(prompts[0], settings):
            show(piece, end="")
        print()
    else:
        show_sequences(writer.write(prompts, settings))


def show_sequences(answers: Sequence[dict[str, Any]]) -> None:
    """Prints a line for each sequence, with its score if a text has several."""
    for answer in answers:
        for sequence in answer["sequences"]:
            score = f"{sequence['score']:.4f}\t" if len(answer["sequences"]) > 1 else ""
            show(score + sequence["text"])


def _distribution(
    writer: TextWriter, prompts: Sequence[str | None], settings: dict[str, Any], as_json: bool
) -> None:
    """Prints the probabilities of the next tokens."""
    if len(prompts) > 1:
        raise UserError("--distribution is of one prompt: leave out --lines")
    unused = set(settings) - {"temperature", *FILTERS}
    if unused:
        raise UserError(f"--{min(unused)}: it does not change --distribution")
    chosen = float(settings["temperature"])
    temperatures = sorted({*TEMPERATURES, *([chosen] if chosen else [])})
    order, p_NV = writer.distribution(prompts[0], settings, temperatures, SHOWN)
    names = writer.reader.names(order)
    if as_json:
        rows = []
        for id_, name in zip(order, names, strict=True):
            probability = dict(zip(map(str, temperatures), p_NV[:, id_].tolist(), strict=True))
            rows.append({"id": id_, "text": name, "probability": probability})
        show_json(rows)
        return
    out = table("next token", *(f"temperature {t:g}" for t in temperatures))
    for id_, name in zip(order, names, strict=True):
        bars = [f"{p:.4f} {'█' * round(BAR * p)}" for p in p_NV[:, id_]]
        out.add_row(repr(plain(name)), *bars)
    rest = 1 - p_NV[:, order].sum(1)
    out.add_row("all others", *(f"{max(p, 0):.4f} {'█' * round(BAR * p)}" for p in rest))
    console().print(out)

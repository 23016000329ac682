"""Fills the masks of a text, as in "the cat [MASK] on the mat".

For runs of the objectives `masked_lm`, `bert`, `span_corruption` and `ul2`, and for imported
encoders with the first. Each line of a file or of stdin is one text. For an encoder, [MASK] stands
for one token; several are predicted independently, with all of them masked. For the others it
stands for a span of any length, found by beam search. Prints a table for each mask: the most likely
tokens, or spans, and their probabilities.
"""

from collections.abc import Sequence

from tfm.cli.options import RunParser, load_run, texts
from tfm.data.reader import MASK
from tfm.run.predict import fill
from tfm.terminal import console, plain, show_json, table


def main(argv: Sequence[str]) -> None:
    parser = RunParser("fill", __doc__)
    parser.add_text()
    parser.add_number("--top", "answers shown (5)", 5)
    parser.add_json()
    args = parser.parse(argv)
    lines = texts(args, lines=True)
    loaded = load_run(args)
    answers = [(text, fill(loaded, text, args.top)) for text in lines]
    if args.json:
        rows = [{"text": text, "masks": masks} for text, masks in answers]
        show_json(rows)
        return
    for text, masks in answers:
        for number, tokens in enumerate(masks, 1):
            out = table(f"{MASK} {number}", ">probability", title=plain(text))
            for token in tokens:
                out.add_row(repr(token["token"]), f"{token['probability']:.4f}")
            console().print(out)

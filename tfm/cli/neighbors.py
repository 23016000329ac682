"""Finds the words whose vectors are nearest to a word, or to an analogy.

Uses the vectors of Word2Vec, or the token embedding of any other model. Nearness is the cosine.
With --analogy, three words a, b, c ask what is to c as b is to a: the words nearest to b − a + c,
without those three (Mikolov et al. 2013). An unknown word is looked up again ignoring its case.

  tfm neighbors RUN cat
  tfm neighbors RUN "man king woman" --analogy
"""

from collections.abc import Sequence

from tfm.cli.options import RunParser, load_run
from tfm.config.names import UserError
from tfm.evaluate.word_vectors import neighbors
from tfm.terminal import console, show_json, table


def main(argv: Sequence[str]) -> None:
    parser = RunParser("neighbors", __doc__)
    parser.add_value("words", "WORD", "one word or three", nargs="?", default="")
    parser.add_flag("--analogy", "solve an analogy of three words")
    parser.add_number("--top", "words shown (10)", 10)
    parser.add_json()
    args = parser.parse(argv)
    words, count = args.words.split(), 3 if args.analogy else 1
    if len(words) != count:
        hint = 'write "man king woman"' if args.analogy else "three words need --analogy"
        raise UserError(f"{len(words)} word(s) given, {count} wanted: {hint}")
    nearest_words = neighbors(load_run(args), words, args.top)
    if args.json:
        show_json(nearest_words)
        return
    out = table("word", ">cosine")
    for row in nearest_words:
        out.add_row(row["word"], f"{row['cosine']:.4f}")
    console().print(out)

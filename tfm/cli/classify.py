"""Classifies a text or a pair of texts, or predicts a number for it.

For runs of the objectives `classify`, `pair` and `regress`, and for imported models with classes.
Each line of a file or of stdin is one text. A second sentence is given with --second, or in each
line after a tab. Prints a line for each text: the class, its probability, and the text. --json
prints the probability of every class. A model with a single score prints the score as it is.
"""

from collections.abc import Sequence

from tfm.cli.options import RunParser, load_run, report_unknown, texts
from tfm.run.predict import classify
from tfm.terminal import show, show_json


def main(argv: Sequence[str]) -> None:
    parser = RunParser("classify", __doc__)
    parser.add_text()
    parser.add_value("--second", "TEXT", "the second sentence")
    parser.add_json()
    args = parser.parse(argv)
    lines = [line.partition("\t") for line in texts(args, lines=True)]
    pairs = [(first, second if tab else args.second) for first, tab, second in lines]
    loaded = load_run(args)
    answers = classify(loaded, pairs)
    report_unknown(loaded, [text for pair in pairs for text in pair if text is not None])
    if args.json:
        show_json(answers)
        return
    for answer in answers:
        text = "\t".join(answer[name] for name in ("text", "second") if name in answer)
        if "number" in answer:
            show(f"{answer['number']:.4f}\t{text}")
        else:
            show(f"{answer['class']}\t{answer['classes'][answer['class']]:.4f}\t{text}")

"""Tags each word of a text.

For runs of the objective `tag`, and for imported models with tags. Each line of a file or of stdin
is one text. Words are separated by spaces: write punctuation as in the training data. Prints a line
for each word, with its tag and the tag's probability, and an empty line after each text.
"""

from collections.abc import Sequence

from tfm.cli.options import RunParser, load_run, report_unknown, texts
from tfm.config.names import UserError
from tfm.run.predict import tag
from tfm.terminal import show, show_json


def main(argv: Sequence[str]) -> None:
    parser = RunParser("tag", __doc__)
    parser.add_text()
    parser.add_json()
    args = parser.parse(argv)
    lines = texts(args, lines=True)
    if not lines[0].strip():
        raise UserError("the text is empty")
    loaded = load_run(args)
    answers = tag(loaded, lines)
    report_unknown(loaded, lines)
    if args.json:
        show_json(answers)
        return
    for words_of_text in answers:
        for word in words_of_text:
            show(f"{word['word']}\t{word['tag']}\t{word['probability']:.4f}")
        print()

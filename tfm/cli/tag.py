"""Tags each word of a text.

For runs of the objective `tag`, and for imported models with tags. Each line of a file or of stdin
is one text. Words are separated by spaces: write punctuation as in the training data. Prints a line
for each word, with its tag and the tag's probability, and an empty line after each text.
"""

import json
from collections.abc import Sequence
from typing import Any

from tfm.cli.options import RunParser, load_run, texts
from tfm.config.names import UserError
from tfm.objectives.tag import Tag
from tfm.run.read import answers, softmax, words
from tfm.run.text import codec_of, form_of, labels_of


def tag(loaded: Any, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Of each word of each text its tag, and how likely it is."""
    if loaded.run is None:
        if "tag" not in getattr(loaded.spec, "outputs", ()):
            raise UserError(f"{loaded.folder}: the imported model has no tags")
    elif not isinstance(loaded.run.objective.entry, Tag):
        raise UserError(
            f"{loaded.folder} was trained by objective={str(loaded.run.objective)!r}, not by tag"
        )
    pairs = loaded.run is not None and form_of(loaded.run.data.dataset.entry) == "pairs"
    codec, names = codec_of(loaded), None if pairs else labels_of(loaded)
    by_token = pairs or (names is None and loaded.spec.classes == codec.vocab)
    types = loaded.run is None and loaded.spec.types > 0
    split = [text.split() for text in texts]
    rows = [words(loaded, own) for own in split]
    found = []
    for own, row, logits_TC in zip(split, rows, answers(loaded, rows, "tag", types), strict=True):
        p_TC = softmax(logits_TC)
        shown = []
        for word, place in zip(own, row.places, strict=True):
            best = int(p_TC[place].argmax())
            if names is not None and best < len(names):
                name = names[best]
            else:
                name = codec.piece(best) if by_token else str(best)
            shown.append({"word": word, "tag": name, "probability": float(p_TC[place, best])})
        found.append(shown)
    return found


def main(argv: Sequence[str]) -> None:
    parser = RunParser("tag", __doc__)
    parser.add_text()
    parser.add_json()
    args = parser.parse(argv)
    lines = texts(args, lines=True)
    if not lines[0].strip():
        raise UserError("the text is empty")
    answers = tag(load_run(args), lines)
    if args.json:
        print(json.dumps(answers, indent=1, ensure_ascii=False))
        return
    for words_of_text in answers:
        for word in words_of_text:
            print(f"{word['word']}\t{word['tag']}\t{word['probability']:.4f}")
        print()

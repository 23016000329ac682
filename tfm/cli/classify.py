"""Classifies a text or a pair of texts, or predicts a number for it.

For runs of the objectives `classify`, `pair` and `regress`, and for imported models with classes.
Each line of a file or of stdin is one text. A second sentence is given with --second, or in each
line after a tab. Prints a line for each text: the class, its probability, and the text. --json
prints the probability of every class.
"""

import json
from collections.abc import Sequence
from typing import Any

from tfm.cli.options import RunParser, load_run, texts
from tfm.config.names import UserError
from tfm.objectives.classify import Classify, Pair, Regress
from tfm.run.read import answers, sentences, softmax
from tfm.run.text import labels_of, reads_two


def classify(loaded: Any, texts: Sequence[tuple[str, str | None]]) -> list[dict[str, Any]]:
    """Of each text, with its second if it has one: the class and all probabilities, or a number."""
    output, types, number = _head(loaded)
    if types and loaded.run is not None and any(second is None for _, second in texts):
        raise UserError("the run was trained on two sentences: give the second, --second=TEXT")
    if not reads_two(loaded) and any(second is not None for _, second in texts):
        raise UserError("the run was trained on single sentences: leave out the second")
    rows = [sentences(loaded, *text) for text in texts]
    names = None if number else labels_of(loaded)
    found: list[dict[str, Any]] = []
    for (text, second), logits in zip(texts, answers(loaded, rows, output, types), strict=True):
        about = {"text": text} if second is None else {"text": text, "second": second}
        if number:
            found.append({**about, "number": float(logits[0])})
            continue
        p = softmax(logits)
        named = (
            names if names is not None and len(names) <= len(p) else tuple(map(str, range(len(p))))
        )
        chances = {name: float(p[i]) for i, name in enumerate(named)}
        found.append({**about, "class": max(chances, key=lambda n: chances[n]), "classes": chances})
    return found


def _head(loaded: Any) -> tuple[str, bool, bool]:
    """The output that is read, whether tokens have types, and whether it is a number."""
    if loaded.run is None:
        outputs = [str(name) for name in getattr(loaded.spec, "outputs", ())]
        named = [name for name in ("classify", "pair") if name in outputs]
        if not named:
            raise UserError(
                f"{loaded.folder}: the imported model has no head for classes"
                + (f"; it has one for {', '.join(outputs)}" if outputs else "")
            )
        return named[0], loaded.spec.types > 0, False
    objective = loaded.run.objective.entry
    if not isinstance(objective, Classify):
        raise UserError(
            f"{loaded.folder} was trained by objective={str(loaded.run.objective)!r}, not by "
            "classify, pair or regress"
        )
    pair = isinstance(objective, Pair)
    return "pair" if pair else "classify", pair, isinstance(objective, Regress)


def main(argv: Sequence[str]) -> None:
    parser = RunParser("classify", __doc__)
    parser.add_text()
    parser.add_argument("--second", metavar="TEXT", help="the second sentence")
    parser.add_json()
    args = parser.parse(argv)
    pairs: list[tuple[str, str | None]] = []
    for line in texts(args, lines=True):
        first, tab, second = line.partition("\t")
        pairs.append((first, second if tab else args.second))
    answers = classify(load_run(args), pairs)
    if args.json:
        print(json.dumps(answers, indent=1, ensure_ascii=False))
        return
    for answer in answers:
        text = "\t".join(answer[name] for name in ("text", "second") if name in answer)
        if "number" in answer:
            print(f"{answer['number']:.4f}\t{text}")
        else:
            print(f"{answer['class']}\t{answer['classes'][answer['class']]:.4f}\t{text}")

"""Finds the words whose vectors are nearest to a word, or to an analogy.

Uses the vectors of Word2Vec, or the token embedding of any other model. Nearness is the cosine.
With --analogy, three words a, b, c ask what is to c as b is to a: the words nearest to b − a + c,
without those three (Mikolov et al. 2013). An unknown word is looked up again ignoring its case.

  tfm neighbors RUN cat
  tfm neighbors RUN "man king woman" --analogy
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.cli.main import whole
from tfm.cli.options import RunParser, load_run
from tfm.config.names import UserError, suggest
from tfm.evaluate.word_vectors import nearest
from tfm.run.text import codec_of
from tfm.terminal import console, table


def vectors_of(loaded: Any) -> np.ndarray:
    """VD: the vectors of a model's tokens."""
    params = loaded.params
    for path in (
        ("input",),
        ("embed", "token", "embedding"),
        ("source_embed", "token", "embedding"),
    ):
        found: Any = params
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            return np.asarray(found, np.float32)
    raise UserError(f"{loaded.folder}: its model has no vectors of tokens")


def neighbors(loaded: Any, given: Sequence[str], top: int = 10) -> list[dict[str, Any]]:
    """The words nearest to one word, or to b − a + c of three, with their cosines."""
    codec, vectors_VD = codec_of(loaded), vectors_of(loaded)
    count = min(codec.vocab, len(vectors_VD))
    spelled = [codec.piece(id_).strip() for id_ in range(count)]
    ids: dict[str, int] = {}
    for spelling in (spelled, [word.lower() for word in spelled]):
        for id_, word in enumerate(spelling):
            ids.setdefault(word, id_)
    asked = [ids.get(word, ids.get(word.lower(), -1)) for word in given]
    if -1 in asked:
        word = given[asked.index(-1)]
        raise UserError(f"the run has no vector for {word!r}{_near(word, ids)}")
    signs = [1.0] if len(asked) == 1 else [-1.0, 1.0, 1.0]
    return [
        {"word": spelled[id_], "id": id_, "cosine": cosine}
        for id_, cosine in nearest(vectors_VD[:count], asked, signs, top)
    ]


def _near(word: str, ids: dict[str, int]) -> str:
    hint = suggest(word, ids)
    return hint if "did you mean" in hint else ""


def main(argv: Sequence[str]) -> None:
    parser = RunParser("neighbors", __doc__)
    parser.add_argument("words", metavar="WORD", nargs="?", default="", help="one word or three")
    parser.add_argument("--analogy", action="store_true", help="solve an analogy of three words")
    parser.add_argument("--top", metavar="N", type=whole(), default=10, help="words shown (10)")
    parser.add_json()
    args = parser.parse(argv)
    words, count = args.words.split(), 3 if args.analogy else 1
    if len(words) != count:
        hint = 'write "man king woman"' if args.analogy else "three words need --analogy"
        raise UserError(f"{len(words)} word(s) given, {count} wanted: {hint}")
    nearest_words = neighbors(load_run(args), words, args.top)
    if args.json:
        print(json.dumps(nearest_words, indent=1, ensure_ascii=False))
        return
    out = table("word", ">cosine")
    for row in nearest_words:
        out.add_row(row["word"], f"{row['cosine']:.4f}")
    console().print(out)

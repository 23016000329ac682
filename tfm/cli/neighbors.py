"""The words whose vectors are nearest to those of a word, or to an analogy.

  tfm neighbors RUN WORD [--top=10] [--json] [--checkpoint=best] [--trust]
  tfm neighbors RUN "man king woman" --analogy

For Word2Vec, and for any other model the vectors of its embedding. Nearness is the cosine. With
--analogy three words a, b, c ask what is to c as b is to a: the words nearest to b − a + c, those
three left out (Mikolov et al. 2013). A word that is not known as it is written is looked up without
regard to case.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.cli import options
from tfm.config import arguments
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
    given = options.parse(argv, __doc__, ("top",), ("analogy",))
    if given is None:
        return
    asked = " ".join(given.words[1:]).split()
    wanted = 3 if "analogy" in given.flags else 1
    if len(asked) != wanted:
        raise UserError(
            f"{len(asked)} word(s) given, {wanted} wanted: "
            + ('write "man king woman"' if wanted == 3 else "an analogy of three has --analogy")
        )
    found = neighbors(options.load_run(given), asked, arguments.whole(given, "top", 10))
    if "json" in given.flags:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    out = table("word", ">cosine")
    for one in found:
        out.add_row(one["word"], f"{one['cosine']:.4f}")
    console().print(out)

"""Fill the masks of a text.

  tfm fill RUN "the cat [MASK] on the mat" [--file=FILE] [--top=5] [--json] [--checkpoint=best]
           [--trust]

For runs of the objective `masked_lm`, and for imported encoders with that head. [MASK] stands for
one token. Where there are several, each is predicted by itself, all others being masked. There is a
table for each mask: the most likely tokens, and how likely each is.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.cli import options
from tfm.config import arguments
from tfm.config.names import UserError
from tfm.objectives.masked_lm import MaskedLM
from tfm.run.read import Row, answers, softmax
from tfm.run.text import codec_of
from tfm.terminal import console, plain, table

MASK = "[MASK]"


def fill(loaded: Any, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
    """Of each mask of a text the most likely tokens, and how likely each is."""
    if MASK not in text:
        raise UserError(f"the text has no {MASK}, which stands for the token to be predicted")
    row, codec = _masked(loaded, text), codec_of(loaded)
    types = loaded.run is None and loaded.spec.types > 0
    (logits_TV,) = answers(loaded, [row], "masked_lm", types)
    found = []
    for place in row.places:
        p_V = softmax(logits_TV[place])
        order = np.argsort(-p_V, kind="stable")[:top]
        found.append(
            [
                {"token": codec.piece(int(i)), "id": int(i), "probability": float(p_V[i])}
                for i in order
            ]
        )
    return found


def _masked(loaded: Any, text: str) -> Row:
    if loaded.run is None:
        if "masked_lm" not in getattr(loaded.spec, "outputs", ()):
            raise UserError(f"{loaded.folder}: the imported model does not predict masked tokens")
        own = loaded.tokenizer
        named = [own.token_to_id(name) for name in ("[MASK]", "<mask>")]
        known = [id_ for id_ in named if id_ is not None]
        if not known:
            raise UserError(f"{loaded.folder}: its tokenizer has no mask token")
        found = own.encode(text.replace(MASK, str(own.id_to_token(known[0]))))
        masks = [place for place, id_ in enumerate(found.ids) if id_ == known[0]]
        return Row(found.ids, found.type_ids, masks)
    if not isinstance(loaded.run.objective.entry, MaskedLM):
        raise UserError(
            f"{loaded.folder} was trained by objective={str(loaded.run.objective)!r}, not by "
            "masked_lm"
        )
    codec, special = codec_of(loaded), codec_of(loaded).special
    # Where there is no mask token, its id comes after those of the data.
    mask = codec.vocab if special is None or special.mask is None else special.mask
    # A word may begin with its space; then the mask has it too.
    joins = len(codec.encode("a the")) < len(codec.encode("a ")) + len(codec.encode("the"))
    ids: list[int] = []
    places: list[int] = []
    parts = text.split(MASK)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        own = part[:-1] if joins and not last and part.endswith(" ") else part
        ids += codec.encode(own) if own else []
        if not last:
            places.append(len(ids))
            ids.append(mask)
    return Row(ids, [0] * len(ids), places)


def main(argv: Sequence[str]) -> None:
    given = options.parse(argv, __doc__, ("file", "top"))
    if given is None:
        return
    top = arguments.whole(given, "top", 5)
    texts = options.texts_of(given, lines=True)
    for text in texts:
        if MASK not in text:
            raise UserError(f"{text!r} has no {MASK}, which stands for the token to be predicted")
    loaded = options.load_run(given)
    found = [fill(loaded, text, top) for text in texts]
    if "json" in given.flags:
        rows = [{"text": text, "masks": own} for text, own in zip(texts, found, strict=True)]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for text, masks in zip(texts, found, strict=True):
        for number, tokens in enumerate(masks, 1):
            out = table(f"{MASK} {number}", ">probability", title=plain(text))
            for one in tokens:
                out.add_row(repr(one["token"]), f"{one['probability']:.4f}")
            console().print(out)

"""Predicts the masked tokens of a text, as in "the cat [MASK] on the mat".

For runs of the objective `masked_lm`, and for imported encoders with that head. Each line of a file
or of stdin is one text. [MASK] stands for one token; several are predicted independently, with all
of them masked. Prints a table for each mask: the most likely tokens and their probabilities.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.cli.main import whole
from tfm.cli.options import RunParser, load_run, texts
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
    parser = RunParser("fill", __doc__)
    parser.add_text()
    parser.add_argument("--top", metavar="N", type=whole(), default=5, help="tokens shown (5)")
    parser.add_json()
    args = parser.parse(argv)
    lines = texts(args, lines=True)
    for text in lines:
        if MASK not in text:
            raise UserError(f"{text!r} has no {MASK}, which stands for the token to be predicted")
    loaded = load_run(args)
    answers = [(text, fill(loaded, text, args.top)) for text in lines]
    if args.json:
        rows = [{"text": text, "masks": masks} for text, masks in answers]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for text, masks in answers:
        for number, tokens in enumerate(masks, 1):
            out = table(f"{MASK} {number}", ">probability", title=plain(text))
            for token in tokens:
                out.add_row(repr(token["token"]), f"{token['probability']:.4f}")
            console().print(out)

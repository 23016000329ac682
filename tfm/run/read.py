"""What a model that answers about a text is given: the ids of texts, as in its training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tfm.config.names import UserError
from tfm.data.records import WordEncoder
from tfm.data.tokenizers.tokenizer import Tokenizer
from tfm.decode.start import bucket, longest, padded, pads
from tfm.run.text import codec_of


class Row(NamedTuple):
    """The ids of a text, the type of each, and where its words begin (or its masks stand)."""

    ids: list[int]
    types: list[int]
    places: list[int]


def sentences(loaded: Any, text: str, second: str | None = None) -> Row:
    """A sentence or two, as a classifier reads them."""
    codec, own = codec_of(loaded), loaded.tokenizer
    if loaded.run is None:
        found = own.encode(text) if second is None else own.encode(text, second)
        return Row(found.ids, found.type_ids, [])
    first, special = codec.encode(text), codec.special
    wraps = isinstance(own, Tokenizer) and own.wraps
    head = [special.bos] if wraps and special is not None else []
    if second is not None:
        if special is None:
            raise UserError("this run reads one text: its data have no separator")
        tail = [*codec.encode(second), special.sep]
        ids = [*head, *first, special.sep, *tail]
        return Row(ids, [0] * (len(ids) - len(tail)) + [1] * len(tail), [])
    ids = [*head, *first, *([special.sep] if wraps and special is not None else [])]
    return Row(ids, [0] * len(ids), [])


def words(loaded: Any, given: Sequence[str]) -> Row:
    """Words, and where the first piece of each stands."""
    own = loaded.tokenizer
    if loaded.run is None:
        found = own.encode(list(given), is_pretokenized=True)
        places = [found.word_ids.index(number) for number in range(len(given))]
        return Row(found.ids, found.type_ids, places)
    if not isinstance(own, Tokenizer):
        ids = codec_of(loaded).encode(" ".join(given))
        return Row(ids, [0] * len(ids), list(range(len(ids))))
    encoder = WordEncoder(own)
    ids = encoder([list(given)]).ids.tolist()
    many = encoder.pieces
    before = 1 if own.wraps else 0
    places = (np.cumsum(many) - many + before).tolist()
    if own.wraps:
        ids = [own.special.bos, *ids, own.special.sep]
    return Row(ids, [0] * len(ids), places)


def answers(loaded: Any, rows: Sequence[Row], output: str, types: bool) -> list[np.ndarray]:
    """The logits of each row: of the whole, or of each of its tokens."""
    spec = loaded.spec
    most = longest(spec)
    for row in rows:
        if not row.ids:
            raise UserError("the text has no token")
        if most is not None and len(row.ids) > most:
            raise UserError(
                f"a text has {len(row.ids)} tokens, and the model was made for {most} "
                "(model.max_length); nothing is cut off: shorten it"
            )
        if spec.vocab is not None and max(row.ids) >= spec.vocab:
            raise UserError(
                f"a text has the id {max(row.ids)}, and the model has {spec.vocab} ids: the "
                "tokenizer is not the model's"
            )

    @jax.jit
    def run(variables: Any, inputs: Any) -> Any:
        out: Any = loaded.model.apply(variables, **inputs)
        return out[output] if isinstance(out, dict) else out

    found = []
    for row in rows:
        length = bucket(len(row.ids), most) if pads(spec) else len(row.ids)
        tokens_BT, valid_BT = padded([row.ids], length)
        inputs: dict[str, Any] = {"tokens_BT": tokens_BT}
        if pads(spec):
            inputs["valid_BT"] = valid_BT
        if types:
            inputs["types_BT"] = padded([row.types], length)[0]
        found.append(np.asarray(run(loaded.variables, inputs)[0]))
    return found


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)

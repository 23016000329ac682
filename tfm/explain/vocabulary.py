"""What a run's ids stand for: text to ids, and each id as a person would write it."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Special
from tfm.data.tokenizers.tokenizer import Tokenizer
from tfm.run.imported import imported_tokenizer, read_tokenizer
from tfm.run.load import LoadedRun
from tfm.run.text import id_name, numbers, token_names

MASKS = ("[MASK]", "<mask>")  # how a person writes the token that is to be filled in


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """`start` begins what a decoder writes. `form` is that of the data; "" if it is not known."""

    encode: Callable[[str], list[int]]
    names: Callable[[Sequence[int]], list[str]]
    special: Special
    start: int
    form: str = ""
    wraps: bool = False  # what is classified stands between `bos` and `sep`
    labels: tuple[str, ...] | None = None  # names of classes or tags

    def with_masks(self, text: str) -> list[int]:
        """The ids of a text in which [MASK] stands for the mask token."""
        for mask in MASKS:
            if mask in text and self.special.mask is not None:
                parts = [self.encode(part) for part in text.split(mask)]
                return [id_ for part in parts for id_ in (*part, self.special.mask)][:-1]
        return self.encode(text)


def of_run(loaded: LoadedRun) -> Vocabulary:
    if loaded.run is None:
        return _imported(loaded)
    objective = loaded.run.objective.names[0]
    try:
        data: Dataset | None = loaded.data["train"]
    except UserError:  # its files are not here; the tokenizer is in the run's folder
        data = None
    tokenizer = loaded.tokenizer if data is None or data.vocabulary else data
    if isinstance(tokenizer, Tokenizer):
        wraps = tokenizer.wraps and objective in ("classify", "pair", "regress", "tag")
        form = "" if data is None else data.form
        labels = None if data is None else data.label_names
        special = _with_mask(tokenizer.special, tokenizer.vocab, loaded)
        names = functools.partial(token_names, tokenizer)
        return Vocabulary(tokenizer.encode, names, special, special.bos, form, wraps, labels)
    assert data is not None
    special = _with_mask(data.special, data.vocab, loaded)
    return Vocabulary(
        data.encode or numbers,
        lambda ids: [id_name(data, special, id_) for id_ in ids],
        special,
        special.bos,
        data.form,
        labels=data.label_names,
    )


def _imported(loaded: LoadedRun) -> Vocabulary:
    config = json.loads((loaded.folder / "huggingface.json").read_text())
    start = config.get("decoder_start_token_id", config.get("bos_token_id"))
    if not imported_tokenizer(loaded.folder).is_file():
        names = lambda ids: [str(id_) for id_ in ids]  # noqa: E731
        return Vocabulary(numbers, names, Special(), start or 0)
    tokenizer = read_tokenizer(loaded.folder)
    special = tokenizer.special
    return Vocabulary(
        lambda text: tokenizer.encode(text, special=True),
        functools.partial(token_names, tokenizer),
        special,
        special.bos if start is None else int(start),
    )


def _with_mask(special: Special, vocab: int, loaded: LoadedRun) -> Special:
    """Where the data have no mask token, objectives take the id after those of the data."""
    if special.mask is None and (loaded.spec.vocab or 0) > vocab:
        return special._replace(mask=vocab)
    return special

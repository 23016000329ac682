"""The tokenizer that an imported model brings along."""

import pathlib

from tfm.data.tokenizers.published import tokenizer_json
from tfm.data.tokenizers.tokenizer import Tokenizer, vocabulary_of


def imported_tokenizer(folder: pathlib.Path) -> pathlib.Path:
    """Where it is, if there is one."""
    return folder / "tokenizer" / "tokenizer.json"


def read_tokenizer(folder: pathlib.Path) -> Tokenizer:
    """As one of ours."""
    return tokenizer_json(str(imported_tokenizer(folder))).make(iter(()))


def imported_vocabulary(folder: pathlib.Path) -> str | None:
    """What the ids of the model stand for, as a run would save it."""
    if not imported_tokenizer(folder).is_file():
        return None
    return vocabulary_of(read_tokenizer(folder), None)

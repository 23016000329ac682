"""Tokenizers: text to ids and back, and the vocabulary that is saved with a run.

The rules are those of the `tokenizers` library; this module adds the special ids. Special tokens
that occur in a text are treated as text, unless someone asks for `parsing`: only data sets and
objectives insert special ids.
"""

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from tfm.config.names import UserError
from tfm.data.dataset import Special

HAN = r"\p{Han}\u3000-\u303f\uff00-\uffef"  # Chinese characters and punctuation, for `tokenizers`
_HAN = r"[\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"  # the same for `re`
_BETWEEN = re.compile(rf"(?<={_HAN}) | (?={_HAN})")


WRAPPED = ("labels", "tags")  # forms whose texts stand between `bos` and `sep`, as in BERT


class Around(NamedTuple):
    """Ids before and after a text, between two texts, and after the second."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()


@dataclasses.dataclass(eq=False)
class Tokenizer:
    """Maps text to ids by the rules of the `tokenizers` library."""

    rules: tokenizers.Tokenizer
    special: Special
    _: dataclasses.KW_ONLY
    wraps: bool = False  # sequences to classify are put between `bos` and `sep`, as in BERT
    spaced: bool = False  # a word within a text begins with its space
    segmenter: str | None = None  # a library that first separates Chinese words by spaces
    joins: bool = False  # decoded tokens are words, joined by spaces
    vocab: int = 0  # the least number of ids
    first_byte: int | None = None  # the id of byte 0, if ids are bytes
    published: Around | None = None  # ids that an imported model reads around texts

    def __post_init__(self) -> None:
        self.rules.encode_special_tokens = True  # as text
        self.rules.no_padding()
        self.rules.no_truncation()
        ids = [id_ for id_ in self.special if id_ is not None]
        self.vocab = max(self.vocab, 1 + max(*self.rules.get_vocab().values(), *ids))
        self._silent = {id_ for id_ in ids if id_ != self.special.unk}

    def around(self, form: str) -> Around:
        """Returns the ids that stand around the texts of data of a form."""
        special = self.special
        if self.published is None or form == "text":
            wraps = self.wraps and form in WRAPPED
            around = Around(before=(special.bos,), after=(special.sep,)) if wraps else Around()
        else:
            around = self.published
        if form != "pairs" and around.between:
            return around
        return around._replace(between=(special.sep,), closing=(special.sep,))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text."""
        return self.rules.encode(self.segmented(text), add_special_tokens=False).ids

    @functools.cached_property
    def parsing(self) -> "Tokenizer":
        """The same tokenizer, except that special tokens in a text are read as such."""
        other = copy.copy(self)
        other.rules = tokenizers.Tokenizer.from_str(self.rules.to_str())
        return other

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of many texts and the length of each. Uses all cores."""
        if self.first_byte is not None:  # the library would take a hundred times as long
            raw = [text.encode() for text in texts]
            ids_N = np.frombuffer(b"".join(raw), np.uint8).astype(np.int32) + self.first_byte
            return ids_N, np.fromiter(map(len, raw), np.int64, len(raw))
        if self.segmenter is not None:
            texts = [self.segmented(text) for text in texts]
        encodings = self.rules.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(itertools.chain.from_iterable(ids), np.int32, lengths.sum()), lengths

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids, without special tokens."""
        kept = [int(id_) for id_ in ids if int(id_) not in self._silent]
        text = self.rules.decode(kept, skip_special_tokens=False)
        return _BETWEEN.sub("", text) if self.joins else text

    def tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Returns the text of each id alone; special ids are in angle brackets."""
        names = {id_: f"<{name}>" for name, id_ in reversed(list(self.special._asdict().items()))}
        return [names.get(int(id_)) or self.rules.decode([int(id_)], False) for id_ in ids]

    def segmented(self, text: str) -> str:
        """Separates Chinese words by spaces, if there is a segmenter."""
        return text if self.segmenter is None else " ".join(_segment(self.segmenter)(text))

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.dumps.encode()).hexdigest()

    @functools.cached_property
    def dumps(self) -> str:
        """The tokenizer as JSON."""
        tree = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tree["rules"] = json.loads(self.rules.to_str())
        if self.published is None:
            del tree["published"]
        return json.dumps(tree, ensure_ascii=False, sort_keys=True)


@functools.lru_cache(maxsize=16)
def loads(text: str) -> Tokenizer:
    """Returns the tokenizer that `dumps` wrote."""
    try:
        tree: dict[str, Any] = json.loads(text)
        saved = json.dumps(tree, ensure_ascii=False, sort_keys=True)
        rules = tokenizers.Tokenizer.from_str(json.dumps(tree.pop("rules")))
        if "published" in tree:
            tree["published"] = Around(*map(tuple, tree["published"]))
        tokenizer = Tokenizer(rules, Special(*tree.pop("special")), **tree)
        vars(tokenizer)["dumps"] = saved  # the library may change the last bit of a number
        return tokenizer
    except Exception as e:  # the library raises `Exception` itself
        raise UserError(f"the saved tokenizer cannot be read: {e}") from e


@functools.lru_cache(maxsize=16)
def vocabulary_of(tokenizer: Tokenizer, labels: tuple[str, ...] | None) -> str:
    """Returns a tokenizer and the names of labels as JSON, as they are saved with a run."""
    tree = {"tokenizer": json.loads(tokenizer.dumps), "labels": labels}
    return json.dumps(tree, ensure_ascii=False, sort_keys=True)


@functools.lru_cache(maxsize=16)
def parsed_vocabulary(vocabulary: str) -> tuple[Tokenizer, tuple[str, ...] | None]:
    """Returns the tokenizer and the label names of a vocabulary; raises if it has none."""
    try:
        tree = json.loads(vocabulary)
        labels = tree["labels"]
        tokenizer = json.dumps(tree["tokenizer"])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            "the model has no tokenizer: it was trained on ids, or on characters"
        ) from None
    return loads(tokenizer), None if labels is None else tuple(labels)


def tokenizer_of(vocabulary: str | None) -> Tokenizer | None:
    """Returns the tokenizer of a run's vocabulary, if it has one."""
    try:
        return None if vocabulary is None else parsed_vocabulary(vocabulary)[0]
    except UserError:
        return None


def meaning_of_ids(vocabulary: str | None) -> str | None:
    """Returns what identifies the token ids of a vocabulary, regardless of its labels."""
    tokenizer = tokenizer_of(vocabulary)
    return vocabulary if tokenizer is None else tokenizer.digest


SEGMENTERS = {"jieba": "the extra `chinese` installs it: pip install 'tfm[chinese]'"}


@functools.cache
def _segment(name: str) -> Any:
    if name != "jieba":
        raise UserError(f"unknown segmenter {name!r}; known: {', '.join(SEGMENTERS)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # raised by its code
            import jieba
    except ImportError:
        raise UserError(f"words: segmenter={name!r} is not installed; {SEGMENTERS[name]}") from None
    jieba.setLogLevel("ERROR")
    return lambda text: jieba.cut(text, HMM=False)

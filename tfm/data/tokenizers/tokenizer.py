"""A tokenizer: text to ids and back. It is one string of JSON, which goes with a run.

The rules are those of the `tokenizers` library; here are the special ids, and the words for them.
Special tokens that stand in a text are text: only a data set or an objective puts their ids there.
"""

import functools
import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers

from tfm.config.names import UserError
from tfm.data.dataset import Special

HAN = r"\p{Han}\u3000-\u303f\uff00-\uffef"  # Chinese signs and punctuation, for `tokenizers`
_BETWEEN = re.compile(
    r"(?<=[\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]) "
    r"| (?=[\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef])"
)


class Tokenizer:
    """`wraps`: a sequence that is classified stands between `bos` and `sep`, as BERT has it.
    `spaced`: a word within a text begins with its space. `segmenter`: a library that puts spaces
    between Chinese words first. `joins`: what is decoded are words, which spaces join. `vocab`: how
    many ids there are at least. `first_byte`: ids are bytes, and this one is byte 0."""

    def __init__(
        self,
        rules: tokenizers.Tokenizer,
        special: Special,
        *,
        wraps: bool = False,
        spaced: bool = False,
        segmenter: str | None = None,
        joins: bool = False,
        vocab: int = 0,
        first_byte: int | None = None,
    ):
        self.rules, self.special = rules, special
        self.wraps, self.spaced, self.segmenter, self.joins = wraps, spaced, segmenter, joins
        self.first_byte = first_byte
        rules.encode_special_tokens = True  # as text
        rules.no_padding()
        rules.no_truncation()
        ids = [id_ for id_ in special if id_ is not None]
        self.vocab = max(vocab, *(id_ + 1 for id_ in (*rules.get_vocab().values(), *ids)))
        self._silent = {id_ for id_ in ids if id_ != special.unk}

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of a text. `special`: with those that the library's rules put around it."""
        return self.rules.encode(self.segmented(text), add_special_tokens=special).ids

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of many texts, one after another, and how many each has. On all cores."""
        if self.first_byte is not None:  # the library would take a hundred times as long
            raw = [text.encode() for text in texts]
            ids_N = np.frombuffer(b"".join(raw), np.uint8).astype(np.int32) + self.first_byte
            return ids_N, np.fromiter(map(len, raw), np.int64, len(raw))
        if self.segmenter is not None:
            texts = [self.segmented(text) for text in texts]
        found = self.rules.encode_batch_fast(texts, add_special_tokens=False)
        ids = [one.ids for one in found]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(itertools.chain.from_iterable(ids), np.int32, lengths.sum()), lengths

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text, without special tokens."""
        kept = [int(id_) for id_ in ids if int(id_) not in self._silent]
        text = self.rules.decode(kept, skip_special_tokens=False)
        return _BETWEEN.sub("", text) if self.joins else text

    def tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Each id by itself, as a person would write it; special ones in angle brackets."""
        names = {id_: f"<{name}>" for name, id_ in reversed(list(self.special._asdict().items()))}
        return [names.get(int(id_)) or self.rules.decode([int(id_)], False) for id_ in ids]

    def segmented(self, text: str) -> str:
        return text if self.segmenter is None else " ".join(_segment(self.segmenter)(text))

    def huggingface(self) -> dict[str, str]:
        """The files that `transformers` reads it from; none where a segmenter goes first."""
        if self.segmenter is not None:
            return {}
        names = {name: self.rules.id_to_token(id_) for name, id_ in self._given().items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | {
            f"{name}_token": token for name, token in names.items() if token is not None
        }
        files = {"tokenizer.json": json.loads(self.rules.to_str()), "tokenizer_config.json": config}
        return {
            name: json.dumps(tree, ensure_ascii=False, indent=1) for name, tree in files.items()
        }

    def _given(self) -> dict[str, int]:
        return {name: id_ for name, id_ in self.special._asdict().items() if id_ is not None}

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.dumps.encode()).hexdigest()

    @functools.cached_property
    def dumps(self) -> str:
        """The tokenizer as JSON."""
        options = {
            "special": list(self.special),
            "wraps": self.wraps,
            "spaced": self.spaced,
            "segmenter": self.segmenter,
            "joins": self.joins,
            "vocab": self.vocab,
            "first_byte": self.first_byte,
        }
        rules = json.loads(self.rules.to_str())
        return json.dumps({**options, "rules": rules}, ensure_ascii=False, sort_keys=True)


@functools.lru_cache(maxsize=16)
def loads(text: str) -> Tokenizer:
    """The tokenizer that `dumps` wrote."""
    try:
        tree: dict[str, Any] = json.loads(text)
        saved = json.dumps(tree, ensure_ascii=False, sort_keys=True)
        rules = tokenizers.Tokenizer.from_str(json.dumps(tree.pop("rules")))
        tokenizer = Tokenizer(rules, Special(*tree.pop("special")), **tree)
        vars(tokenizer)["dumps"] = saved  # the library reads numbers to their last bit but one
        return tokenizer
    except Exception as e:  # the library raises `Exception` itself
        raise UserError(f"the tokenizer that was saved cannot be read: {e}") from e


SEGMENTERS = {"jieba": "the extra `chinese` brings it: pip install 'tfm[chinese]'"}


@functools.cache
def _segment(name: str) -> Any:
    if name != "jieba":
        raise UserError(f"unknown segmenter {name!r}; known: {', '.join(SEGMENTERS)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own code
            import jieba
    except ImportError:
        raise UserError(f"words: segmenter={name!r} is not installed; {SEGMENTERS[name]}") from None
    jieba.setLogLevel("ERROR")
    return lambda text: jieba.cut(text, HMM=False)

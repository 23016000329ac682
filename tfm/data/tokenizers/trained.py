"""Tokenizers that learn their vocabulary from the training split.

`characters`, `bytes`, `bpe` and `unigram` reproduce any text exactly. `words` and `wordpiece` do
not keep spaces, and have a token for unknown words.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Rules

from tfm.config.names import UserError, pick
from tfm.data.dataset import Special, whole
from tfm.data.tokenizers.tokenizer import HAN, SEGMENTERS, Tokenizer

# No text contains these as one token, since no token of a text has a space within it.
PAD, BOS, EOS, MASK = "< pad >", "< bos >", "< eos >", "< mask >"
UNKNOWN = "<unk>"  # as in WikiText
ALL_KNOWN = Special(mask=3)  # and no `unk`
SOME_UNKNOWN = Special(unk=3, mask=4)
BERT = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
MOST = 10_000_000  # tokens; the trainers reserve memory for all of them
ALPHABET = {"initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet())}


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes a tokenizer; what an entry of TOKENIZERS returns. If it `learns`, `make` gets the
    texts of the training split. `files` returns a hash of the files that are read to make it."""

    make: Callable[[Iterator[str]], Tokenizer]
    learns: bool = True
    files: Callable[[], str] = lambda: ""


def characters(min_count: int = 1, fallback: bool = True) -> Maker:
    """Each character that is in the training split at least `min_count` times. Others are encoded
    as the bytes of their UTF-8; without `fallback` they are unknown."""
    whole("characters", "min_count", min_count, 1)

    def make(texts: Iterator[str]) -> Tokenizer:
        counts = Counter[str]()
        for text in texts:
            counts.update(text)
        known = sorted(sign for sign, count in counts.items() if count >= min_count)
        first = [PAD, BOS, EOS, MASK] if fallback else [PAD, BOS, EOS, UNKNOWN, MASK]
        rest = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
        vocab = {token: id_ for id_, token in enumerate([*first, *known, *rest])}
        if fallback:
            rules = Rules(models.BPE(vocab, [], byte_fallback=True))
            rules.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
            return Tokenizer(rules, ALL_KNOWN, spaced=True)
        rules = Rules(models.BPE(vocab, [], unk_token=UNKNOWN))
        rules.decoder = decoders.Fuse()
        return Tokenizer(rules, SOME_UNKNOWN, spaced=True)

    return Maker(make)


def raw_bytes() -> Maker:
    """The bytes of the UTF-8 text, 256 of them: byte b is id b + 4.  Xue et al. 2022 (ByT5)."""

    def make(texts: Iterator[str]) -> Tokenizer:
        vocab = {token: id_ for id_, token in enumerate([PAD, BOS, EOS, MASK, *byte_signs()])}
        rules = byte_level(Rules(models.BPE(vocab, [])), whole_text=True)
        return Tokenizer(rules, ALL_KNOWN, spaced=True, first_byte=4)

    return Maker(make, learns=False)


def words(
    vocab: int | None = None,
    min_count: int = 1,
    lower: bool = False,
    punctuation: bool = True,
    segmenter: str | None = None,
) -> Maker:
    """Words between spaces; the `vocab` most frequent, including special ones, or all.

    With `punctuation`, each punctuation mark is a word, and so is each Chinese character, unless a
    `segmenter` ("jieba") finds the words. False is for text that is already split.
    """
    if vocab is not None:
        whole("words", "vocab", vocab, 6, MOST)
    whole("words", "min_count", min_count, 1)
    if segmenter is not None:
        pick(SEGMENTERS, segmenter, "segmenter")
    special = [PAD, BOS, EOS, UNKNOWN, MASK]

    def with_ids(ids: dict[str, int]) -> Tokenizer:
        rules = _lowered(Rules(models.WordLevel(ids, unk_token=UNKNOWN)), lower)
        parts: list[Any] = [pre_tokenizers.WhitespaceSplit()]
        if punctuation:
            parts.append(pre_tokenizers.Punctuation("isolated"))
        if punctuation and segmenter is None:
            parts.append(pre_tokenizers.Split(Regex(f"[{HAN}]"), "isolated"))
        rules.pre_tokenizer = pre_tokenizers.Sequence(parts)
        return Tokenizer(rules, SOME_UNKNOWN, segmenter=segmenter, joins=True)

    def make(texts: Iterator[str]) -> Tokenizer:
        untrained = with_ids({})
        texts = map(untrained.segmented, texts)
        options = {"vocab_size": vocab or 10**9, "min_frequency": min_count}
        learned = _train(untrained.rules, trainers.WordLevelTrainer, texts, special, **options)
        ids = learned.get_vocab()
        # A text may contain <unk>, which must not become a second unknown word.
        rest = sorted(ids.keys() - set(special), key=lambda word: ids[word])
        return with_ids({word: id_ for id_, word in enumerate([*special, *rest])})

    return Maker(make)


def bpe(
    vocab: int = 8000, min_count: int = 2, lower: bool = False, split_han: bool = False
) -> Maker:
    """Byte-pair encoding over bytes, as in GPT-2; reproduces any text.  Sennrich et al. 2016;
    Radford et al. 2019, §2.2. With `split_han`, no token joins two Chinese characters."""
    whole("bpe", "vocab", vocab, 260, MOST)
    whole("bpe", "min_count", min_count, 1)

    def make(texts: Iterator[str]) -> Tokenizer:
        rules = _lowered(byte_level(Rules(models.BPE())), lower)
        if split_han:
            by_sign = pre_tokenizers.Split(Regex(f"[{HAN}]"), "isolated")
            rules.pre_tokenizer = pre_tokenizers.Sequence([by_sign, rules.pre_tokenizer])
        options = {"vocab_size": vocab, "min_frequency": min_count, **ALPHABET}
        _train(rules, trainers.BpeTrainer, texts, [PAD, BOS, EOS, MASK], **options)
        return Tokenizer(rules, ALL_KNOWN, spaced=True)

    return Maker(make)


def wordpiece(vocab: int = 8000, min_count: int = 2, lower: bool = True) -> Maker:
    """WordPiece as in BERT: words are cut into known pieces from the left; sequences are put
    between [CLS] and [SEP].  Schuster & Nakajima 2012; Devlin et al. 2019."""
    whole("wordpiece", "vocab", vocab, 6, MOST)
    whole("wordpiece", "min_count", min_count, 1)

    def make(texts: Iterator[str]) -> Tokenizer:
        rules = bert_rules(models.WordPiece(unk_token="[UNK]"), lower)
        options = {"vocab_size": vocab, "min_frequency": min_count}
        _train(rules, trainers.WordPieceTrainer, texts, BERT, **options)
        return Tokenizer(rules, Special(sep=2, unk=3, mask=4), wraps=True)

    return Maker(make)


def unigram(vocab: int = 8000, lower: bool = False) -> Maker:
    """The most likely pieces by a unigram model, over bytes; reproduces any text.  Kudo 2018.

    Its training adds numbers in no fixed order, so a second training may give another tokenizer;
    the cache keeps the first.
    """
    whole("unigram", "vocab", vocab, 260, MOST)

    def make(texts: Iterator[str]) -> Tokenizer:
        rules = _lowered(byte_level(Rules(models.Unigram())), lower)
        options = {"vocab_size": vocab, **ALPHABET}
        _train(rules, trainers.UnigramTrainer, texts, [PAD, BOS, EOS, MASK], **options)
        if not set(byte_signs()) <= rules.get_vocab().keys():
            raise UserError(f"unigram: vocab={vocab} is too small for all 256 bytes")
        return Tokenizer(rules, ALL_KNOWN, spaced=True)

    return Maker(make)


def _train(
    rules: Rules, trainer: Any, texts: Iterator[str], special: list[str], **options: Any
) -> Rules:
    learner = trainer(special_tokens=special, show_progress=False, **options)
    rules.train_from_iterator(texts, learner)
    return rules


def _lowered(rules: Rules, lower: bool) -> Rules:
    if lower:
        rules.normalizer = normalizers.Lowercase()
    return rules


def byte_level(rules: Rules, whole_text: bool = False) -> Rules:
    """Adds GPT-2's splitting into words, unless `whole_text`, and its alphabet of bytes."""
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole_text)
    rules.decoder = decoders.ByteLevel()
    return rules


def bert_rules(model: Any, lower: bool) -> Rules:
    """Adds BERT's normalization and splitting to a model."""
    rules = Rules(model)
    rules.normalizer = normalizers.BertNormalizer(lowercase=lower)
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.WordPiece()
    return rules


@functools.cache
def byte_signs() -> tuple[str, ...]:
    """Returns the character for each byte in GPT-2's alphabet: printable bytes stand for
    themselves, the others are mapped to the characters from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


TOKENIZERS: dict[str, Callable[..., Maker]] = {
    "characters": characters,
    "bytes": raw_bytes,
    "words": words,
    "bpe": bpe,
    "wordpiece": wordpiece,
    "unigram": unigram,
}

"""Tokenizers that learn their vocabulary from the training split.

`characters`, `bytes`, `bpe` and `unigram` give back any text exactly. `words` and `wordpiece` do
not keep spaces, and have a token for what they do not know.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Rules

from tfm.config.names import UserError, pick
from tfm.data.dataset import Special, whole
from tfm.data.tokenizers.tokenizer import HAN, SEGMENTERS, Tokenizer

# No text holds these as one piece, since no piece of a text has a space within.
PAD, BOS, EOS, MASK = "< pad >", "< bos >", "< eos >", "< mask >"
UNKNOWN = "<unk>"  # as WikiText writes it
ALL_KNOWN = Special(mask=3)  # and no `unk`
SOME_UNKNOWN = Special(unk=3, mask=4)
BERT = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


@dataclasses.dataclass(frozen=True)
class Maker:
    """What an entry of TOKENIZERS gives: how a tokenizer is made. One that `learns` is given the
    texts to learn from. `files` is a hash of what was read to make it."""

    make: Callable[[Iterator[str]], Tokenizer]
    learns: bool = True
    files: Callable[[], str] = lambda: ""


def characters(min_count: int = 1, fallback: bool = True) -> Maker:
    """Each character that is in the training split `min_count` times or more. Others are written as
    the bytes of their UTF-8; without `fallback` they are unknown."""
    whole("characters", "min_count", min_count, 1)

    def make(texts: Iterator[str]) -> Tokenizer:
        counts: dict[str, int] = {}
        for text in texts:
            for sign in text:
                counts[sign] = counts.get(sign, 0) + 1
        known = sorted(sign for sign, count in counts.items() if count >= min_count)
        first = [PAD, BOS, EOS, MASK] if fallback else [PAD, BOS, EOS, UNKNOWN, MASK]
        rest = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
        vocab = {token: id_ for id_, token in enumerate([*first, *known, *rest])}
        if fallback:
            rules = Rules(models.BPE(vocab, [], byte_fallback=True))
            parts = [decoders.ByteFallback(), decoders.Fuse()]
            rules.decoder = decoders.Sequence(parts)
            return Tokenizer(rules, ALL_KNOWN, spaced=True)
        rules = Rules(models.BPE(vocab, [], unk_token=UNKNOWN))
        rules.decoder = decoders.Fuse()
        return Tokenizer(rules, SOME_UNKNOWN, spaced=True)

    return Maker(make)


def raw_bytes() -> Maker:
    """The bytes of the UTF-8 text, 256 of them: byte b is id b + 4.  Xue et al. 2022 (ByT5)."""

    def make(texts: Iterator[str]) -> Tokenizer:
        vocab = {token: id_ for id_, token in enumerate([PAD, BOS, EOS, MASK, *byte_signs()])}
        rules = _byte_level(Rules(models.BPE(vocab, [])), whole_text=True)
        return Tokenizer(rules, ALL_KNOWN, spaced=True, first_byte=4)

    return Maker(make, learns=False)


def words(
    vocab: int | None = None,
    min_count: int = 1,
    lower: bool = False,
    punctuation: bool = True,
    segmenter: str | None = None,
) -> Maker:
    """Words between spaces; the `vocab` most frequent ones, special ones included, or all.

    `punctuation`: each mark is a word of its own, and so is each Chinese character, unless a
    `segmenter` ("jieba") finds the words. False is for text that is split already.
    """
    if vocab is not None:
        whole("words", "vocab", vocab, 6)
    whole("words", "min_count", min_count, 1)
    if segmenter is not None:
        pick(SEGMENTERS, segmenter, "segmenter")

    first = [PAD, BOS, EOS, UNKNOWN, MASK]

    def rules(ids: dict[str, int]) -> Tokenizer:
        rules = Rules(models.WordLevel(ids, unk_token=UNKNOWN))
        if lower:
            rules.normalizer = normalizers.Lowercase()
        parts: list[Any] = [pre_tokenizers.WhitespaceSplit()]
        if punctuation:
            parts.append(pre_tokenizers.Punctuation("isolated"))
        if punctuation and segmenter is None:
            parts.append(pre_tokenizers.Split(Regex(f"[{HAN}]"), "isolated"))
        rules.pre_tokenizer = pre_tokenizers.Sequence(parts)
        return Tokenizer(rules, SOME_UNKNOWN, segmenter=segmenter, joins=True)

    def make(texts: Iterator[str]) -> Tokenizer:
        trainer = trainers.WordLevelTrainer(
            vocab_size=vocab or 10**9,
            min_frequency=min_count,
            special_tokens=first,
            show_progress=False,
        )
        untrained = rules({})
        untrained.rules.train_from_iterator(map(untrained.segmented, texts), trainer)
        learned = untrained.rules.get_vocab()
        # A text may hold <unk>, which is no other word than our own.
        rest = sorted(learned.keys() - set(first), key=lambda word: learned[word])
        return rules({word: id_ for id_, word in enumerate([*first, *rest])})

    return Maker(make)


def bpe(
    vocab: int = 8000, min_count: int = 2, lower: bool = False, split_han: bool = False
) -> Maker:
    """Byte-pair encoding over bytes, as GPT-2 has it: any text comes back.  Sennrich et al. 2016;
    Radford et al. 2019, §2.2. With `split_han`, no piece joins two Chinese characters."""
    whole("bpe", "vocab", vocab, 260)
    whole("bpe", "min_count", min_count, 1)

    def make(texts: Iterator[str]) -> Tokenizer:
        rules = _byte_level(Rules(models.BPE()))
        if split_han:
            by_sign = pre_tokenizers.Split(Regex(f"[{HAN}]"), "isolated")
            rules.pre_tokenizer = pre_tokenizers.Sequence([by_sign, rules.pre_tokenizer])
        if lower:
            rules.normalizer = normalizers.Lowercase()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            min_frequency=min_count,
            special_tokens=[PAD, BOS, EOS, MASK],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        rules.train_from_iterator(texts, trainer)
        return Tokenizer(rules, ALL_KNOWN, spaced=True)

    return Maker(make)


def wordpiece(vocab: int = 8000, min_count: int = 2, lower: bool = True) -> Maker:
    """WordPiece as BERT has it: words, cut into known pieces from their left; a sequence stands
    between [CLS] and [SEP].  Schuster & Nakajima 2012; Devlin et al. 2019."""
    whole("wordpiece", "vocab", vocab, 6)
    whole("wordpiece", "min_count", min_count, 1)

    def make(texts: Iterator[str]) -> Tokenizer:
        rules = bert_rules(models.WordPiece(unk_token="[UNK]"), lower)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab, min_frequency=min_count, special_tokens=BERT, show_progress=False
        )
        rules.train_from_iterator(texts, trainer)
        return Tokenizer(rules, Special(sep=2, unk=3, mask=4), wraps=True)

    return Maker(make)


def unigram(vocab: int = 8000, lower: bool = False) -> Maker:
    """The most likely pieces by a unigram model, over bytes: any text comes back.  Kudo 2018.

    Its training adds numbers in no fixed order: learned again, it may be another. So it is kept.
    """
    whole("unigram", "vocab", vocab, 260)

    def make(texts: Iterator[str]) -> Tokenizer:
        rules = _byte_level(Rules(models.Unigram()))
        if lower:
            rules.normalizer = normalizers.Lowercase()
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab,
            special_tokens=[PAD, BOS, EOS, MASK],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        rules.train_from_iterator(texts, trainer)
        missing = set(pre_tokenizers.ByteLevel.alphabet()) - set(rules.get_vocab())
        if missing:
            raise UserError(f"unigram: vocab={vocab} leaves no room for all 256 bytes; more")
        return Tokenizer(rules, ALL_KNOWN, spaced=True)

    return Maker(make)


def _byte_level(rules: Rules, whole_text: bool = False) -> Rules:
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole_text)
    rules.decoder = decoders.ByteLevel()
    return rules


def bert_rules(model: Any, lower: bool) -> Rules:
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

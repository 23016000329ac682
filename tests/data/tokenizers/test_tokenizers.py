"""Tokenizers: published ids, text that comes back, what they learn and what is saved."""

import base64
import functools
import itertools
import os
import pathlib
import random
import re
import unicodedata

import numpy as np
import pytest

from tfm.config.names import UserError, read
from tfm.data.tokenizers import TOKENIZERS
from tfm.data.tokenizers.tokenizer import loads

ODD = (
    "<pad> < pad > <unk> [MASK] <0xE4> ▁Ġ  two\n\n\ttabs\r\n é e\u0301 你好，世界！ "
    "🙂👩\u200d👩\u200d👧 \u0000\ufeff\uffff"
)
CORPUS = ["the cat sat on the mat", "a dog sat on the cat", "el niño — 你好 世界", "3.14 × 2"] * 20
EXACT = [
    "characters",
    "bytes",
    "bpe(vocab=300)",
    "bpe(vocab=300, split_han=True)",
    "unigram(vocab=300)",
]


def made(text, texts=CORPUS):
    return _made(text, tuple(texts), os.environ.get("TFM_DATA"))


@functools.cache
def _made(text, texts, _):
    return read(text, TOKENIZERS, "tokenizer").make(iter(texts))


def data(*names):
    if "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA, the folder of real data, is not set")
    return pathlib.Path(os.environ["TFM_DATA"], *names)


def test_published_ids_of_cl100k():
    data()
    tokenizer = made("tiktoken(path='tokenizers/cl100k_base.tiktoken')")
    wanted = [
        5159,
        836,
        374,
        41276,
        13,
        358,
        1053,
        1093,
        311,
        1456,
        480,
        2898,
        12,
        19,
        9857,
        3213,
        13,
    ]
    assert tokenizer.encode("My name is Carson. I would like to try GPT-4 Tokenizer.") == wanted
    assert tokenizer.vocab == 100277
    assert tokenizer.special.eos == 100257
    assert tokenizer.decode(tokenizer.encode(ODD)) == ODD
    ranks = {}
    for line in data("tokenizers", "cl100k_base.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    rng = random.Random(0)
    for _ in range(200):  # letters in a row are one piece, whatever they are
        word = "".join(rng.choices("abcdeinrst", k=rng.randint(1, 30))) + rng.choice(["", "ß你"])
        assert tokenizer.encode(word) == byte_pairs(word.encode(), ranks)


def byte_pairs(piece, ranks):
    """As tiktoken's educational code has it: merge the pair of least rank until none is left."""
    parts = [bytes([b]) for b in piece]
    while True:
        pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        known = [pair for pair in pairs if pair[0] is not None]
        if not known:
            return [ranks[part] for part in parts]
        _, i = min(known)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_published_ids_of_gpt2():
    data()
    tokenizer = made("gpt2(path='tokenizers')")
    ids = tokenizer.encode("Data visualization empowers users to")
    assert ids == [6601, 32704, 795, 30132, 2985, 284]
    assert (tokenizer.vocab, tokenizer.special.bos) == (50257, 50256)
    assert tokenizer.decode(tokenizer.encode(f"!{ODD}!")) == f"!{ODD}!"
    assert 50256 not in tokenizer.encode("<|endoftext|>")  # a text cannot end itself


def test_published_ids_of_a_tokenizer_json():
    data()
    tokenizer = made("tokenizer_json(path='stories260K/tokenizer.json')")
    wanted = [1, 403, 407, 261, 378, 432, 317, 394, 410, 472, 400, 428, 419, 426]
    text = "Once upon a time, Lily saw 3 dogs."
    assert tokenizer.rules.encode(text).ids == wanted
    assert tokenizer.encode(text) == wanted[1:]
    assert (tokenizer.special.bos, tokenizer.special.eos, tokenizer.vocab) == (1, 2, 512)
    assert tokenizer.decode(wanted) == text


def test_a_vocabulary_without_the_unknown_token(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    with pytest.raises(UserError, match=r"bert: its files cannot be read: .*UNK.*vocab.txt"):
        made(f"bert(path='{tmp_path}/vocab.txt')")


def test_bert_cuts_words_from_the_left():
    vocab = data("tokenizers", "bert_vocab.txt").read_text("utf-8").split("\n")
    id_of = {piece: i for i, piece in enumerate(vocab) if piece}
    tokenizer = made("bert(path='tokenizers/bert_vocab.txt')")
    assert tokenizer.vocab == 30522
    assert tokenizer.special == (0, 101, 102, 102, 100, 103)
    sick = data("sick", "SICK_train.txt").read_text().splitlines()[1:300]
    for text in [line.split("\t")[1] for line in sick] + ["Unaffable café, 你好!"]:
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        words = re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+|[^\w\s]", plain)
        wanted = [id_of[piece] for word in words for piece in longest_first(word, id_of)]
        assert tokenizer.encode(text) == wanted


def longest_first(word, id_of):
    """Devlin et al.'s WordpieceTokenizer."""
    pieces, begin = [], 0
    while begin < len(word):
        mark = "##" * (begin > 0)
        ends = [end for end in range(begin + 1, len(word) + 1) if mark + word[begin:end] in id_of]
        if not ends:
            return ["[UNK]"]
        pieces.append(mark + word[begin : ends[-1]])
        begin = ends[-1]
    return pieces


@pytest.mark.parametrize("name", EXACT)
def test_any_text_comes_back(name):
    tokenizer = loads(made(name).dumps)
    texts = [ODD, *CORPUS, " ", "\n", "x" * 300, "".join(map(chr, range(32, 0x2FF)))]
    rng = random.Random(0)
    for _ in range(50):
        codes = [rng.randrange(0x110000) for _ in range(20)]
        texts.append("".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000))
    ids, lengths = tokenizer.encode_batch(texts)
    rows = np.split(ids, np.cumsum(lengths)[:-1])
    for text, row in zip(texts, rows, strict=True):
        assert tokenizer.decode(row) == text
        assert row.tolist() == tokenizer.encode(text)
        assert not set(row.tolist()) & {0, 1, 2, 3}  # special ones
    assert ids.max() < tokenizer.vocab


@pytest.mark.parametrize("name", [*EXACT, "tiktoken(path='tokenizers/cl100k_base.tiktoken')"])
def test_chinese_and_english_come_back(name):
    lines = data("tatoeba_zh_en", "val.tsv").read_text("utf-8").splitlines()[:400]
    sides = [side for line in lines for side in line.split("\t")]
    tokenizer = made(name, sides)
    assert [tokenizer.decode(tokenizer.encode(side)) for side in sides] == sides


def test_bytes_are_bytes():
    tokenizer = made("bytes")
    assert tokenizer.encode("aß") == [b + 4 for b in "aß".encode()]
    assert tokenizer.encode_batch(["aß", ""])[0].tolist() == tokenizer.encode("aß")
    assert tokenizer.vocab == 260


def test_words():
    tokenizer = made("words(vocab=9, lower=True)", ["a a a b b c", "B b. A?", "a"])
    assert tokenizer.vocab == 9  # five special ones, a, b, and of the rest the first in order
    assert tokenizer.tokens(tokenizer.encode("A  b c z!")) == ["a", "b", "<unk>", "<unk>", "<unk>"]
    assert made("words", ["I can't."]).decode(made("words", ["I can't."]).encode("I can't.")) == (
        "I can ' t ."
    )
    split = made("words(punctuation=False)", ["a @-@ <unk> b."])
    assert split.tokens(split.encode("a @-@ <unk> b.")) == ["a", "@-@", "<unk>", "b."]
    assert split.encode("<unk>") == [split.special.unk]  # as WikiText writes it
    assert 0 not in split.encode("< pad >")
    chinese = made("words", ["我们是朋友。 hello"])
    assert chinese.tokens(chinese.encode("我们是朋友。")) == list("我们是朋友。")
    assert chinese.decode(chinese.encode("我们是朋友。 hello")) == "我们是朋友。hello"
    frequent = made("words(min_count=2)", ["a a b"])
    assert frequent.tokens(frequent.encode("a b")) == ["a", "<unk>"]


def test_chinese_by_word():
    pytest.importorskip("jieba", reason="needs the extra `chinese`")
    tokenizer = made("words(segmenter='jieba')", ["我们是好朋友"])
    assert tokenizer.tokens(tokenizer.encode("我们是好朋友")) == ["我们", "是", "好", "朋友"]


def test_a_segmenter_that_is_not_there(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jieba", None)
    from tfm.data.tokenizers import tokenizer

    tokenizer._segment.cache_clear()
    with pytest.raises(UserError, match=r"'jieba' is not installed; .*tfm\[chinese\]"):
        made("words(segmenter='jieba')")
    with pytest.raises(UserError, match="unknown segmenter 'jiebba'; did you mean 'jieba'"):
        made("words(segmenter='jiebba')")


def test_byte_pairs_are_those_of_the_most_frequent_pair():
    """Sennrich et al. 2016, figure 1: the first merges are `e s`, `es t`."""
    texts = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
    tokenizer = made("bpe(vocab=262)", texts)  # 4 special ones, 256 bytes, 2 merges
    assert tokenizer.tokens(tokenizer.encode("lowest")) == ["l", "o", "w", "est"]


def test_chinese_characters_that_are_not_joined():
    def pieces(more):
        tokenizer = made(f"bpe(vocab=320{more})")
        return [tokenizer.decode([id_]) for id_ in tokenizer.encode("niño — 你好 世界")]

    assert pieces("")[-2:] == [" 你好", " 世界"]
    assert pieces(", split_han=True")[-6:] == [" ", "你", "好", " ", "世", "界"]


def test_what_is_saved_is_the_same_tokenizer():
    for name in [*EXACT, "words(lower=True)", "wordpiece(vocab=100)"]:
        before = loads(made(name).dumps)
        after = loads.__wrapped__(before.dumps)
        assert after.dumps == before.dumps
        assert (after.special, after.vocab, after.wraps) == (
            before.special,
            before.vocab,
            before.wraps,
        )
        assert after.encode(CORPUS[0] + ODD) == before.encode(CORPUS[0] + ODD)
    with pytest.raises(UserError, match="cannot be read"):
        loads('{"special": []}')


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bpe(vocab=100)", "bpe: vocab=100 must be a whole number from 260 to 10000000"),
        ("words(vocab=5)", "vocab=5 must be a whole number from 6 to 10000000"),
        ("tiktoken(path='a/mine.tiktoken')", "the pattern of 'mine' is not known; encoding="),
        ("tiktoken(path='no/cl100k_base.tiktoken')", "tiktoken: no file .*/no/cl100k_base"),
        ("gpt2(path='no')", "gpt2: no folder"),
        ("of_run(path='no')", "of_run: cannot read no/data.json"),
        ("wordpice", "unknown tokenizer 'wordpice'; did you mean 'wordpiece'"),
    ],
)
def test_bad_options_are_named(name, message):
    with pytest.raises(UserError, match=message):
        made(name)


def test_damaged_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer_json: its files cannot be read"):
        made("tokenizer_json(path='tokenizer.json')")
    (tmp_path / "cl100k_base.tiktoken").write_text("IQ== zero\n")
    with pytest.raises(UserError, match="tiktoken: its files cannot be read"):
        made("tiktoken(path='cl100k_base.tiktoken')")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "encoder.json").write_text("{}")
    with pytest.raises(UserError, match=r"gpt2: .* holds no vocab.bpe or merges.txt"):
        made("gpt2(path='mine')")

"""Files of text: what is read from them, against the files read by hand; and bad data."""

import gzip
import itertools
import json
import math
import os
import pathlib

import numpy as np
import pytest

from tfm.config.names import UserError
from tfm.data.dataset import Reading
from tfm.data.datasets import DATASETS, fingerprint, open_dataset, open_splits
from tfm.data.reader import of_data
from tfm.data.tokenizers import TOKENIZERS, trained
from tfm.objectives.batches import eval_batches
from tfm.objectives.next_token import NextToken


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**files):
    for name, content in files.items():
        path = pathlib.Path(name.replace("__", "."))
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def opened(text, split="train", count=None, vocabulary=None, **reading):
    options = Reading(**{"tokenizer": "words", **reading})
    return open_dataset(text, split, count, 0, vocabulary, options)


def rows(dataset, ragged="tokens", show=True):
    found = getattr(dataset.take(np.arange(len(dataset))), ragged)
    cut = np.split(found.ids, np.cumsum(found.lengths)[:-1])
    return [of_data(dataset, None).decode(row) if show else row.tolist() for row in cut]


def real(name):
    if "TFM_DATA" not in os.environ:
        pytest.skip("TFM_DATA, the folder of real data, is not set")
    return pathlib.Path(os.environ["TFM_DATA"], name)


LINES = "the cat sat\n\n the dog ran home \nthe end — 完\n" * 4


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe(vocab=270)", "words"])
@pytest.mark.parametrize("length", [1, 5, 200])
def test_each_token_is_scored_once(tokenizer, length):
    write(a__txt=LINES * 9, b__txt=LINES)
    name = f"text(train='a.txt', valid='b.txt', length={length})"
    valid = opened(name, "valid", tokenizer=tokenizer)
    said, seen = [], 0
    for batch in eval_batches(NextToken(), valid, 3):
        assert np.all(batch.inputs["valid_BT"] >= (batch.weights > 0))
        said += batch.labels[batch.weights > 0].tolist()
        seen += int(batch.weights.sum())
    text = of_data(valid, None).decode(said)
    assert text == (" ".join(LINES.split()).replace(" 完 ", "完").removesuffix(" 完") + "完"
                    if tokenizer == "words" else LINES)  # fmt: skip
    assert valid.bytes_per_token == len(LINES.encode()) / seen
    assert valid.words_per_token == len(LINES.split()) / seen
    if tokenizer == "bytes":
        assert valid.bytes_per_token == 1
    train = opened(name, tokenizer=tokenizer)
    whole = rows(train, show=False)
    assert len(whole) == train.counts().sum() - length + 1
    assert all(a[1:] == b[:-1] for a, b in itertools.pairwise(whole))
    assert whole[0][0] == train.special.bos


def test_a_share_is_held_out():
    write(a__txt="".join(f"line {i}\n" for i in range(100)))
    name = "text(train='a.txt', length=2, valid=0.25)"
    train, valid = opened(name), opened(name, "valid")
    size = len(pathlib.Path("a.txt").read_bytes())
    text = "".join(rows(opened(name.replace("=2", "=9999"), "valid", tokenizer="bytes")))
    first = int(text.split()[1])
    held = sum(len(f"line {i}\n") for i in range(first, 100))
    assert held <= 0.25 * size < held + len("line 99\n")
    assert train.counts().sum() == 2 * first
    unknown = of_data(valid, None).decode([valid.special.unk])
    assert unknown in rows(valid)[0]  # its numbers were not learned
    assert len(opened(name.replace("0.25", "0.25, stride=2"))) == first
    with pytest.raises(UserError, match="there is no 'test' split: write test=… for its file"):
        opened(name, "test")
    with pytest.raises(UserError, match="length=999 is too much: the training split has"):
        opened("text(train='a.txt', length=999)")
    with pytest.raises(UserError, match="max_length=2 would cut windows of length=2, which have 3"):
        opened(name, max_length=2)


def test_ends_of_lines():
    write(a__txt="a b\n\nc\n")
    dataset = opened("text(train='a.txt', valid='a.txt', length=99, eos=True)", "valid")
    a, b, c = (of_data(dataset, None).ids(word)[0] for word in "abc")
    end = dataset.special.eos
    assert rows(dataset, show=False) == [[dataset.special.bos, a, b, end, end, c, end]]
    assert dataset.words_per_token == 1  # an end counts as a word, as in published numbers
    assert dataset.bytes_per_token == 7 / 6


def test_long_lines_come_in_parts(monkeypatch):
    monkeypatch.setattr("tfm.data.formats.text.LONG", 7)
    write(a__txt="你好" * 40 + "\nab")
    dataset = opened("text(train='a.txt', valid='a.txt', length=999)", "valid", tokenizer="bytes")
    assert rows(dataset) == ["你好" * 40 + "\nab"]


def test_blocks_change_no_token():
    """Text is tokenised block by block, and the tokens are those of the whole."""
    path = real("wikitext2/valid.txt")
    real("tokenizers/gpt2_vocab.bpe")
    text = path.read_text("utf-8")[:300_000]
    write(a__txt=text)
    name = "text(train='a.txt', valid='a.txt', length=1000000)"
    dataset = opened(name, "valid", tokenizer="gpt2(path='tokenizers')")
    assert rows(dataset, show=False)[0][1:] == of_data(dataset, None).ids(text)


def test_wikitext_has_the_published_number_of_words():
    """245,569 words with <eos> in the test split; 33,278 kinds, <unk> and <eos> included."""
    real("wikitext2/train.txt")
    files = ", ".join(f"{split}='wikitext2/{split}.txt'" for split in ("train", "valid", "test"))
    name = f"text({files}, length=35, eos=True)"
    dataset = opened(name, "test", tokenizer="words(punctuation=False)")
    assert len(dataset) == math.ceil(245_569 / 35)
    assert dataset.vocab == 33_278 + 3  # and pad, bos, mask
    assert dataset.words_per_token == 1


TABLE = 'label\tsentence\tother\n0\tgood "film\tx\n1\tbad, film\ty\n0\tso so\tz\n'


def test_tables():
    write(a__tsv=TABLE, b__csv='sentence,label\n"one, ""two""",1\nthree,0\n', c__tsv__gz=TABLE)
    lines = [{"text": "good film", "label": 1, "x": None}, {"text": "bad", "label": 0}]
    write(d__jsonl="".join(json.dumps(line) + "\n" for line in lines))
    dataset = opened("table(train='a.tsv', text='sentence', label='label')")
    assert rows(dataset) == ['good " film', "bad , film", "so so"]
    assert dataset.take(np.arange(3)).labels.tolist() == [0, 1, 0]
    assert (dataset.classes, dataset.label_names) == (2, ("0", "1"))
    assert rows(opened("table(train='c.tsv.gz', text='sentence', label='label')")) == rows(dataset)
    assert rows(opened("table(train='b.csv', text='sentence', label='label')")) == [
        'one , " two "', "three"]  # fmt: skip
    dataset = opened("table(train='d.jsonl', text='text', label='label')")
    assert (rows(dataset), dataset.take(np.arange(2)).labels.tolist()) == (
        ["good film", "bad"], [1, 0])  # fmt: skip
    pairs = opened("table(train='a.tsv', text='sentence', target='other')")
    assert (pairs.form, rows(pairs, "target")) == ("pairs", ["x", "y", "z"])
    write(e__tsv="hello\t你好\nyes\t是\n", f__tsv="a|b\tlabel\nz\t1\n")
    assert rows(opened("table(train='e.tsv', text=1, target=0)")) == ["你好", "是"]
    write(g__tsv="content\tlabel\nz\t1\n")
    both = opened(
        "table(train='a.tsv', valid='g.tsv', text='sentence|content', label='label')", "valid"
    )
    assert both.take(np.arange(1)).labels.tolist() == [1]


def test_two_sentences():
    write(a__tsv="a\tb\tc\nthe cat sat\ta dog\tyes\none\ttwo three\tno\n")
    name = "table(train='a.tsv', text='a', text2='b', label='c')"
    dataset = opened(name)
    sep = dataset.special.sep
    found = dataset.take(np.arange(2))
    the, cat, sat, a, dog = of_data(dataset, None).ids("the cat sat a dog")
    assert found.tokens.ids[:7].tolist() == [the, cat, sat, sep, a, dog, sep]
    assert found.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    assert dataset.label_names == ("no", "yes")
    bert = opened(name, tokenizer="wordpiece(min_count=1)")
    found = bert.take(np.arange(2))
    special, ids = bert.special, of_data(bert, None).ids
    assert found.tokens.lengths.tolist() == [8, 6]
    assert found.tokens.ids[[0, 4, 7]].tolist() == [special.bos, special.sep, special.sep]
    short = opened(name, tokenizer="wordpiece(min_count=1)", max_length=6)
    assert short.take(np.array([0])).tokens.ids.tolist() == [
        special.bos, *ids("the cat"), special.sep, *ids("a"), special.sep
    ]  # fmt: skip
    assert short.notes == ("train: 1 rows truncated to data.max_length=6; 2 tokens lost",)


def test_labels_that_are_numbers():
    write(a__tsv="a\tb\tc\none\ttwo\t3.5\ntwo\tone\t-1\n", b__tsv="a\tb\tc\nx\ty\thigh\n")
    name = "table(train='a.tsv', valid='b.tsv', text='a', text2='b', score='c')"
    dataset = opened(name)
    found = dataset.take(np.arange(2))
    assert (dataset.form, dataset.classes, dataset.label_names) == ("labels", None, None)
    assert found.labels.dtype == np.float32
    assert found.labels.tolist() == [3.5, -1]
    with pytest.raises(UserError, match="b.tsv, line 2: 'high' is not a number"):
        opened(name, "valid")


def test_parallel_files_and_truncation():
    write(t__de="eins zwei drei\nvier\n", t__en__gz="one two three\nfour\n")
    dataset = opened("parallel(train='t', source='de', target='en')")
    assert (rows(dataset), rows(dataset, "target")) == (
        ["eins zwei drei", "vier"], ["one two three", "four"])  # fmt: skip
    assert (dataset.max_length, dataset.max_target) == (3, 3)
    short = opened("parallel(train='t', source='de', target='en')", max_length=2, max_target=1)
    assert (rows(short), rows(short, "target")) == (["eins zwei", "vier"], ["one", "four"])
    assert short.notes == (
        "train: 1 rows truncated to data.max_length=2; 1 tokens lost",
        "train: 1 rows truncated to data.max_target=1; 2 tokens lost",
    )


def test_target_texts_are_those_of_the_files():
    """With their spaces and marks, which the tokenizer drops, and without the lines left out."""
    write(t__de="eins\n\nzwei  drei\nvier\n", t__en="One, two.\nx\n don't  \n你 好\n")
    name = "parallel(train='t', valid='t', source='de', target='en')"
    for split in ("train", "valid"):
        dataset = opened(name, split, bad="skip", max_target=1)
        assert dataset.target_texts(np.array([2, 0, 1])) == ["你 好", "One, two.", " don't  "]
    write(a__tsv=TABLE)
    labels = opened("table(train='a.tsv', text='sentence', label='label')")
    assert labels.target_texts is None


def test_the_format_of_the_readme(monkeypatch):
    """The example of tfm/data/README.md is a data set like the built-in ones."""
    readme = pathlib.Path(trained.__file__).parents[1] / "README.md"
    code = readme.read_text().split("```python\n")[1].partition("```")[0]
    names = {}
    exec(code, names)
    for name, entry in names["DATASETS"].items():
        monkeypatch.setitem(DATASETS, name, entry)
    write(a__txt="who => me\nwhat\nwhy not => no\n")
    text = "questions(train='a.txt', valid='a.txt')"
    with pytest.raises(UserError, match="a.txt, line 2: no ' => '; data.bad='skip'"):
        opened(text)
    dataset = opened(text, "valid", bad="skip")
    assert (rows(dataset), rows(dataset, "target")) == (["who", "why not"], ["me", "no"])


def test_splits_that_are_opened_together_share_one_tokenizer(monkeypatch):
    made = []

    def mine():
        return trained.Maker(lambda texts: made.append(1) or trained.words().make(texts))

    monkeypatch.setitem(TOKENIZERS, "mine", mine)
    write(a__txt=LINES * 9, b__txt=LINES)
    name = "text(train='a.txt', valid='b.txt', test='b.txt', length=5)"
    counts = {"train": 7, "valid": None, "test": 3}
    found = open_splits(name, counts, reading=Reading("mine"))
    assert made == [1]
    for split, dataset in found.items():
        alone = opened(name, split, counts[split], tokenizer="mine")
        assert rows(dataset) == rows(alone)
        assert dataset.fingerprint == alone.fingerprint


CONLLU = """# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tx\tx\tX\tX\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def test_words_and_tags():
    write(a__conllu=CONLLU, b__txt="-DOCSTART- O\n\nMarie B-PER\nCurie I-PER\nwon O\n\nShe O\n")
    dataset = opened("conllu(train='a.conllu')", tokenizer="bytes")
    found = dataset.take(np.arange(2))
    assert rows(dataset) == ["Do n't go", "Yes"]
    assert dataset.label_names == ("AUX", "INTJ", "PART", "VERB")
    assert dataset.tags == 4
    first = np.flatnonzero(found.scored).tolist()
    assert first == [0, 2, 6, 9]  # a word's own space is its first piece
    assert [dataset.label_names[tag] for tag in found.tags[first]] == [
        "AUX",
        "PART",
        "VERB",
        "INTJ",
    ]
    assert opened("conllu(train='a.conllu', column='xpos')").label_names == ("RB", "UH", "VB")
    short = opened("conllu(train='a.conllu')", tokenizer="bytes", max_length=4).take(np.arange(2))
    assert short.tags.shape == short.scored.shape == short.tokens.ids.shape == (7,)
    named = opened("bio(train='b.txt')")
    assert rows(named) == ["Marie Curie won", "She"]
    assert named.label_names == ("B-PER", "I-PER", "O")
    bert = opened("bio(train='b.txt')", tokenizer="wordpiece(min_count=1)").take(np.array([1]))
    assert bert.scored.tolist() == [False, True, False]


def test_scan_and_a_share_of_records():
    write(a__txt="".join(f"IN: walk {'and walk ' * i}OUT: I_WALK\n" * 2 for i in range(50)))
    train, valid = opened("scan(train='a.txt')"), opened("scan(train='a.txt')", "valid")
    assert len(train) + len(valid) == 100
    assert not set(rows(train)) & set(rows(valid))
    assert 0 < len(valid) < 30
    assert set(rows(train, "target")) == {"I _ WALK"}


BAD = [
    ("table(train='{}.tsv', text='s', label='l')", b"s\tl\na\t0\nb\n", 3, "1 columns, and"),
    ("table(train='{}.tsv', text='s', label='l')", b"s\tl\na\t0\n \t1\n", 3, "column 's' is empty"),
    ("table(train='{}.tsv', text='s', label='l')", b"s\tl\na\t0\n\xff\t1\n", 3, "UTF-8 text: b"),
    ("table(train='{}.csv', text='s', label='l')", b's,l\na,0\n"b"c,1\n', 3, "not CSV"),
    ("table(train='{}.jsonl', text='s', label='l')", b'{"s":"a","l":0}\n{"s"\n', 2, "line of JSON"),
    ("table(train='{}.jsonl', text='s', label='l')", b'{"s":"a","l":0}\n{"s":1}\n', 2, "no 'l'"),
    ("table(train='{}.jsonl', text='s', label='l')", b'{"s":"a","l":0}\n{"s":"\\ud800","l":0}\n',
     2, "surrogates"),
    ("bio(train='{}.txt')", b"a X\nb\n\nc X\n", 2, "1 columns, and the first line has 2"),
    ("conllu(train='{}.conllu')", CONLLU.encode() + b"\n1\tx\n", 10, "2 columns between tabs"),
    ("scan(train='{}.txt')", b"IN: a OUT: b\nIN: a\nIN: c OUT: d\n" * 20, 2, "not of the form"),
    ("text(train='{}.txt', length=1)", b"a b c d e f\n\xe9\ng h i j k l m n\n", 2, "not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "line", "message"), BAD)
def test_bad_lines_are_named_or_counted(text, content, line, message):
    name = text.partition("{}")[2].partition("'")[0]
    pathlib.Path(f"x{name}").write_bytes(content)
    text = text.format("x")
    with pytest.raises(UserError, match=rf"x{name}, line {line}: .*{message}.*; data.bad='skip'"):
        opened(text)
    dataset = opened(text, bad="skip")
    assert len(dataset) >= 1
    (note,) = [note for note in dataset.notes if "single class" not in note]
    assert "bad lines left out" in note
    assert f"line {line}" in note


def test_labels_that_the_training_split_has_not():
    write(a__tsv="s\tl\na\tyes\nb\tno\n", b__tsv="s\tl\nc\tyes\nd\tperhaps\n")
    name = "table(train='a.tsv', test='b.tsv', text='s', label='l')"
    message = "b.tsv, line 3: label 'perhaps' is not in the training split, which has: no, yes"
    with pytest.raises(UserError, match=message):
        opened(name, "test")
    assert len(opened(name, "test", bad="skip")) == 1
    run = opened(name).vocabulary  # with a run's labels and ids, other files need no training split
    other = opened("table(test='b.tsv', text='s', label='l')", "test", None, run, bad="skip")
    assert other.take(np.arange(1)).labels.tolist() == [1]
    assert other.vocabulary == run
    with pytest.raises(UserError, match="there is no 'train' split"):
        opened("table(test='b.tsv', text='s', label='l')", "test")


def test_files_that_do_not_fit():
    write(empty__tsv="", a__tsv="s\tl\na\t0\n", t__de="a\nb\n", t__en="c\n", e__de="", e__en="")
    with pytest.raises(UserError, match="empty.tsv, line 1: the file is empty"):
        opened("table(train='empty.tsv', text='s', label='l')")
    with pytest.raises(UserError, match="a.tsv, line 1: no column 'sentence'; its columns: s, l"):
        opened("table(train='a.tsv', text='sentence', label='l')")
    with pytest.raises(UserError, match="no column 'll'; did you mean 'l'"):
        opened("table(train='a.tsv', text='s', label='ll')")
    with pytest.raises(UserError, match="t.de, line 2: t.en has no such line: it has 1"):
        opened("parallel(train='t', source='de', target='en')")
    assert len(opened("parallel(train='t', source='de', target='en')", bad="skip")) == 1
    with pytest.raises(UserError, match="e.de, line 1: the file is empty"):
        opened("parallel(train='e', source='de', target='en')")
    with pytest.raises(UserError, match="table: no file .*nowhere.tsv"):
        opened("table(train='nowhere.tsv', text='s', label='l')")
    with pytest.raises(UserError, match="give label=… for classes, target=… for pairs, or sc"):
        opened("table(train='a.tsv', text='s')")
    with pytest.raises(UserError, match="names or numbers, not both"):
        opened("table(train='a.tsv', text='s', label=1)")
    with pytest.raises(UserError, match="is text, which needs a tokenizer: data.tokenizer="):
        opened("table(train='a.tsv', text='s', label='l')", tokenizer=None)
    with pytest.raises(
        UserError,
        match=r"its examples are ids, so data\.tokenizer, max_length",
    ):
        opened("copy", count=3)
    pathlib.Path("cut.tsv.gz").write_bytes(gzip.compress(b"s\tl\n" * 99)[:20])
    with pytest.raises(UserError, match="cannot read .*cut.tsv.gz"):
        opened("table(train='cut.tsv.gz', text='s', label='l')")


def test_a_tokenizer_of_ones_own(monkeypatch):
    """Its code may change, so what it made is not kept."""
    made = []

    def mine(shift: int = 0):
        def make(texts):
            made.append(next(iter(texts)))
            return trained.raw_bytes().make(texts)

        return trained.Maker(make)

    monkeypatch.setitem(TOKENIZERS, "mine", mine)
    write(a__txt="héllo\n" * 9)
    name = "text(train='a.txt', valid='a.txt', length=60)"
    for count in (1, 2):
        assert rows(opened(name, "valid", tokenizer="mine(shift=1)"))[0].startswith("héllo\n")
        assert len(made) >= count
    assert set(made) == {"héllo\n" * 9}


def test_fingerprints_are_of_contents_and_readings():
    write(a__tsv=TABLE, b__tsv=TABLE, c__tsv=TABLE + "1\tmore\tz\n")
    name = "table(train='{}.tsv', text='sentence', label='label')"
    one = opened(name.format("a"))
    assert opened(name.format("b")).fingerprint == one.fingerprint
    assert opened(name.format("a"), "train", None, one.vocabulary).fingerprint == one.fingerprint
    others = [
        opened(name.format("c")),
        opened(name.format("a"), tokenizer="words(lower=True, vocab=7)"),
        opened(name.format("a"), max_length=1),
        opened(name.format("a").replace("'sentence'", "'other'")),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert fingerprint("copy") == open_dataset("copy", "train", 3).fingerprint


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("parallel(train='multi30k/train', valid='multi30k/val', test='multi30k/test_2016_flickr', "
         "source='de', target='en')", (29_000, 1_014, 1_000)),
        ("table(train='tatoeba_zh_en/train.tsv', valid='tatoeba_zh_en/val.tsv', "
         "test='tatoeba_zh_en/test.tsv', text=1, target=0)", (26_704, 1_223, 1_228)),
        ("table(train='sst2/train.tsv', valid='sst2/dev.tsv', test='sst2/test.tsv', "
         "text='sentence|content', label='label')", (67_349, 872, 1_821)),
        ("conllu(train='ud_ewt/en_ewt-ud-train.conllu', valid='ud_ewt/en_ewt-ud-dev.conllu', "
         "test='ud_ewt/en_ewt-ud-test.conllu')", (12_544, 2_001, 2_077)),
        ("table(train='sick/SICK_train.txt', valid='sick/SICK_trial.txt', "
         "test='sick/SICK_test_annotated.txt', text='sentence_A', text2='sentence_B', "
         "label='entailment_judgment')", (4_500, 500, 4_927)),
    ],
)  # fmt: skip
def test_real_files_have_their_published_sizes(name, sizes):
    real("README.md")
    found = [len(opened(name, split, tokenizer="bytes")) for split in ("train", "valid", "test")]
    assert tuple(found) == sizes


def test_decompression_stops_at_a_limit(monkeypatch):
    """A megabyte of zeros, or of short lines, is a thousand bytes."""
    monkeypatch.setattr("tfm.data.files.UNZIPPED", 1 << 18)
    line = b"one\t1\n"
    write(a__tsv__gz=b"s\tl\n" + line * (1 << 17), b__tsv__gz=b"0" * (1 << 20), c__txt__gz=line * 9)
    limited = "is more than 0.0 GB when it is decompressed, over 100 times its size.* gunzip"
    for name in ("a.tsv.gz", "b.tsv.gz"):
        with pytest.raises(UserError, match=f"{name} {limited}"):
            opened(f"table(train={name!r}, text='s', label='l')")
        with pytest.raises(UserError, match=f"{name} {limited}"):
            opened(f"text(train={name!r}, length=4)")
    assert len(opened("text(train='c.txt.gz', valid=0.5, length=1)"))
    monkeypatch.setattr("tfm.data.files.LINE", 1000)
    write(d__tsv=b"s\tl\n" + b"0" * 1000 + b"\t1\n")
    with pytest.raises(UserError, match="d.tsv has a line of more than"):
        opened("table(train='d.tsv', text='s', label='l')")


def test_windows_are_not_longer_than_the_text():
    write(a__txt=LINES * 9, b__txt=LINES)
    name = "text(train='a.txt', valid='b.txt', length=5, eval_length=1000000000)"
    valid = opened(name, "valid", tokenizer="bytes")
    assert valid.max_length == len(LINES.encode()) + 1
    assert rows(valid) == [LINES]


def test_what_is_probably_a_mistake_is_noted():
    write(a__tsv="s\tl\ts\nx\t1\ty\nz\t1\tw\n", b__tsv="s\tl\nx\t1\nz\t2\n")
    pathlib.Path("c.tsv").write_bytes(pathlib.Path("b.tsv").read_bytes())
    name = "table(train={!r}, valid={!r}, text='s', label='l')".format
    notes = opened(name("a.tsv", "b.tsv")).notes
    assert [note.split(": ", 1)[1] for note in notes] == [
        "the column 's' occurs more than once; the first one is read",
        "there is a single class, '1': nothing can be learned",
    ]
    assert rows(opened(name("a.tsv", "b.tsv"))) == ["x", "z"]
    same = "valid: it is the file of the training split, so scores are too good"
    for file in ("b.tsv", "c.tsv"):
        assert opened(name("b.tsv", file), "train").notes == ()
        assert opened(name("b.tsv", file), "valid").notes == (same,)
    held_out = name("d.tsv", "").replace("''", "0.5")
    write(d__tsv="s\tl\n" + "".join(f"x{i}\t{i % 2}\n" for i in range(40)))
    assert opened(held_out, "valid").notes == ()
    write(t__txt=LINES * 9)
    assert opened("text(train='t.txt', length=3)", "valid").notes == ()
    assert opened("text(train='t.txt', valid='t.txt', length=3)", "valid").notes == (same,)

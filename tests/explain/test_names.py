"""The names of ids on the page are those of the run's reader."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from tests.explain.explained import loaded
from tfm.data.dataset import Special
from tfm.data.datasets import open_dataset
from tfm.data.reader import Reader, of_data
from tfm.data.tokenizers.tokenizer import Tokenizer, vocabulary_of
from tfm.data.tokenizers.trained import bpe, wordpiece
from tfm.explain import page
from tfm.explain.explain import explain

TEXT = "\n !abcdefghij"  # id 1 is the space, id 2 the exclamation mark


@pytest.fixture
def reader(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 20)
    dataset = open_dataset(f"characters(path='{path}', length=4)", "train", 4)
    return of_data(dataset, None)  # special ids must not depend on the source that is known


def test_a_space_is_no_special_token(tmp_path, reader):
    run = loaded(tmp_path, "decoder")
    facts = json.loads((run.folder / "data.json").read_text())
    (run.folder / "data.json").write_text(json.dumps({**facts, "reader": reader.to_tree()}))
    made, _ = page.page([explain(run, "a bad !")])
    tree = json.loads(made.split('id="data">')[1].split("</script>")[0])["runs"][0]
    ids = [TEXT.index(character) for character in "a bad !"]
    assert tree["sequences"]["tokens"] == [list(pair) for pair in zip("a bad !", ids, strict=True)]
    assert tree["next"]["names"] == {str(id_): name for id_, name in enumerate(TEXT)}
    (logits,) = [s for s in tree["walks"][0]["stages"] if s["name"] == "logits"]
    assert logits["pictures"][0]["names"] == list(TEXT)


def test_names_of_bytes_are_distinct():
    reader = Reader(kind="bytes", vocab=256)
    names = reader.names(np.arange(256))
    assert names[32:35] == [" ", "!", '"']
    assert names[0xC3] == "<0xC3>"
    assert len(set(names)) == 256


@pytest.mark.parametrize(
    ("tokenizer", "first"),
    [
        (bpe(vocab=300), ["<pad>", "<bos>", "<eos>", "<mask>"]),
        (wordpiece(vocab=60), ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]),
    ],
)
def test_special_tokens_have_the_names_that_their_tokenizer_gives_them(tokenizer, first):
    made = tokenizer.make(iter(["the cat sat on the mat"] * 20))
    vocabulary, special = vocabulary_of(made, None), made.special
    reader = Reader(kind="tokenizer", vocab=made.vocab, vocabulary=vocabulary, special=special)
    assert reader.names(range(len(first))) == first
    names = reader.names(range(reader.vocab))
    assert len(set(names)) == reader.vocab  # those of bytes and of word parts, too
    assert not [name for name in names if "\ufffd" in name]


def test_a_piece_is_never_named_after_a_role(tmp_path):
    """An import without special tokens may give a role to an ordinary piece."""
    rules = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2}, unk_token="a"))
    own = Tokenizer(rules, Special(pad=0, bos=2, eos=1, sep=1))
    vocabulary = vocabulary_of(own, None)
    reader = Reader(kind="tokenizer", vocab=4, vocabulary=vocabulary, special=own.special)
    assert reader.names(range(3)) == ["a", "b", "<s>"]

"""The names of ids on the page are those of the run's reader."""

import json

import numpy as np
import pytest

from tests.explain.explained import loaded
from tfm.data.datasets import open_dataset
from tfm.data.reader import Reader, of_data
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

"""TensorFlow Datasets, made by small builders with the names and features of the real ones."""

import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

from tests.data import builders
from tfm.cli import main as cli
from tfm.config.names import UserError
from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset
from tfm.data.reader import of_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("tfds")
    builders.translation(where)
    builders.translation(where, "wmt16_translate", "en-de")
    builders.sst2(where)
    builders.stsb(where)
    text = lambda tfds: tfds.features.FeaturesDict({"text": tfds.features.Text()})
    rows = [{"text": f"line number {i}"} for i in range(100)]
    builders.prepare(where, "lm1b", "", text, {"train": rows, "test": rows[:4]})

    def words(tfds):
        names = tfds.features.ClassLabel(names=["O", "B-PER", "I-PER"])
        tokens = tfds.features.Sequence(tfds.features.Text())
        return tfds.features.FeaturesDict(dict(tokens=tokens, ner=tfds.features.Sequence(names)))

    sentence = dict(tokens=["Marie", "Curie", "won"], ner=[1, 2, 0])
    builders.prepare(
        where, "conll2003", "conll2003", words, dict(train=[sentence] * 3, dev=[sentence])
    )
    return where


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))


def opened(folder, name, split="train", options="", **reading):
    text = f"tfds(name={name!r}, data_dir={str(folder)!r}{options})"
    return open_dataset(text, split, reading=Reading(**{"tokenizer": "words", **reading}))


def sentences(dataset, ragged):
    return [
        of_data(dataset, None).decode(ids)
        for ids in np.split(ragged.ids, np.cumsum(ragged.lengths)[:-1])
    ]


def test_a_translation(folder):
    dataset = opened(folder, "wmt14_translate/de-en")
    found = dataset.take(np.arange(len(dataset)))
    seen = set(zip(sentences(dataset, found.tokens), sentences(dataset, found.target), strict=True))
    assert (dataset.form, len(dataset)) == ("pairs", 40)
    assert seen == {(f"{de} {i}", f"{en} {i}") for i in range(20) for de, en in builders.PAIRS}
    assert len(opened(folder, "wmt14_translate/de-en", "valid")) == 3
    back = opened(folder, "wmt14_translate/de-en", options=", text='en', target='de'")
    assert sentences(back, back.take(np.arange(1)).tokens)[0].startswith("the ")
    other = opened(folder, "wmt16_translate/en-de")  # the config's name says what is read
    assert sentences(other, other.take(np.arange(1)).tokens)[0].startswith("the ")
    some = opened(folder, "wmt14_translate/de-en", options=", train='train[:25%]'")
    assert len(some) == 10


def test_sentences_with_labels(folder):
    dataset = opened(folder, "glue/sst2")
    found = dataset.take(np.arange(len(dataset)))
    assert dataset.label_names == ("negative", "positive")
    seen = set(zip(sentences(dataset, found.tokens), found.labels.tolist(), strict=True))
    assert seen == set(builders.SENTENCES)
    with pytest.raises(
        UserError, match=r"glue/sst2 test, line 1: it has no label \(-1\); data.bad"
    ):
        opened(folder, "glue/sst2", "test")
    with pytest.raises(UserError, match="'test' has no example that can be read"):
        opened(folder, "glue/sst2", "test", bad="skip")


def test_labels_that_are_numbers(folder):
    dataset = opened(folder, "glue/stsb")
    found = dataset.take(np.arange(2))
    assert found.labels.tolist() == [2.5, 2.5]
    assert found.segments.max() == 1
    assert dataset.classes is None


def test_text_is_one_stream(folder):
    dataset = opened(folder, "lm1b", options=", length=4")
    held = opened(folder, "lm1b", "valid", options=", length=4")
    assert dataset.form == "text"
    assert dataset.counts().sum() == 95 * 4  # three words and an end; 5 % are held out
    assert len(held) == 5
    first = held.take(np.array([0])).tokens.ids
    assert (first[0], first[-1]) == (dataset.special.bos, dataset.special.eos)
    with pytest.raises(UserError, match="'lm1b' is text: write length="):
        opened(folder, "lm1b")


def test_words_with_tags(folder):
    dataset = opened(folder, "conll2003/conll2003", "valid", tokenizer="bpe(vocab=270)")
    found = dataset.take(np.array([0]))
    assert [dataset.label_names[i] for i in found.tags[found.scored]] == ["B-PER", "I-PER", "O"]
    assert of_data(dataset, None).decode(found.tokens.ids) == "Marie Curie won"


def test_one_is_prepared_by_a_command(tmp_path, capsys):
    features = lambda tfds: tfds.features.FeaturesDict({"text": tfds.features.Text()})
    rows = [{"text": f"line number {i}"} for i in range(5)]
    builders.builder("numbered_lines", "", features, {"train": rows}, registered=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cli.main(["data", "--prepare=numbered_lines", f"--data_dir={tmp_path}"]) == 0
        assert str(tmp_path / "numbered_lines" / "1.0.0") in capsys.readouterr().out
        assert cli.main(["data", "--prepare=unnumbered_lines", f"--data_dir={tmp_path}"]) == 2
        assert "no data set 'unnumbered_lines'" in capsys.readouterr().err
    dataset = opened(tmp_path, "numbered_lines", options=", text='text', length=3")
    assert "line number" in of_data(dataset, None).decode(dataset.take(np.array([0])).tokens.ids)


def test_what_is_not_there_says_what_to_run(folder, tmp_path):
    with pytest.raises(
        UserError, match="no folder .*glue/cola.*`tfm data --prepare=glue/cola --data_dir"
    ):
        opened(folder, "glue/cola")
    with pytest.raises(
        UserError, match="holds no prepared version.*sst2, stsb; write name='glue/CONFIG'"
    ):
        opened(folder, "glue")
    with pytest.raises(
        UserError, match="the roles of the features of .my_own. are unknown; it has idx, label"
    ):
        opened(_renamed(folder, tmp_path), "my_own")
    with pytest.raises(UserError, match="text='sentense': glue/sst2 has no such feature; did you"):
        opened(folder, "glue/sst2", options=", text='sentense', label='label'")
    with pytest.raises(UserError, match="has no split 'test', but train, validation: test='…'"):
        opened(folder, "wmt14_translate/de-en", "test")
    records = tmp_path / "lm1b" / "1.0.0"
    records.mkdir(parents=True)
    (records / "dataset_info.json").write_text("{}")
    (records / "lm1b-train.tfrecord-00000-of-00001").touch()
    with pytest.raises(UserError, match="no ArrayRecord files.*`tfm data --prepare="):
        opened(tmp_path, "lm1b", options=", length=3")


TRAP = {"pythonClassName": "trap.Feature", "text": {}}
INSIDE = {"type": "trap.Feature", "content": {}}  # the older spelling
OWN = "tensorflow_datasets.core.features."


@pytest.mark.parametrize(
    "features",
    [
        {**TRAP},
        {"pythonClassName": f"{OWN}features_dict.FeaturesDict",
         "featuresDict": {"features": {"text": TRAP}}},
        {"python_class_name": f"{OWN}sequence_feature.Sequence", "sequence": {"feature": TRAP}},
        INSIDE,
        {"pythonClassName": f"{OWN}features_dict.FeaturesDict",
         "jsonFeature": {"json": json.dumps({"text": INSIDE})}},
    ],
    ids=["top", "dict", "sequence", "older", "json in json"],
)  # fmt: skip
def test_features_of_other_modules_are_not_imported(folder, features, tmp_path, monkeypatch):
    """TFDS imports the module of any class that features.json names."""
    (tmp_path / "trap.py").write_text("raise SystemExit('its code was run')")
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(folder / "lm1b", tmp_path / "lm1b")
    (tmp_path / "lm1b" / "1.0.0" / "features.json").write_text(json.dumps(features))
    with pytest.raises(UserError, match="features.json: 'trap.Feature' is no feature of Tensor"):
        opened(tmp_path, "lm1b", options=", length=4")


def test_a_damaged_description_is_reported(folder, tmp_path):
    shutil.copytree(folder / "lm1b", tmp_path / "lm1b")
    for name, text in {"features.json": "[3", "dataset_info.json": "{"}.items():
        (tmp_path / "lm1b" / "1.0.0" / name).write_text(text)
        with pytest.raises(UserError, match="lm1b/1.0.0 cannot be read: "):
            opened(tmp_path, "lm1b", options=", length=4")


def _renamed(folder, tmp_path):
    """The folder of glue/sst2 under a name that is not known."""
    (tmp_path / "my_own").symlink_to(folder / "glue" / "sst2")
    return tmp_path


SCRIPT = """
import sys
from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset
import numpy as np
dataset = open_dataset(sys.argv[1], "train", reading=Reading("words"))
print(len(dataset.take(np.arange(5)).tokens), "tensorflow" in sys.modules)
"""


def test_without_tensorflow(folder):
    text = f"tfds(name='wmt14_translate/de-en', data_dir={str(folder)!r})"
    ran = subprocess.run([sys.executable, "-c", SCRIPT, text], capture_output=True, text=True)
    assert ran.stdout == "5 False\n", ran.stderr

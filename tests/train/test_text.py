"""Runs on text: the tokenizer is saved, restored, exported, and given on to other runs."""

import json
import shutil

import numpy as np
import pytest

from tests.helpers.runs import Silent
from tfm.config.names import UserError
from tfm.data.reader import of_data
from tfm.data.tokenizers import trained
from tfm.data.tokenizers.tokenizer import loads
from tfm.interop.folder import export_folder
from tfm.run.evaluation import evaluate
from tfm.run.identity import digests, identity
from tfm.run.load import load
from tfm.run.spec import open_data, read
from tfm.train import loop

LINES = ["the cat sat on the mat", "a dog ran to the cat", "on the mat a cat ran"] * 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    rows = [f"{line} {i}\t{'cat' if line[0] == 't' else 'dog'}" for i, line in enumerate(LINES)]
    (tmp_path / "a.tsv").write_text("s\tl\n" + "\n".join(rows))
    return tmp_path


def text_run(steps=4, model=None, **data):
    data = {
        "dataset": "text(train='a.txt', length=8)",
        "tokenizer": "unigram(vocab=280)",
        "valid_examples": 8,
        "batch": 4,
        "eval_batch": 8,
        **data,
    }
    model = model or {"family": "recurrent", "cell": "gru", "width": 8, "hidden": 8}
    train = {"steps": steps, "log_every": 2, "save_every": 2}
    return read({"objective": "next_token", "model": model, "data": data, "train": train})


def test_a_tokenizer_is_saved_and_used_again(own_cache, monkeypatch):
    summary = loop.train(text_run(), "run", Silent())
    assert summary["best"]["bits_per_byte"] > 0
    saved = json.loads((own_cache / "run" / "data.json").read_text())["vocabulary"]
    tokenizer = loads(json.dumps(json.loads(saved)["tokenizer"]))
    assert tokenizer.decode(tokenizer.encode("the 猫")) == "the 猫"
    assert load("run").reader.tokenizer.encode("the cat") == tokenizer.encode("the cat")
    shutil.rmtree(own_cache / "cache")
    monkeypatch.setattr(
        trained.trainers, "UnigramTrainer", lambda **_: pytest.fail("learned again")
    )
    found, _ = evaluate("run")
    assert found["loss"] == pytest.approx(summary["valid"]["loss"], rel=1e-6)
    (own_cache / "b.txt").write_text("a bird! 鸟\n" * 9)  # other signs, in the run's own ids
    found, _ = evaluate("run", dataset="text(valid='b.txt', length=8)")
    assert np.isfinite(found["loss"])
    assert load("run").data["train"].vocab == tokenizer.vocab


def test_a_run_goes_on_with_its_own_tokenizer(own_cache):
    """Learned again, a unigram tokenizer may be another: a run that has begun keeps its own."""
    whole = loop.train(text_run(), "whole", Silent())

    class Stopping(Silent):
        def line(self, line):
            if line["step"] == 2 and line["split"] == "train":
                raise KeyboardInterrupt

    shutil.copytree(own_cache / "cache", own_cache / "kept")
    with pytest.raises(KeyboardInterrupt):
        loop.train(text_run(), "part", Stopping())
    shutil.rmtree(own_cache / "cache")
    assert loop.train(text_run(), "part", Silent()) == whole


def test_truncation_and_bad_lines_are_told(own_cache):
    with open(own_cache / "a.tsv", "a") as file:
        file.write("\nno label")
    data = {"dataset": "table(train='a.tsv', valid=0.2, text='s', label='l')", "tokenizer": "words"}
    data |= {"max_length": 5, "bad": "skip", "batch": 4}
    model = {"family": "recurrent", "cell": "gru", "width": 8, "hidden": 8}
    tree = {"objective": "classify", "model": model, "data": data, "train": {"steps": 1}}
    said = []

    class Listening(Silent):
        def message(self, text):
            said.append(text)

    loop.train(read(tree), "run", Listening())
    assert any("rows truncated to data.max_length=5" in text for text in said)
    notes = [text for text in said if "1 bad lines left out, for example" in text]
    assert any("a.tsv, line 182" in note for note in notes)
    with pytest.raises(UserError, match="unknown data.bad 'skp'; did you mean 'skip'"):
        read({**tree, "data": {**data, "bad": "skp"}})
    with pytest.raises(UserError, match="unknown data.tokenizer 'word'; did you mean 'words'"):
        read({**tree, "data": {**data, "tokenizer": "word"}})


def test_another_run_takes_the_tokenizer_over(own_cache):
    loop.train(text_run(tokenizer="bpe(vocab=270)"), "first", Silent())
    data = {"dataset": "table(train='a.tsv', valid=0.2, text='s', label='l')", "batch": 4}
    run = read(
        {
            "objective": "classify",
            "model": {"family": "recurrent", "cell": "gru", "width": 8, "hidden": 8},
            "data": {**data, "tokenizer": "of_run(path='first')"},
            "train": {"steps": 1, "init_from": "first", "init_pattern": ".*embed.*"},
        }
    )
    _, opened = open_data(run)
    first = load("first").reader.tokenizer
    assert of_data(opened["train"], None).ids("the cat 猫") == first.encode("the cat 猫")
    assert opened["train"].label_names == ("cat", "dog")
    loop.train(run, "second", Silent())
    init = json.loads((own_cache / "second" / "init.json").read_text())
    assert any("embed" in path for path in init["loaded"])


def test_the_tokenizer_is_exported(own_cache):
    transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")
    model = {
        "family": "decoder",
        "width": 8,
        "layers": 1,
        "max_length": 16,
        "attention": {"heads": 2, "qkv_bias": True, "out_bias": True},
        "feedforward": {"width": 16, "kind": "gelu_tanh"},
        "position": {"scheme": "learned"},
    }
    loop.train(text_run(1, model, tokenizer="bpe(vocab=270)"), "run", Silent())
    export_folder("run", "out")
    theirs = transformers.AutoTokenizer.from_pretrained("out")
    ours = load("run").reader.tokenizer
    text = "the cat — 猫 sat"
    assert theirs(text)["input_ids"] == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text
    assert theirs.bos_token_id == ours.special.bos


def test_a_new_setting_at_its_default_is_no_new_run():
    """The id that this config had before there were tokenizers."""
    tree = {
        "objective": "seq2seq",
        "model": {"family": "seq2seq", "cell": "gru", "width": 8, "hidden": 8},
        "data": {"dataset": "copy(length=4)", "examples": 10, "valid_examples": 5},
        "train": {"steps": 2},
    }
    run, data = open_data(read(tree))
    name = identity(run, [dataset.fingerprint for dataset in data.values()], digests(run))
    assert name == "fd5822bfc6c323c5"

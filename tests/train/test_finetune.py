"""Start from another run's weights: what is taken, what is left, and what is refused."""

import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import tfm
from tests.helpers.huggingface import write
from tests.helpers.runs import Silent, arrays
from tests.helpers.tiers import first_tier
from tfm.config.files import load
from tfm.config.names import UserError
from tfm.config.spec import replaced
from tfm.data.dataset import Reading
from tfm.data.datasets import open_dataset
from tfm.data.tokenizers.tokenizer import meaning_of_ids
from tfm.evaluate.baselines import Baselines
from tfm.evaluate.word_vectors import WordVectors
from tfm.interop.folder import import_folder
from tfm.run.evaluation import evaluate
from tfm.run.spec import RunSpec, read
from tfm.train import loop
from tfm.train.finetune import initial_variables, start_notes

SMALL = str(pathlib.Path(__file__).parent / "small.py")


def train(workdir, **changes):
    tree = load(f"{SMALL}:decoder").to_dict()
    tree = replaced(RunSpec, tree, {"train.steps": 4, "train.eval_every": 2, **changes})
    return loop.train(read(tree), str(workdir), Silent())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("source")
    train(workdir, **{"model.norm.kind": "batch"})
    return workdir


def start(workdir, source, **changes):
    """A run that changes nothing, so that it ends as it starts."""
    still = {"optimizer.learning_rate": 1e-30, "optimizer.weight_decay": None, "train.ema": None}
    options = {"train.init_from": str(source), "model.norm.kind": "batch", **still, **changes}
    train(workdir, **options)
    return tfm.load(str(workdir), "last"), json.loads((workdir / "init.json").read_text())


def test_weights_and_statistics_are_taken(tmp_path, source):
    run, report = start(tmp_path / "a", source)
    wanted = tfm.load(str(source))
    jax.tree.map(np.testing.assert_array_equal, run.params, wanted.params)
    assert report["skipped"] == report["new"] == []
    assert any("batch_stats" in path for path in report["loaded"])


def test_a_pattern_leaves_the_rest_fresh(tmp_path, source):
    run, report = start(tmp_path / "b", source, **{"train.init_pattern": "embed/.*"})
    taken = tfm.load(str(source)).params["embed"]["token"]["embedding"]
    np.testing.assert_array_equal(run.params["embed"]["token"]["embedding"], taken)
    assert report["loaded"] == ["embed/token/embedding"]
    assert report["new"] == report["skipped"]


def test_the_other_run_may_be_deleted_when_it_has_begun(tmp_path, source):
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    start(tmp_path / "c", copy)
    shutil.rmtree(copy)
    run, _ = start(tmp_path / "c", copy)
    assert run.step == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.init_from": "/nowhere"}, "/nowhere has no checkpoint"),
        ({"train.init_pattern": "nothing/.*"}, "nothing in .* that matches is in this model"),
        ({"model.feedforward.width": 12}, r"is \(1, 8, 8\) there and \(1, 12, 8\) here"),
        ({"train.init_pattern": "("}, "train.init_pattern='\\(' is no regular expression"),
        ({"train.init_from": None, "train.init_pattern": "x"}, "init_from is missing"),
    ],
)
def test_what_cannot_be_taken_is_named(tmp_path, source, changes, message):
    with pytest.raises(UserError, match=message):
        start(tmp_path / "d", source, **changes)


def of(tree, workdir):
    watcher = Silent()
    return loop.train(read(tree), str(workdir), watcher), watcher.messages


MODEL = {"width": 8, "layers": 1, "max_length": 16, "attention": {"heads": 2},
         "feedforward": {"width": 8}}  # fmt: skip
ENCODER = {"family": "encoder", **MODEL}


def text_run(path, model, objective, **train):
    return {
        "objective": objective,
        "model": model,
        "data": {"dataset": f"characters(path={str(path)!r}, length=8)", "valid_examples": 4},
        "train": {"steps": 2, **train},
        "optimizer": {"learning_rate": 1e-30},
    }


def test_vectors_of_word2vec_become_an_embedding(tmp_path):
    """One more id, of the mask, stays fresh; other texts have other ids, and are refused."""
    (tmp_path / "a.txt").write_text("the cat sat on a mat " * 20)
    (tmp_path / "b.txt").write_text("zhe caz saz on a maz " * 20)  # as many characters
    vectors = {"family": "word2vec", "width": 8}
    of(text_run(tmp_path / "a.txt", vectors, "word2vec(negatives=2)"), tmp_path / "w2v")
    (tmp_path / "words.tsv").write_text("t\th\t3\na\tc\t2\no\tn\t1\n")
    words = (str(tmp_path / "words.tsv"),)
    evaluators = {"words": WordVectors(files=words), "baselines": Baselines()}
    found, _ = evaluate(str(tmp_path / "w2v"), evaluators=evaluators)
    assert found["words"]["least"] == pytest.approx(np.sqrt(1 - 8 / 10))
    assert found["words"]["least"] <= found["words"]["distance"] <= 1
    assert -1 <= found["words"][words[0]]["spearman"] <= 1
    assert found["baselines"]["trigram"]["loss"] < found["baselines"]["unigram"]["loss"]
    init = {"init_from": str(tmp_path / "w2v")}
    of(text_run(tmp_path / "a.txt", ENCODER, "masked_lm", **init), tmp_path / "mlm")
    report = json.loads((tmp_path / "mlm" / "init.json").read_text())
    assert report["loaded"] == ["embed/token/embedding"]
    there = tfm.load(str(tmp_path / "w2v")).params["input"]
    here = tfm.load(str(tmp_path / "mlm"), "last").params["embed"]["token"]["embedding"]
    assert len(here) == len(there) + 1
    np.testing.assert_array_equal(here[:-1], there)
    with pytest.raises(UserError, match="token ids stand for other tokens than this run's, so"):
        of(text_run(tmp_path / "b.txt", ENCODER, "masked_lm", **init), tmp_path / "other")
    rest = {**init, "init_pattern": "embed/.*"}
    (tmp_path / "c.txt").write_text("abc " * 120)
    with pytest.raises(UserError, match="its data have 10 token ids, and this run's 4, so"):
        of(text_run(tmp_path / "c.txt", ENCODER, "masked_lm", **rest), tmp_path / "fewer")


@pytest.mark.parametrize("ema", [None, 0.9])
def test_frozen_parts_keep_their_bits(tmp_path, source, ema):
    """What is frozen ends as it was in the other run; it has no moments; the rest has moved."""
    frozen = "embed/.*|decoder/layers/attention/.*"
    changes = {
        "train.init_from": str(source), "model.norm.kind": "batch", "train.ema": ema,
        "optimizer.frozen": frozen, "optimizer.factor_paths": ("decoder/.*",),
        "optimizer.factors": (0.5,),
    }  # fmt: skip
    train(tmp_path / "run", **changes)
    before, after = tfm.load(str(source)).params, tfm.load(str(tmp_path / "run"), "last").params
    one, other = (flatten_dict(x, sep="/") for x in (before, after))
    for path in one:
        same = np.array_equal(one[path], other[path])
        assert same == bool(re.fullmatch(frozen, path)), path
    state = jax.tree_util.tree_leaves_with_path(arrays(tmp_path / "run")["training"]["opt_state"])
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in state]
    moments = [name.partition("mu/")[2] for name in names if "mu/" in name]
    assert sorted(moments) == sorted(path for path in one if not re.fullmatch(frozen, path))


def test_an_imported_bert_becomes_a_classifier(tmp_path):
    """All but its old heads is taken, the pooler too; the new head is fresh."""
    import_folder(write(tmp_path / "hf", "bert_pretraining"), str(tmp_path / "bert"))
    known = json.loads((tmp_path / "bert" / "config.json").read_text())["model"]
    model = {**known, "outputs": ("classify",), "classes": None}
    tree = {
        "objective": "classify",
        "model": model,
        "data": {"dataset": "parity(length=6)", "examples": 20, "valid_examples": 4, "batch": 4},
        "train": {"steps": 2, "init_from": str(tmp_path / "bert")},
        "optimizer": {"frozen": "embed/.*"},
    }
    of(tree, tmp_path / "run")
    report = json.loads((tmp_path / "run" / "init.json").read_text())
    assert {path.split("/")[0] for path in report["new"]} == {"classify"}
    assert "pooler/kernel" in report["loaded"]
    table = [tfm.load(str(tmp_path / x), "last").params["embed"] for x in ("bert", "run")]
    jax.tree.map(np.testing.assert_array_equal, *table)


def vocabulary(files, tokenizer, label="label"):
    """The vocabulary of a small table that a tokenizer reads."""
    (files / "films.tsv").write_text(f"text\t{label}\na b\tbad\nb a\tgood\n")
    dataset = f"table(train='{files}/films.tsv', text='text', label='{label}')"
    return open_dataset(dataset, "train", reading=Reading(tokenizer)).vocabulary


def test_the_vectors_of_an_import_are_for_its_own_tokens(tmp_path):
    import_folder(write(tmp_path / "hf", "bert_classify"), str(tmp_path / "bert"))
    bert = str(tmp_path / "bert")
    variables = {"params": tfm.load(bert).params}
    own = vocabulary(tmp_path, f"of_run(path={bert!r})")
    _, report = initial_variables(variables, bert, None, 23, own)
    assert report["new"] == report["skipped"] == ["classify/bias", "classify/kernel"]  # bad, good
    same = json.loads(pathlib.Path(bert, "data.json").read_text())["vocabulary"]  # a, b, c
    assert initial_variables(variables, bert, None, 23, same)[1]["new"] == []
    other = vocabulary(tmp_path, "words")
    with pytest.raises(UserError, match="stand for other tokens .*data.tokenizer=.of_run"):
        initial_variables(variables, bert, None, 23, other)
    rest = "(?!embed/).*"
    assert initial_variables(variables, bert, rest, 23, other)[1]["skipped"]


def test_the_tokenizer_of_the_first_weights_is_the_default(tmp_path):
    import_folder(write(tmp_path / "hf", "bert_classify"), str(tmp_path / "bert"))
    (tmp_path / "films.tsv").write_text("text\tlabel\na b\tbad\nb a\tgood\n")
    run = read(
        {
            "objective": "classify",
            "model": ENCODER,
            "data": {"dataset": f"table(train='{tmp_path}/films.tsv', text='text', label='label')"},
            "train": {"steps": 2, "init_from": str(tmp_path / "bert")},
        }
    )
    assert str(run.data.tokenizer) == f"of_run(path={str(tmp_path / 'bert')!r})"
    *arrays, rate = start_notes(run, {"loaded": list("abcdefgh"), "new": ["x/kernel"]})
    assert arrays[0].endswith("8 arrays loaded: a, b, c, d, e, f, and 2 more in init.json")
    assert arrays[1].endswith("1 arrays new: x/kernel")
    assert rate.startswith("optimizer.learning_rate=0.001 is high for a pre-trained encoder")


CODINGS = ["random", "one_hot", "scalar"]


@pytest.mark.parametrize("coding", first_tier(CODINGS, ["random"]))
def test_token_coding(tmp_path, coding):
    """What is no parameter stays as it began; it is saved, and read with the run."""
    changes = {"model.coding": coding, "model.tied": coding == "random", "train.loss_chunk": 2}
    summary = train(tmp_path / "run", **changes)
    loaded = tfm.load(str(tmp_path / "run"), "last")
    assert summary["status"] == "done"
    assert set(loaded.params.get("embed", {})) == ({"line"} if coding == "scalar" else set())
    tables = loaded.variables.get("constants", {})
    assert [x.shape for x in jax.tree.leaves(tables)] == ([(8, 8)] if coding == "random" else [])
    if coding == "random":
        steps = {"train.steps": 2, "train.eval_every": 2}
        train(tmp_path / "short", **changes, **steps)
        other = tfm.load(str(tmp_path / "short"), "last").variables["constants"]
        jax.tree.map(np.testing.assert_array_equal, tables, other)


SHRUNK = {
    "model.width": 8, "model.layers": 1, "model.attention.heads": 2, "model.feedforward.width": 8,
    "train.steps": 2, "train.eval_every": 2, "data.batch": 2, "optimizer.learning_rate": 1e-30,
    "optimizer.weight_decay": None, "optimizer.schedule": "constant",
}  # fmt: skip


@pytest.mark.ci
def test_the_shipped_configs_pretrain_and_fine_tune(tmp_path, monkeypatch):
    """On small files in place of the real ones: the tokenizer and the weights go along."""
    monkeypatch.chdir(tmp_path)  # the configs name runs/…
    monkeypatch.setenv("TFM_DATA", str(tmp_path))
    sentence = "A group of kids is playing in a yard and an old man is standing\n"
    columns = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    rows = [f"{n}\tkids play in yard {n}\ta man\t3\t{n % 2}\n" for n in range(6)]
    for folder, names, text in (
        ("wikitext2", ("train", "valid", "test"), sentence * 30),
        ("sick", ("SICK_train", "SICK_trial", "SICK_test_annotated"), columns + "".join(rows)),
    ):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.txt").write_text(text)

    def shipped(name, workdir, seed=0):
        tree = load(str(pathlib.Path(__file__).parents[2] / "configs" / "text" / name)).to_dict()
        loop.train(read(replaced(RunSpec, tree, {**SHRUNK, "seed": seed})), workdir, Silent())
        return tfm.load(workdir, "last")

    before = shipped("wikitext2.py:masked", "runs/wikitext2_masked", seed=1)
    after = shipped("finetune.py:sick,pretrained", "runs/sick")
    scratch = shipped("finetune.py:sick,scratch", "runs/scratch")
    same = {meaning_of_ids(run.reader.vocabulary) for run in (before, after, scratch)}
    assert len(same) == 1
    assert same != {None}
    for name in ("embed", "encoder"):
        there, here, fresh = (flatten_dict(run.params[name]) for run in (before, after, scratch))
        shared = [path for path in there if "kernel" in path or path == ("token", "embedding")]
        assert shared
        for path in shared:
            np.testing.assert_array_equal(here[path], there[path])
            assert not np.array_equal(fresh[path], there[path])

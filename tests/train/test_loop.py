"""Runs in this process: resuming, divergence, what compiles, what a folder refuses."""

import dataclasses
import pathlib
import shutil
import struct

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.runs import Silent
from tfm.config import files as config
from tfm.config.names import UserError
from tfm.run import spec
from tfm.run.evaluation import evaluate
from tfm.train import loop
from tfm.train.step import run_numbers, run_steps

SMALL = str(pathlib.Path(__file__).parent / "small.py")


def load(model="decoder", *overrides):
    argv = [f"--config={SMALL}:{model}", *(f"--config.{text}" for text in overrides)]
    return spec.read(config.from_command_line(argv, spec.RunSpec))


def train(run, workdir):
    watcher = Silent()
    return loop.train(run, str(workdir), watcher), watcher


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    run = load()
    whole, watcher = train(run, tmp_path / "run")
    assert [line["step"] for line in watcher.lines if line["split"] == "valid"] == [10, 20, 30, 40]
    newest = tmp_path / "run/checkpoints/40"
    largest = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    bits = bytearray(largest.read_bytes())
    bits[len(bits) // 2] ^= 255
    largest.write_bytes(bits)
    (tmp_path / "run/summary.json").unlink()
    again, watcher = train(run, tmp_path / "run")
    assert any("checkpoint 40 is damaged" in text for text in watcher.messages)
    assert "going on from step 35" in watcher.messages
    assert again == whole
    third, watcher = train(run, tmp_path / "run")
    assert third == whole
    assert "finished before" in watcher.messages[0]


def test_tensorboard_shows_what_the_log_says(tmp_path):
    from tensorboardX.proto import event_pb2

    _, watcher = train(load("recurrent"), tmp_path / "run")
    (file,) = (tmp_path / "run/tensorboard").iterdir()
    raw, at, events = file.read_bytes(), 0, []
    while at < len(raw):  # TFRecord: length, its checksum, data, its checksum
        (size,) = struct.unpack_from("<Q", raw, at)
        events.append(event_pb2.Event.FromString(raw[at + 12 : at + 12 + size]))
        at += size + 16
    found = {
        (event.step, value.tag): value.simple_value
        for event in events
        for value in event.summary.value
    }
    wanted = {
        (line["step"], f"{line['split']}/{name}"): np.float32(value)
        for line in watcher.lines
        for name, value in line.items()
        if name not in ("step", "split")
    }
    assert found == wanted


def first_batch(run, data):
    plan = loop.plan_of(run, data["train"])
    return loop.train_batch(run.objective.entry, data["train"], plan, run.seed, 0)


def test_learning_rate_decay_dropout_and_seed_are_data():
    _, train_step, _ = run_steps(spec.open_data(load())[0])
    known = 0
    for change in (
        ["optimizer.learning_rate=0.003", "optimizer.weight_decay=0.2", "seed=7",
         "model.dropout.residual=0.3", "train.ema=0.5", "optimizer.clip=0.3"]
    ):  # fmt: skip
        run, data = spec.open_data(load("decoder", change, "train.steps=40"))
        init, own_step, _ = run_steps(run)
        assert own_step is train_step
        batch = first_batch(run, data)
        train_step(init(batch, jnp.uint32(run.seed)), batch, run_numbers(run))
        known = known or train_step._cache_size()
        assert train_step._cache_size() == known, change
    without, _ = spec.open_data(load("decoder", "optimizer.weight_decay=None"))
    assert run_steps(without)[1] is not train_step


def test_accumulated_gradients_are_those_of_the_whole():
    after = []
    for changes in ([], ["train.accumulate=4"]):
        run, data = spec.open_data(load("recurrent", *changes))
        init, train_step, _ = run_steps(run)
        batch = first_batch(run, data)
        after.append(train_step(init(batch, jnp.uint32(0)), batch, run_numbers(run)))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, after[0].params, after[1].params)


@pytest.fixture
def poisoned(monkeypatch):
    """The third batch has weights that are not a number."""
    real = loop.train_batch

    def train_batch(objective, dataset, plan, seed, step):
        batch = real(objective, dataset, plan, seed, step)
        return batch.replace(weights=batch.weights * np.float32("nan")) if step == 2 else batch

    monkeypatch.setattr(loop, "train_batch", train_batch)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_loss_that_is_not_finite(policy, tmp_path, poisoned):
    run = load("recurrent", f"train.on_nonfinite={policy}", "train.steps=12", "train.ema=None")
    summary, _ = train(run, tmp_path / "run")
    if policy == "stop":
        assert (summary["status"], summary["diverged_at"]) == ("diverged", 2)
    else:
        assert (summary["status"], summary["skipped"], summary["steps"]) == ("done", 1, 12)
        assert np.isfinite(summary["valid"]["loss"])


@pytest.mark.parametrize("steps", [8, 4])
def test_a_run_that_diverged_and_was_killed_before_its_end_has_diverged(steps, tmp_path, poisoned):
    """The last save is there, the summary is not: with steps to come, and without."""
    run = load("recurrent", f"train.steps={steps}", "train.save_every=4", "train.ema=None")
    whole, _ = train(run, tmp_path / "run")
    log = (tmp_path / "run/metrics.jsonl").read_bytes()
    (tmp_path / "run/summary.json").unlink()
    again, _ = train(run, tmp_path / "run")
    assert again == whole
    assert (again["status"], again["steps"]) == ("diverged", 4)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == log


def test_a_folder_belongs_to_one_run_and_one_process(tmp_path):
    run = load("recurrent", "train.steps=2")
    train(run, tmp_path / "run")
    with pytest.raises(UserError, match="holds another run"):
        train(load("recurrent", "train.steps=3"), tmp_path / "run")
    with (
        loop.Folder(tmp_path / "run").lock(),
        pytest.raises(UserError, match="in use by another process"),
    ):
        train(run, tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the folder"):
        train(run, tmp_path / "file" / "run")


def test_what_decides_a_result_names_it():
    def name(*changes):
        run, data = spec.open_data(load("recurrent", *changes))
        return loop.identity(
            run, [dataset.fingerprint for dataset in data.values()], loop.digests(run)
        )

    plain = name()
    assert name("train.log_every=7") == name("train.keep=5") == plain
    for change in ("seed=4", "optimizer.learning_rate=0.02", "model.hidden=9", "data.seed=1"):
        assert name(change) != plain
    assert name("optimizer.b1=0.9") == plain  # its default
    assert name("model.vocab=8") == plain  # what the data need


def test_evaluation_reads_best_and_last(tmp_path):
    run = load("recurrent")
    summary, _ = train(run, tmp_path / "run")
    last, _ = evaluate(str(tmp_path / "run"))
    assert last["loss"] == pytest.approx(summary["valid"]["loss"], rel=1e-12)
    low, high = last["intervals"]["loss"]
    assert low < last["loss"] < high
    best, _ = evaluate(str(tmp_path / "run"), checkpoint="best")
    assert best["loss"] == pytest.approx(summary["best"]["loss"], rel=1e-12)
    longer, _ = evaluate(str(tmp_path / "run"), "test", "copy(length=6, vocab=8)")
    assert longer["loss"] == pytest.approx(summary["tests"]["copy(length=6, vocab=8)"]["loss"])
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(UserError, match="has no checkpoint"):
        evaluate(str(tmp_path / "run"))


def test_evaluation_finds_the_score_that_a_file_brought(tmp_path, own_tables):
    """Another process has not loaded the file; and it may have been edited since."""
    idea = tmp_path / "idea.py"
    idea.write_text(f"""
from tfm.config import files as config
from tfm.ops.scores import Score, dot
def half(q_BTHK, k_BSHK, **at):
    return 0.5 * dot(q_BTHK, k_BSHK)
SCORES = {{"half": Score(half)}}
def get_config():
    found = config.load("{SMALL}:decoder").unlock()
    found.model.attention.score = "half"
    return found
""")
    run = spec.read(config.from_command_line([f"--config={idea}"], spec.RunSpec))
    summary, _ = train(run, tmp_path / "run")

    def forget():
        config.TABLES["SCORES"].pop("half", None)
        config._added_by.clear()

    forget()
    idea.write_text(idea.read_text().replace("0.5", "0.25"))
    found, _ = evaluate(str(tmp_path / "run"), trust=True)
    assert found["loss"] == pytest.approx(summary["valid"]["loss"], rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("objective=next_tokn", "unknown objective 'next_tokn'; did you mean 'next_token'"),
        ("objective=seq2seq", "objective='seq2seq' is for encoder_decoder, seq2seq"),
        ("objective=classify", "objective='classify' is for"),
        ("train.steps=0", "train.steps=0 must be at least 1"),
        ("train.accumulate=3", "train.accumulate=3 must divide data.batch=16"),
        ("train.ema=1.0", r"train.ema=1.0 must be in \[0, 1\)"),
        ("train.on_nonfinite=ignore", "unknown train.on_nonfinite 'ignore'"),
        ("seed=-1", r"seed=-1 must be in \[0, "),
        ("optimizer.nam=sgd", "did you mean 'optimizer.name'"),
        ("data.dataset=copi", "unknown data.dataset 'copi'; did you mean 'copy'"),
        ("data.dataset=copy(length=0)", "data.dataset=.*length=0"),
    ],
)
def test_what_cannot_be_is_named(change, message):
    with pytest.raises(UserError, match=message):
        load("decoder", change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.vocab=5", "data set 'train': model.vocab=5: the data need at least 8"),
        ("data.tests=copy(length=30,vocab=8)", "but max_length=16"),
        ("data.dataset=characters(path='nowhere.txt',length=4)", "nowhere.txt"),
    ],
)
def test_data_that_cannot_be_is_named_before_a_folder_is_made(change, message, tmp_path):
    if change.startswith("data.tests"):
        run = load()
        data = dataclasses.replace(run.data, tests=("copy(length=30, vocab=8)",))
        run = dataclasses.replace(run, data=data)
    else:
        run = load("decoder", change)
    with pytest.raises(UserError, match=message):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


WORD2VEC = "word2vec(negatives=3)"


def test_what_would_be_ignored_is_refused():
    """An option that does nothing is an error, wherever it stands."""
    tree = {
        "objective": WORD2VEC,
        "model": {"family": "word2vec", "width": 4},
        "data": {"dataset": "dyck(length=8)", "examples": 10, "valid_examples": 10},
        "train": {"steps": 10, "label_smoothing": 0.1},
    }
    with pytest.raises(UserError, match="train.label_smoothing=0.1: .* has no labels to smooth"):
        spec.read(tree)
    data = {**tree["data"], "dataset": "addition", "seed": 1}
    with pytest.raises(UserError, match="data.seed=1: the examples of 'addition' are always the"):
        spec.read({**tree, "train": {"steps": 10}, "data": data})
    schedule = {"schedule": "noam(warmup=11)"}
    with pytest.raises(UserError, match="optimizer.schedule='noam.*': a warm-up of 11 steps is"):
        spec.read({**tree, "train": {"steps": 10}, "optimizer": schedule})

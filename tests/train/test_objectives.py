"""Every objective takes two steps with a family that serves it, is evaluated, and hides what it
asks for."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.tiers import first_tier
from tests.objectives.test_prepare import data, flat, ragged
from tfm.config.names import read
from tfm.data.dataset import Examples, Ragged
from tfm.data.plan.order import Epochs
from tfm.evaluate.leaks import find_leak
from tfm.evaluate.loss import intervals, measure
from tfm.models.spec import model_spec
from tfm.objectives.batches import eval_batches, open_sizes, train_batch
from tfm.objectives.table import OBJECTIVES
from tfm.optim.optimizer import OptimizerSpec
from tfm.run.spec import TrainSpec
from tfm.train import step as steps

MODEL = {"width": 8, "layers": 1, "max_length": 20, "attention": {"heads": 2},
         "feedforward": {"width": 8}}  # fmt: skip
ENCODER = {"family": "encoder", **MODEL}
DECODER = {"family": "decoder", **MODEL}
BOTH = {"family": "encoder_decoder", **MODEL}
NAMES = ("O", "B-X", "I-X")

RNG = np.random.default_rng(0)
TEXT = data(
    "text", Examples(tokens=Ragged.of(RNG.integers(0, 9, (8, 12)))), max_length=12, count=8,
    bytes_per_token=2.0, words_per_token=0.5,
)  # fmt: skip
SENTENCES = ragged(*[RNG.integers(3, 9, n) for n in (5, 3, 4, 5)])
TWO = data(
    "labels",
    Examples(tokens=SENTENCES, labels=np.array([0, 1, 2, 1]), segments=np.tile([0, 1], 9)[:17]),
    classes=3, max_length=5, count=4,
)  # fmt: skip
NUMBERS = data("labels", Examples(tokens=SENTENCES, labels=RNG.random(4)), max_length=5, count=4)
TAGS = data(
    "tags",
    Examples(tokens=SENTENCES, tags=RNG.integers(0, 3, 17), scored=flat(np.arange(17) % 3) < 2),
    tags=3, label_names=NAMES, max_length=5, count=4,
)  # fmt: skip
CASES = {
    "prefix_lm": (DECODER, TEXT, "bits_per_byte"),
    "span_corruption": (BOTH, TEXT, "text_loss"),
    "ul2": (BOTH, TEXT, "text_accuracy"),
    "masked_lm(static=True)": (ENCODER, TEXT, "accuracy"),
    "pair": (ENCODER, TWO, "matthews"),
    "regress": (ENCODER, NUMBERS, "pearson"),
    "tag": (ENCODER, TAGS, "entity_f1"),
    "word2vec(negatives=2, subsample=0.1)": ({"family": "word2vec", "width": 4}, TEXT, "loss"),
    "word2vec(kind='cbow', negatives=2)": (
        {"family": "word2vec", "kind": "cbow", "width": 4, "average": True, "tied": True}, TEXT,
        "loss",
    ),
}  # fmt: skip


# Resumed runs (test_resume.py) cover the other objectives in the first tier.
FIRST = ["prefix_lm", "pair", "regress", "tag", "word2vec(kind='cbow', negatives=2)"]


@pytest.mark.parametrize("name", first_tier([*CASES, "ul2 in chunks"], [*FIRST, "ul2 in chunks"]))
def test_two_steps(name):
    name, _, chunked = name.partition(" in ")
    chunk = 4 if chunked else None
    model, dataset, metric = CASES[name]
    objective = read(name, OBJECTIVES, "objective")
    assert objective.refuses(dataset) is None
    spec = open_sizes(model_spec({"model": model}), objective, dataset)
    module = spec.build()
    opt, train = OptimizerSpec(learning_rate=0.01), TrainSpec(steps=2, loss_chunk=chunk)
    init, train_step, eval_step = steps.compiled(module, objective, opt, train)
    plan, numbers = Epochs(len(dataset), 4, 0), steps.numbers_of(opt, train, {}, 0)
    state = init(train_batch(objective, dataset, plan, 0, 0), jnp.uint32(0))
    first = next(eval_batches(objective, dataset, 4))
    if objective.labels_in is not None:
        assert find_leak(eval_step, state.variables(), objective, first, dataset.vocab) is None
    before = jax.device_get(state.params)
    for step in range(2):
        state = train_step(state, train_batch(objective, dataset, plan, 0, step), numbers)
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), before, jax.device_get(state.params))
    assert any(jax.tree.leaves(moved))
    assert int(state.diverged) == -1
    sums = measure(objective, dataset, eval_step, state.variables(), 3)
    found = objective.metrics(sums, dataset)
    assert np.isfinite(found[metric])
    assert np.isfinite(found["loss"])
    low, high = intervals(objective, sums, dataset, draws=20)["loss"]
    assert low <= high
    if metric == "bits_per_byte":
        bits = found["loss"] / np.log(2)
        assert found["bits_per_byte"] == pytest.approx(bits / 2)
        assert found["bits_per_word"] == pytest.approx(bits / 0.5)

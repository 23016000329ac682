import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.helpers.tiers import first_tier
from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.data.datasets import open_dataset
from tfm.models.spec import model_spec
from tfm.objectives.base import Batch, Objective, chunked_loss, head_options, sums_of
from tfm.objectives.masked_lm import Bert
from tfm.objectives.next_token import NextToken
from tfm.run.spec import RunSpec

SUMS = {
    "loss": np.array([2.0, 4.0, 6.0]),
    "correct": np.array([2.0, 1.0, 4.0]),
    "count": np.array([2.0, 4.0, 4.0]),
}


def test_metrics_by_hand(tmp_path):
    (tmp_path / "text").write_text("é" * 40)
    text = f"characters(path={str(tmp_path / 'text')!r}, length=4)"
    dataset = open_dataset(text, "valid")
    assert dataset.bytes_per_token == 2
    found = NextToken().metrics(SUMS, dataset)
    assert found["loss"] == pytest.approx(1.2)
    assert found["perplexity"] == pytest.approx(math.exp(1.2))
    assert found["accuracy"] == pytest.approx(0.7)
    assert found["exact"] == pytest.approx(2 / 3)
    assert found["bits_per_byte"] == pytest.approx(1.2 / math.log(2) / 2)
    assert "bits_per_byte" not in NextToken().metrics(SUMS, open_dataset("copy", "valid", 3))


def test_cross_entropy_by_definition():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    labels = rng.integers(0, 5, (2, 3))
    weights = np.array([[1, 0, 1], [1, 1, 0]], np.float32)
    got = Objective().loss(jnp.asarray(logits), Batch({}, labels, weights), jnp.float32(0.1))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    smooth = np.full((2, 3, 5), 0.1 / 5)
    for b, t in np.ndindex(2, 3):
        smooth[b, t, labels[b, t]] += 0.9
    own = -np.log(np.take_along_axis(p, labels[..., None], -1)[..., 0])
    np.testing.assert_allclose(got["loss"], (own * weights).sum(1), rtol=1e-5)
    wanted = -(smooth * np.log(p)).sum(-1)
    np.testing.assert_allclose(got["smoothed"], (wanted * weights).sum(1), rtol=1e-5)
    correct = (logits.argmax(-1) == labels) * weights
    np.testing.assert_array_equal(got["correct"], correct.sum(1))
    np.testing.assert_array_equal(got["count"], weights.sum(1))


DECODER = dict(
    family="decoder", vocab=50, width=8, layers=1, max_length=9, feedforward={"width": 16},
    attention={"heads": 2},
)  # fmt: skip
CHUNKED = {
    "decoder": DECODER,
    "encoder": {**DECODER, "family": "encoder", "outputs": ("masked_lm",)},
    "encoder_decoder": {**DECODER, "family": "encoder_decoder"},
    "recurrent": dict(family="recurrent", vocab=50, width=8, hidden=8, tied=True),
    "seq2seq": dict(family="seq2seq", cell="gru", vocab=50, width=8, hidden=8),
}


@pytest.mark.parametrize("family", first_tier(CHUNKED, ["encoder", "seq2seq"]))
def test_logits_in_parts_give_the_same_loss_and_gradients(family):
    """Of nine positions, four at a time; and never are all logits there at once. Of each row two to
    four are scored, so the third part is left out."""
    spec = model_spec({"model": CHUNKED[family]})
    module = spec.build()
    rng = np.random.default_rng(0)
    names = spec.example(3, 9)
    inputs = {name: rng.integers(0, 50, x.shape, np.int32) for name, x in names.items()}
    weights = rng.permuted(np.arange(9) < np.array([[2], [3], [4]]), axis=1).astype(np.float32)
    batch = Batch(inputs, rng.integers(0, 50, (3, 9)), weights)
    objective = NextToken()
    variables = jit(module.init)(jax.random.key(0), **inputs)

    def loss(variables, chunk):
        x = module.apply(variables, **inputs, train=True, **head_options(chunk))
        sums = sums_of(module, objective, variables, x, batch, jnp.float32(0.1), chunk)
        return jnp.sum(sums["smoothed"]), sums

    gradient = jax.grad(loss, has_aux=True)
    whole, parts = (
        jit(lambda variables, chunk=chunk: gradient(variables, chunk))(variables)
        for chunk in (None, 4)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, parts)
    sizes = {
        chunk: "3,9,50" in str(jax.make_jaxpr(lambda v, c=chunk: gradient(v, c))(variables))
        for chunk in (None, 4)
    }
    assert sizes == {None: True, 4: False}


def test_parts_without_a_scored_position_are_not_computed():
    """Of 16 positions four are scored: of four parts, only the logits of one are made."""
    x_BTD = jnp.ones((1, 16, 1))
    weights = np.zeros((1, 16), np.float32)
    weights[0, [1, 6, 8, 15]] = 1
    batch = Batch({}, np.zeros((1, 16), np.int32), weights)
    calls = []

    def logits(x_BTD):
        jax.debug.callback(lambda: calls.append(x_BTD.shape))
        return jnp.concatenate([x_BTD, 2 * x_BTD], -1)

    sums = jax.jit(lambda: chunked_loss(NextToken(), logits, x_BTD, batch, None, 4))()
    np.testing.assert_allclose(sums["loss"], 4 * np.log1p(np.e), rtol=1e-6)
    jax.effects_barrier()
    assert len(calls) == 1


def test_a_loss_that_has_no_parts_is_refused():
    tree = {
        "model": {"family": "encoder", **{k: v for k, v in DECODER.items() if k != "family"}},
        "objective": "tag",
        "data": {"dataset": "sort"},
        "train": {"steps": 1, "loss_chunk": 4},
    }
    with pytest.raises(UserError, match=r"train.loss_chunk=4: objective='tag' .*='encoder' cannot"):
        to_spec(RunSpec, tree)


def test_bert_is_the_mean_of_two_losses():
    """Both losses of a batch, with the pair weighing as much as all hidden tokens."""
    objective, dataset = Bert(rate=0.4), open_dataset("stories(pairs=True)", "train", 6)
    examples = dataset.take(np.arange(6))
    batch = objective.prepare(examples, dataset, np.random.default_rng(0))
    hidden_BT = batch.weights > 0
    assert hidden_BT[:, 0].all()  # the class
    hidden_BT[:, 0] = False
    rows_BT = examples.tokens.padded(dataset.max_length)
    np.testing.assert_array_equal(batch.labels[hidden_BT], rows_BT[hidden_BT])
    assert not np.isin(rows_BT[hidden_BT], dataset.special).any()
    np.testing.assert_array_equal(batch.inputs["tokens_BT"][:, 0], rows_BT[:, 0])
    rng = np.random.default_rng(1)
    logits = {"masked_lm": rng.normal(size=(6, dataset.max_length, dataset.vocab + 1)),
              "pair": rng.normal(size=(6, 2))}  # fmt: skip
    sums = objective.loss(jax.tree.map(jnp.float32, logits), batch)
    log_p = jax.tree.map(lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)), logits)
    pair_B = -log_p["pair"][np.arange(6), examples.labels]
    words = -np.take_along_axis(log_p["masked_lm"], rows_BT[..., None], 2)[..., 0][hidden_BT]
    got = objective.metrics({name: np.asarray(x) for name, x in sums.items()}, dataset)
    assert got["loss"] == pytest.approx((pair_B.mean() + words.mean()) / 2, rel=1e-5)
    assert got["perplexity"] == pytest.approx(np.exp(words.mean()), rel=1e-5)
    assert got["pair_loss"] == pytest.approx(pair_B.mean(), rel=1e-5)
    right = logits["pair"].argmax(1) == examples.labels
    assert got["pair_accuracy"] == pytest.approx(right.mean())
    assert set(got) <= {metric.name for metric in objective.declares(dataset)}

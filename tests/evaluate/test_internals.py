"""Internal metrics against NumPy: softmax by definition, gradients by finite differences."""

import jax
import jax.flatten_util
import numpy as np
import pytest

from tests.helpers.tiers import first_tier
from tfm.evaluate.evaluator import EvalContext
from tfm.evaluate.internals import Internals, attention_sums
from tfm.objectives.base import Batch, eval_step
from tfm.objectives.batches import eval_batches
from tfm.run.spec import open_data, read


def test_attention_of_each_layer_by_definition():
    """Two layers, two heads; causal, with padding and a filled-up example that do not count."""
    rng = np.random.default_rng(0)
    batch, heads, length = 3, 2, 4
    logits = rng.normal(size=(2, batch, heads, length, length))
    visible = np.broadcast_to(np.tri(length, dtype=bool), logits.shape)
    powers = np.where(visible, np.exp(logits), 0)
    weights = powers / powers.sum(-1, keepdims=True)
    valid = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]], bool)
    inputs = {"valid_BT": valid}
    captured = {"weights_NBHTS": weights, "logits_NBHTS": logits, "visible_NBHTS": visible}
    sums = dict(attention_sums(captured, Batch(inputs, None, None), rows=2))
    assert set(sums) == {"layer_0", "layer_1"}
    for layer, got in enumerate((sums["layer_0"], sums["layer_1"])):
        wanted = np.zeros(4)
        for b, h, t in np.ndindex(2, heads, length):
            if valid[b, t]:
                row = weights[layer, b, h, t, : t + 1]
                spread = np.std(logits[layer, b, h, t, : t + 1])
                wanted += [-np.sum(row * np.log(row)), row.max(), spread, 1]
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


FAMILIES = ["decoder", "recurrent", "encoder_decoder"]


@pytest.mark.parametrize("family", first_tier(FAMILIES, ["decoder", "recurrent"]))
def test_gradients_of_each_layer_by_finite_differences(family):
    transformer = {"width": 4, "layers": 2, "max_length": 12, "attention": {"heads": 1},
                   "feedforward": {"width": 4}}  # fmt: skip
    sizes = {"cell": "gru", "width": 4, "hidden": 4} if family == "recurrent" else transformer
    tree = {
        "objective": "seq2seq" if family == "encoder_decoder" else "next_token",
        "model": {"family": family, **sizes},
        "data": {"dataset": "copy(length=3, vocab=7)", "examples": 9, "valid_examples": 5,
                 "eval_batch": 4},
        "train": {"steps": 1},
    }  # fmt: skip
    run, data = open_data(read(tree))
    model, objective = run.model.build(), run.objective.entry
    batches = list(eval_batches(objective, data["valid"], 4))
    variables = model.init(jax.random.key(0), **batches[0].inputs)
    step = jax.jit(lambda variables, batch: eval_step(model, objective, variables, batch))
    context = EvalContext(
        spec=run.model, model=model, variables=variables, objective=objective, eval_step=step,
        data=data.__getitem__, source=None, batch=4, reader=None,
    )  # fmt: skip
    result = Internals().evaluate(context, data["valid"])
    norms = {path: x["gradient_norm"] for path, x in result.slices.items() if "gradient_norm" in x}
    total = np.sqrt(sum(x**2 for x in norms.values()))
    assert result.metrics["gradient_norm"] == pytest.approx(total)
    assert ("attention_entropy" in result.metrics) == (family != "recurrent")

    flat, tree_of = jax.flatten_util.ravel_pytree(variables["params"])
    direction = np.random.default_rng(1).normal(size=flat.shape).astype(np.float32)
    direction /= np.linalg.norm(direction)

    def loss(epsilon):
        moved = {**variables, "params": tree_of(flat + epsilon * direction)}
        sums = [step(moved, batch) for batch in batches]
        count = sum(float(x["count"].sum()) for x in sums)
        return sum(float(x["loss"].sum()) for x in sums) / count

    slope = (loss(1e-3) - loss(-1e-3)) / 2e-3
    grad = jax.grad(
        lambda params: sum(
            eval_step(model, objective, {"params": params}, b)["loss"].sum() for b in batches
        )
    )(variables["params"])
    count = sum(float(b.weights.sum()) for b in batches)
    flat_grad = jax.flatten_util.ravel_pytree(grad)[0] / count
    assert float(flat_grad @ direction) == pytest.approx(slope, rel=0.02, abs=2e-3)
    assert total == pytest.approx(float(np.linalg.norm(flat_grad)), rel=1e-5)
    if family == "decoder":
        layers = [grad["decoder"]["layers"]]
        for n in range(2):
            squares = [np.sum(np.square(x[n] / count)) for x in jax.tree.leaves(layers)]
            assert norms[f"decoder/layer_{n}"] == pytest.approx(np.sqrt(sum(squares)), rel=1e-5)

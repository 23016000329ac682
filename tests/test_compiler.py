"""What the optimising compiler gives, with the flags that users get: jit, eager and float64 NumPy.

Sizes are beyond those at which a version of the compiler went wrong: over 32,768 rows, a vocabulary
of 32,768, a length of 4,096.
"""

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from tests.helpers.quick import users_jit
from tests.parity import parity_cases
from tfm.layers.norm import NORMS, NormSpec
from tfm.objectives.base import Batch, cross_entropy
from tfm.ops.attend import attend
from tfm.ops.masks import causal

ROWS, VOCAB, LENGTH = 40_001, 32_768, 4_096


pytestmark = pytest.mark.usefixtures("optimising")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def agree(f, wanted, *args, rtol=2e-5):
    """Compiled, eager and wanted (of float64) are equal, relative to the largest of each array."""
    compiled, eager = users_jit(f)(*args), f(*args)
    for a, b, c in zip(*map(jax.tree.leaves, (compiled, eager, wanted)), strict=True):
        scale = np.max(np.abs(c))
        np.testing.assert_allclose(a, c, rtol=0, atol=rtol * scale)
        np.testing.assert_allclose(b, c, rtol=0, atol=rtol * scale)


class _Norm(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, x_BTD):
        spec = NormSpec(kind=self.kind)
        return NORMS[self.kind].apply(spec, jnp.float32, "norm", x_BTD, None, False)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_many_rows(kind):
    x_BTD, g_BTD, module = normal(1, ROWS, 8), normal(1, ROWS, 8, seed=1), _Norm(kind)
    variables = module.init(jax.random.key(0), x_BTD[:, :1])

    def f(x):
        y, back = jax.vjp(module.apply, variables, x)
        grads, dx = back(g_BTD)
        return y, dx, grads["params"]["norm"]["scale"]

    x, g = x_BTD.astype(np.float64), g_BTD.astype(np.float64)
    mean = x.mean(-1, keepdims=True) if kind == "layer" else 0.0
    scale = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    y = (x - mean) * scale
    dx = g - y * (g * y).mean(-1, keepdims=True)
    dx = scale * (dx - (g.mean(-1, keepdims=True) if kind == "layer" else 0.0))
    agree(f, (y, dx, (g * y).sum((0, 1))), x_BTD)


def test_a_dense_layer_of_many_rows_and_sums_over_them():
    x_ND, w_DE, b_E = normal(ROWS, 8), normal(8, 3, seed=1), normal(3, seed=2)

    def f(x, w, b):
        loss = lambda x, w, b: jnp.sum(jnp.square(jnp.tanh(x @ w + b[None])), -1)
        total, grads = jax.value_and_grad(lambda *a: jnp.sum(loss(*a)), (0, 1, 2))(x, w, b)
        return loss(x, w, b), total, grads

    x, w, b = (a.astype(np.float64) for a in (x_ND, w_DE, b_E))
    y = np.tanh(x @ w + b)
    dz = 2 * y * (1 - y**2)
    wanted = (y**2).sum(-1), (y**2).sum(), (dz @ w.T, x.T @ dz, dz.sum(0))
    agree(f, wanted, x_ND, w_DE, b_E)


def test_cross_entropy_of_a_large_vocabulary():
    logits_BV = 3 * normal(40, VOCAB)
    labels_B = np.random.default_rng(1).integers(0, VOCAB, 40)
    batch = Batch({}, labels_B, np.ones(40, np.float32))

    def f(logits):
        loss = lambda logits: cross_entropy(logits, batch)["loss"]
        return loss(logits), jax.grad(lambda logits: jnp.sum(loss(logits)))(logits)

    x = logits_BV.astype(np.float64)
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    grad = p.copy()
    grad[np.arange(40), labels_B] -= 1
    agree(f, (-np.log(p[np.arange(40), labels_B]), grad), logits_BV)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_attention_over_a_long_sequence(implementation):
    q, k, v = (normal(1, LENGTH, 1, 8, seed=seed) for seed in range(3))

    def f(q, k, v):
        return attend(q, k, v, mask=causal(), implementation=implementation)

    logits = q[0, :, 0].astype(np.float64) @ k[0, :, 0].astype(np.float64).T / np.sqrt(8)
    logits[np.triu_indices(LENGTH, 1)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v[0, :, 0].astype(np.float64)
    agree(f, wanted[None, :, None], q, k, v)


def test_the_gradient_of_an_embedding_of_many_tokens():
    table_VD, g_ND = normal(50, 4), normal(ROWS, 4, seed=1)
    ids_N = np.random.default_rng(2).integers(0, 50, ROWS)
    wanted = np.zeros((50, 4))
    np.add.at(wanted, ids_N, g_ND.astype(np.float64))
    agree(lambda table: jax.vjp(lambda t: t[ids_N], table)[1](g_ND), (wanted,), table_VD)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["gpt2", "bert_masked_lm", "t5", "lstm"])
def test_golden_models(name, monkeypatch):
    """Outputs and gradients of whole models, compiled as users compile them."""
    monkeypatch.setattr(parity_cases, "jit", users_jit)
    _, config = parity_cases.CASES[name]
    wanted = parity_cases.golden(name)
    shapes = {tensor: grad.shape for tensor, grad in wanted[1].items()}
    parity_cases.compare(config, parity_cases.ours(config, shapes), wanted)

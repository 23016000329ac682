"""Beside implementations that nobody here wrote: torch.nn and Hugging Face transformers."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tfm.layers.attention import AttentionSpec, MultiHeadAttention
from tfm.layers.dims import Dims
from tfm.ops import masks
from tfm.ops.attend import attend
from tfm.ops.positions import alibi_slopes, relative_bucket, rotary

torch = pytest.importorskip("torch", reason="parity needs the extra: pip install 'tfm[parity]'")

pytestmark = pytest.mark.ci

WAYS = [{"implementation": "reference"}, {"implementation": "blockwise", "edge": 4}]
VALID = np.array([[1] * 5 + [0] * 2, [1] * 7], bool)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_scaled_dot_product_attention(kind, groups, way):
    q, k, v = normal(0, 2, 7, 4, 8), normal(1, 2, 7, groups, 8), normal(2, 2, 7, groups, 8)
    mask, theirs = {
        "none": (masks.everything(), {}),
        "causal": (masks.causal(), {"is_causal": True}),
        "padding": (masks.padding(VALID), {"attn_mask": torch.tensor(VALID)[:, None, None]}),
    }[kind]

    def ours(q, k, v):
        out = attend(q, k, v, mask=mask, **way)
        return jnp.sum(jnp.sin(out)), out

    (_, out), grads = jax.value_and_grad(ours, (0, 1, 2), has_aux=True)(
        *map(jnp.asarray, (q, k, v))
    )
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in tensors), enable_gqa=True, **theirs
    ).transpose(1, 2)
    torch.sin(wanted).sum().backward()
    np.testing.assert_allclose(out, wanted.detach(), atol=1e-5)
    for grad, tensor in zip(grads, tensors, strict=True):
        np.testing.assert_allclose(grad, tensor.grad, atol=1e-5)


def test_multi_head_attention():
    heads, width = 3, 12
    theirs = torch.nn.MultiheadAttention(width, heads, batch_first=True)
    with torch.no_grad():
        for parameter in theirs.parameters():
            seed = torch.Generator().manual_seed(parameter.numel())
            parameter.normal_(std=width**-0.5, generator=seed)
    w = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}
    kernels = (part.T.reshape(width, heads, -1) for part in np.split(w["in_proj_weight"], 3))
    biases = (part.reshape(heads, -1) for part in np.split(w["in_proj_bias"], 3))
    tree = {
        name: {"kernel": kernel, "bias": bias}
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True)
    }
    tree["out"] = {
        "kernel": w["out_proj.weight"].T.reshape(heads, -1, width),
        "bias": w["out_proj.bias"],
    }
    x, source = normal(0, 2, 5, width), normal(1, 2, 7, width)
    spec = AttentionSpec(heads=heads, qkv_bias=True, out_bias=True)

    def ours(module, x, source):
        keys_values = module.keys_values(source)
        return module.attend(x, *keys_values, mask=masks.padding(VALID), capture=("weights",))

    module = MultiHeadAttention(spec, Dims(width))
    out, captured = module.apply({"params": tree}, x, source, method=ours)
    wanted, wanted_weights = theirs(
        torch.tensor(x), torch.tensor(source), torch.tensor(source),
        key_padding_mask=torch.tensor(~VALID), average_attn_weights=False,
    )  # fmt: skip
    np.testing.assert_allclose(captured["weights_BHTS"], wanted_weights.detach(), atol=1e-5)
    np.testing.assert_allclose(out, wanted.detach(), atol=2e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets(bidirectional):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="needs transformers")
    ahead = np.arange(-200, 201)
    wanted = t5.T5Attention._relative_position_bucket(torch.tensor(ahead), bidirectional, 32, 128)
    ours = relative_bucket(jnp.asarray(ahead), 32, 128, bidirectional)
    np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("scaling", [{}, {"scaling": "linear", "factor": 4.0}], ids=str)
def test_llama_rotation(scaling):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    if scaling:
        rope |= {"rope_type": "linear", "factor": 4.0}
    config = llama.LlamaConfig(
        hidden_size=32, num_attention_heads=2, head_dim=16, rope_parameters=rope
    )
    x, pos = normal(0, 1, 9, 2, 16), torch.arange(100, 109)[None]
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.tensor(x), pos)
    wanted, _ = llama.apply_rotary_pos_emb(*[torch.tensor(x).transpose(1, 2)] * 2, cos, sin)
    ours = rotary(**scaling).rotate(jnp.asarray(x), jnp.asarray(pos.numpy()))
    np.testing.assert_allclose(ours, wanted.transpose(1, 2), atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12])
def test_bloom_slopes(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    table = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    np.testing.assert_allclose(alibi_slopes(heads), table[:, 0, 1], rtol=1e-6)

"""Every mixer in every family that can hold it.

Causality, padding, caches and gradients of a mixer alone are tested by tests/check/test_check.py.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from tests.helpers.quick import jit
from tests.helpers.tiers import each_part_once
from tfm.config.names import UserError, read
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import MIXERS, FeedForwardSpec
from tfm.layers.stack import unrolled
from tfm.models.spec import DecoderSpec, EncoderDecoderSpec, EncoderSpec

LENGTH, VOCAB = 7, 11
MORE = ["convolution(window=4, depthwise=True)", "token_mlp(hidden=6)", "recurrent(cell='lstm')"]
NAMES = [*MIXERS, *MORE, "none"]
FAMILIES = {"decoder": DecoderSpec, "encoder": EncoderSpec, "encoder_decoder": EncoderDecoderSpec}


def declared(name):
    return read(name, MIXERS, "mixer") if name != "none" else None


def spec_of(mixer, family, **more):
    outputs = {"outputs": ("tag",), "classes": VOCAB} if family == "encoder" else {}
    return FAMILIES[family](
        vocab=VOCAB,
        width=8,
        layers=2,
        max_length=16,
        mixer=mixer,
        attention=AttentionSpec(heads=2),
        feedforward=FeedForwardSpec(width=8),
        **outputs,
        **more,
    )


@functools.cache
def model(mixer, family):
    """The module, variables that hide nothing behind zeros, and inputs."""
    spec = spec_of(mixer, family)
    module = spec.build()
    rng = np.random.default_rng(0)
    inputs = {k: rng.integers(0, VOCAB, x.shape) for k, x in spec.example(3, LENGTH).items()}
    shapes = jax.eval_shape(lambda **x: module.init(jax.random.key(0), **x), **inputs)
    variables = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype) / 2, shapes)
    apply = jit(functools.partial(module.apply, method=None))
    return spec, module, variables, inputs, apply


COMBINATIONS = [
    (mixer, family)
    for mixer in NAMES
    for family in FAMILIES
    if family == "encoder" or declared(mixer) is None or declared(mixer).causal
    if family != "encoder_decoder" or mixer in ("attention", "state_space", "none")
]
WRITING = [(mixer, family) for mixer, family in COMBINATIONS if family != "encoder"]


@pytest.mark.parametrize("mixer", [m for m in NAMES if m != "none" and not declared(m).causal])
@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_a_mixer_that_sees_later_tokens_is_refused_in_a_decoder(mixer, family):
    with pytest.raises(UserError, match="sees later tokens"):
        spec_of(mixer, family).build()


@pytest.mark.parametrize(("mixer", "family"), each_part_once(COMBINATIONS))
def test_scanned_is_unrolled(mixer, family):
    spec, _, variables, inputs, apply = model(mixer, family)
    other = dataclasses.replace(spec, scan=False).build()
    params = {"params": unrolled(variables["params"])}
    found = jit(other.apply)(params, **inputs)
    np.testing.assert_allclose(found, apply(variables, **inputs), atol=1e-5)


def empty_cache(module, variables, inputs, length):
    return module.apply(variables, inputs.get("source_BS", 3), length, method="init_cache")


@pytest.mark.parametrize(("mixer", "family"), each_part_once(WRITING))
def test_a_ragged_prompt_in_a_cache(mixer, family):
    """Each row continues after its own length."""
    _, module, variables, inputs, apply = model(mixer, family)
    if mixer != "none" and not declared(mixer).cacheable:
        with pytest.raises(UserError, match="cannot decode with a cache: mixer="):
            empty_cache(module, variables, inputs, 12)
        return
    tokens = inputs.get("decoder_input_BT", inputs.get("tokens_BT"))
    whole = apply(variables, **inputs)
    start = empty_cache(module, variables, inputs, 12)
    decode = jit(functools.partial(module.apply, method="decode"))
    lengths = np.array([2, 4, 3])
    valid_BT = np.arange(4)[None] < lengths[:, None]
    _, cache = decode(variables, tokens[:, :4], start, valid_BT=valid_BT)
    logits, _ = decode(variables, tokens[np.arange(3), lengths][:, None], cache)
    np.testing.assert_allclose(logits[:, 0], whole[np.arange(3), lengths], atol=1e-5)


@pytest.mark.parametrize("mixer", NAMES)
def test_gradients_reach_every_parameter(mixer):
    _, module, variables, inputs, _ = model(mixer, "encoder")
    loss = lambda variables: jnp.sum(jnp.sin(module.apply(variables, **inputs)))
    for path, g in jax.tree_util.tree_leaves_with_path(jit(jax.grad(loss))(variables)):
        name = jax.tree_util.keystr(path)
        assert np.all(np.isfinite(g)), name
        assert np.any(g != 0), name


def test_convolution_is_its_sum():
    """y_t = Σ_w W_w x_{t+w} + b, by a loop."""
    from tfm.layers.context import Context
    from tfm.layers.convolution import ConvolutionMixer
    from tfm.layers.dims import Dims
    from tfm.ops import masks

    x = np.random.default_rng(0).normal(size=(1, 6, 4)).astype(np.float32)
    context = Context(masks.everything())
    for causal, offsets in ((True, (-2, -1, 0)), (False, (-1, 0, 1))):
        module = ConvolutionMixer(Dims(4, causal=causal), 3, False)
        variables = module.init(jax.random.key(0), x, context)
        kernel = np.asarray(variables["params"]["convolution"]["kernel"])
        found, _, _ = module.apply(variables, x, context)
        for t in range(6):
            inside = [(w, t + o) for w, o in enumerate(offsets) if 0 <= t + o < 6]
            wanted = sum(x[0, s] @ kernel[w] for w, s in inside)
            np.testing.assert_allclose(found[0, t], wanted, atol=1e-5)


def test_linear_attention_is_its_definition_beyond_one_chunk():
    """Katharopoulos et al. 2020, eq. 9, pair by pair in float64."""
    from tfm.layers.context import Context
    from tfm.layers.dims import Dims
    from tfm.layers.linear_attention import CHUNK, LinearAttention
    from tfm.ops import masks

    length = CHUNK + 6
    x = np.random.default_rng(0).normal(size=(1, length, 4)).astype(np.float32)
    context = Context(masks.everything())
    for causal in (True, False):
        module = LinearAttention(Dims(4, causal=causal), 2)
        variables = module.init(jax.random.key(0), x, context)
        found, _, _ = module.apply(variables, x, context)
        p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
        q, k, v = (
            np.einsum("td,dhk->htk", x[0], p[n]["kernel"]) for n in ("query", "key", "value")
        )
        phi = lambda a: np.where(a > 0, a + 1, np.exp(np.minimum(a, 0)))
        pairs = np.einsum("htk,hsk->hts", phi(q), phi(k))
        pairs = np.tril(pairs) if causal else pairs
        out = np.einsum("hts,hsk->thk", pairs / pairs.sum(-1, keepdims=True), v)
        wanted = np.einsum("thk,hkd->td", out, p["out"]["kernel"])
        np.testing.assert_allclose(found[0], wanted, atol=2e-5)


def test_state_space_is_its_recurrence():
    """Orvieto et al. 2023, eq. 1, step by step in complex128."""
    from tfm.layers.context import Context
    from tfm.layers.dims import Dims
    from tfm.layers.state_space import StateSpace
    from tfm.ops import masks

    x = np.random.default_rng(0).normal(size=(1, 9, 4)).astype(np.float32)
    context = Context(masks.everything())
    module = StateSpace(Dims(4, causal=True), 3)
    variables = module.init(jax.random.key(0), x, context)
    found, _, _ = module.apply(variables, x, context)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    decay = np.exp(-np.exp(p["forward_log_radius"]) + 1j * np.exp(p["forward_log_phase"]))
    kernel = lambda part: np.asarray(p[f"forward_{part}"]["kernel"], np.float64)
    matrix = lambda part: (kernel(f"{part}_real") + 1j * kernel(f"{part}_imaginary")) * np.sqrt(0.5)
    h = np.zeros(3, complex)
    for t in range(9):
        h = decay * h + np.sqrt(1 - np.abs(decay) ** 2) * (x[0, t] @ matrix("in"))
        wanted = (h @ matrix("out")).real + p["skip_D"] * x[0, t]
        np.testing.assert_allclose(found[0, t], wanted, atol=1e-5)


def test_the_token_map_is_static_attention_without_normalising():
    """The transposed linear layer: A = W, whatever the tokens are."""
    from tfm.layers.context import Context
    from tfm.layers.dims import Dims
    from tfm.layers.token_mlp import TokenMLP
    from tfm.ops import masks
    from tfm.ops.attend import attend
    from tfm.ops.scores import static

    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    context = Context(masks.everything())
    module = TokenMLP(Dims(4, max_length=5))
    variables = module.init(jax.random.key(0), x, context)
    found, _, _ = module.apply(variables, x, context)
    score = jax.tree_util.Partial(static, w_HLM=variables["params"]["map"]["kernel"].T[None])
    v = jnp.asarray(x)[:, :, None]
    wanted = attend(v, v, v, score=score, normalizer="none")[:, :, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-6)

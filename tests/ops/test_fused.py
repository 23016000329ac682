"""The platforms' kernels: what is handed to them, and what comes back."""

import functools

import jax
import numpy as np
import pytest
from jax import export
from jax import numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.tree_util import Partial

from tfm.config.names import UserError
from tfm.ops import masks, scores
from tfm.ops.attend import attend
from tfm.ops.fused import fused
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import POSITIONS, alibi_bias
from tfm.ops.reference import Dropout, Inputs, Logits, Plane, reference

pytestmark = pytest.mark.ci

VALID = jnp.arange(160)[None] < jnp.array([[160], [100]])
SEGMENT = (jnp.arange(160)[None] >= jnp.array([[60], [130]])).astype(jnp.int32)

# What models ask for: (options of attend, may the TPU's kernel do it?)
COMBINATIONS = {
    "encoder": ({"mask": masks.padding(VALID)}, True),
    "decoder": ({"mask": masks.causal()}, True),
    "decoder, padded": ({"mask": masks.causal() & masks.padding(VALID)}, True),
    "decoder, packed": ({"mask": masks.causal() & masks.segments(SEGMENT)}, True),
    "sliding window": ({"mask": masks.causal() & masks.window(32)}, True),
    "local encoder": ({"mask": masks.window(32, 16)}, True),
    "capped": ({"mask": masks.causal(), "cap": 30.0}, True),
    "unscaled": ({"mask": masks.causal(), "score": "dot"}, True),
    "prefix": ({"mask": masks.causal() | masks.prefix(20)}, False),
    "alibi": ({"mask": masks.causal(), "bias": alibi_bias}, False),
    "additive": ({"score": Partial(scores.additive, w_HK=jnp.ones((4, 64)))}, False),
    "sigmoid": ({"normalizer": "sigmoid"}, False),
    "dropout": ({"dropout": Dropout(0.1, jax.random.key(0))}, False),
}
every_combination = pytest.mark.parametrize("name", COMBINATIONS)


def qkv(rows=160, cols=160, heads=4, groups=2, width=64, dtype=jnp.float32):
    shapes = (2, rows, heads, width), (2, cols, groups, width), (2, cols, groups, width)
    return [jax.random.normal(jax.random.key(i), s, dtype) for i, s in enumerate(shapes)]


def training(**options):
    def loss(q, k, v):
        return jnp.sum(attend(q, k, v, **options).astype(jnp.float32) ** 2)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))


@every_combination
@pytest.mark.parametrize("length", [160, 2048])
def test_lowers_for_cuda_and_tpu(name, length):
    options, tpu_can = COMBINATIONS[name]
    if length != 160:
        if name in ("encoder", "decoder, padded", "decoder, packed"):
            options = options | {
                "mask": masks.causal() & masks.padding(jnp.ones((2, length), bool))
            }
        name = f"{name}, long"
    args = qkv(length, length)
    for platform in ("cuda", "tpu"):
        assert export.export(training(**options), platforms=[platform])(*args).mlir_module()
    if tpu_can and "cap" not in options:  # XLA's kernel, which "fused" is here, has no cap
        step = training(**options, implementation="fused")
        lowered = export.export(step, platforms=["tpu"])(*args).mlir_module()
        assert lowered.count("tpu_custom_call") == 3  # forward, dq, and dk with dv


@pytest.mark.parametrize("name", [n for n, (_, tpu_can) in COMBINATIONS.items() if tpu_can])
def test_the_tpu_kernel_computes_the_same(name, monkeypatch):
    """Interpreted on the CPU, values and gradients, at lengths that no tile divides."""
    options, _ = COMBINATIONS[name]
    score = {"dot": scores.dot}.get(options.get("score"), scores.scaled_dot)
    logits = Logits(Partial(score), None, None)
    cap = options.get("cap")
    rows = jnp.arange(160)[None]
    plane = Plane(options["mask"], rows, rows, None)
    norm = NORMALIZERS["softmax"]
    q, k, v = qkv()

    def run(fn):
        loss = lambda *qkv: jnp.sum(jnp.sin(fn(*qkv)))
        return jax.jit(lambda *qkv: (fn(*qkv), jax.grad(loss, (0, 1, 2))(*qkv)))(q, k, v)

    make = splash_attention_kernel.make_splash_mha_single_device
    interpreted = functools.partial(make, interpret=True)
    monkeypatch.setattr(splash_attention_kernel, "make_splash_mha_single_device", interpreted)
    out, grads = run(lambda q, k, v: fused("tpu", cap, Inputs(q, k, v, logits, plane)))
    capped = logits._replace(cap=cap)
    wanted, wanted_grads = run(lambda q, k, v: reference(Inputs(q, k, v, capped, plane), norm)[0])
    np.testing.assert_allclose(out, wanted, atol=2e-5)
    for ours, theirs in zip(grads, wanted_grads, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


class TestGpu:
    """No cuDNN here, so we look at what it would be asked."""

    @pytest.fixture
    def calls(self, monkeypatch):
        calls = []

        def record(q, k, v, **options):
            calls.append(options)
            return q

        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax.nn, "dot_product_attention", record)
        jax.clear_caches()
        yield calls
        jax.clear_caches()

    def ask(
        self, implementation="auto", dtype=jnp.bfloat16, rows=160, cols=160, width=64, **options
    ):
        q, k, v = qkv(rows, cols, width=width, dtype=dtype)
        jax.eval_shape(lambda: attend(q, k, v, implementation=implementation, **options))

    def asked(self, calls, **options):
        """The call to cuDNN's kernel, leaving out the branch for the CPU."""
        self.ask(**options)
        return next((call for call in calls if call["implementation"] == "cudnn"), None)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, {"is_causal": False, "local_window_size": None}),
            ({"mask": masks.causal()}, {"is_causal": True, "local_window_size": None}),
            (
                {"mask": masks.causal() & masks.window(31)},
                {"is_causal": True, "local_window_size": (31, 0)},
            ),
            (
                {"mask": masks.window(31, 9) & masks.window(40, 0)},
                {"is_causal": True, "local_window_size": (31, 0)},
            ),
            ({"score": "dot"}, {"scale": 1.0, "is_causal": False, "local_window_size": None}),
            ({"dtype": jnp.float16}, {"is_causal": False, "local_window_size": None}),
        ],
    )
    def test_flags(self, calls, options, expected):
        plain = {"bias": None, "mask": None, "scale": 1 / 8, "implementation": "cudnn"}
        assert self.asked(calls, **options) == plain | expected

    @pytest.mark.parametrize(
        ("mask", "causal", "wanted"),
        [
            (masks.padding(VALID), False, np.asarray(VALID)[:, None, None, :]),
            (masks.causal() & masks.padding(VALID), True, np.asarray(VALID)[:, None, None, :]),
            (
                masks.window(5, 3),
                False,
                np.abs(np.subtract.outer(np.arange(160), np.arange(160)) - 1)[None, None] <= 4,
            ),
        ],
    )
    def test_masks_that_flags_cannot_say_come_as_arrays(self, calls, mask, causal, wanted):
        q, k, v = qkv(dtype=jnp.bfloat16)
        rows = jnp.arange(160)[None]
        logits = Logits(Partial(scores.scaled_dot), None, None)
        fused("cuda", None, Inputs(q, k, v, logits, Plane(mask, rows, rows, None)))
        (call,) = calls
        assert (call["is_causal"], call["local_window_size"]) == (causal, None)
        np.testing.assert_array_equal(
            call["mask"], np.broadcast_to(wanted, (wanted.shape[0], 1, 160, 160))
        )

    @pytest.mark.parametrize(
        "options",
        [
            {"dtype": jnp.float32},
            {"width": 12},
            {"width": 136},
            {"score": "distance"},
            {"normalizer": "softmax_zero"},
            {"normalizer": "sigmoid"},
            {"cap": 30.0},
            {"bias": alibi_bias},
            {"dropout": Dropout(0.1, jax.random.key(0))},
            {"rows": 161, "mask": masks.window(2, 2)},
        ],
    )
    def test_everything_else_is_kept_from_it(self, calls, options):
        assert self.asked(calls, **options) is None
        with pytest.raises(UserError, match="cannot do"):
            self.ask("fused", **options)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_auto_on_a_tpu_takes_the_kernel_where_it_can(name, monkeypatch):
    options, tpu_can = COMBINATIONS[name]
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    jax.clear_caches()
    lowered = export.export(training(**options), platforms=["tpu"])(*qkv()).mlir_module()
    jax.clear_caches()
    assert lowered.count("tpu_custom_call") == (3 if tpu_can else 0)


def test_rotary_models_reach_the_kernels():
    """Rotation happens before attention, so it costs no kernel."""
    turn = POSITIONS["rotary"]().rotate
    pos = jnp.arange(160)[None]

    def model(q, k, v):
        return attend(turn(q, pos), turn(k, pos), v, mask=masks.causal(), implementation="fused")

    assert (
        "tpu_custom_call" in export.export(jax.jit(model), platforms=["tpu"])(*qkv()).mlir_module()
    )

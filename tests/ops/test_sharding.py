"""Attention on a mesh of two devices, however the mesh is meant."""

import subprocess
import sys

import pytest

PROGRAM = """
import jax, numpy as np
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tfm.ops import masks
from tfm.ops.attend import attend

assert jax.device_count() == 2
kind, implementation = {kind!r}, {implementation!r}
axis = AxisType.Explicit if kind == "Explicit" else AxisType.Auto
mesh = jax.make_mesh((2,), ("data",), axis_types=(axis,))
qkv = jax.random.normal(jax.random.key(0), (3, 4, 70, 2, 8))
way = {{"edge": 16}} if implementation == "blockwise" else {{}}

def loss(q, k, v):
    options = {{"mask": masks.causal(), "normalizer": {normalizer!r}, **way}}
    return attend(q, k, v, implementation=implementation, **options)

def step(q, k, v):
    return jax.grad(lambda *a: jnp.sum(loss(*a) ** 2), (0, 1, 2))(q, k, v)

alone = jax.jit(step)(*qkv)
with jax.set_mesh(mesh):
    split = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in qkv]
    run = jax.shard_map(step, in_specs=P("data"), out_specs=P("data")) if kind == "map" else step
    together = jax.jit(run)(*split)
for a, b in zip(alone, together, strict=True):
    assert len(b.sharding.device_set) == 2
    np.testing.assert_allclose(a, b, atol=1e-5)
print("same")
"""


@pytest.mark.parametrize(
    ("implementation", "normalizer"),
    [*((way, "softmax") for way in ("auto", "reference", "blockwise")), ("blockwise", "sparsemax")],
)
@pytest.mark.parametrize("kind", ["Auto", "Explicit", "map"])
def test_batch_over_two_devices(kind, implementation, normalizer):
    program = PROGRAM.format(kind=kind, implementation=implementation, normalizer=normalizer)
    flags = "--xla_force_host_platform_device_count=2"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.stdout == "same\n", result.stderr[-2000:]

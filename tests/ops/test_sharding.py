"""Attention on a mesh of two devices, however the mesh is meant."""

import os
import subprocess
import sys

PROGRAM = """
import itertools
import jax, numpy as np
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tfm.ops import masks
from tfm.ops.attend import attend

assert jax.device_count() == 2
qkv = jax.random.normal(jax.random.key(0), (3, 4, 70, 2, 8))
ways = [(way, "softmax") for way in ("auto", "reference", "blockwise")]
ways.append(("blockwise", "sparsemax"))
for kind, (implementation, normalizer) in itertools.product(("Auto", "Explicit", "map"), ways):
    axis = AxisType.Explicit if kind == "Explicit" else AxisType.Auto
    mesh = jax.make_mesh((2,), ("data",), axis_types=(axis,))
    options = {"mask": masks.causal(), "normalizer": normalizer, "implementation": implementation}
    if implementation == "blockwise":
        options["edge"] = 16

    def step(q, k, v):
        return jax.grad(lambda *a: jnp.sum(attend(*a, **options) ** 2), (0, 1, 2))(q, k, v)

    alone = jax.jit(step)(*qkv)
    with jax.set_mesh(mesh):
        split = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in qkv]
        spread = jax.shard_map(step, in_specs=P("data"), out_specs=P("data"))
        together = jax.jit(spread if kind == "map" else step)(*split)
    for a, b in zip(alone, together, strict=True):
        assert len(b.sharding.device_set) == 2
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=f"{kind} {implementation}")
    print(kind, implementation, normalizer)
"""


def test_batch_over_two_devices():
    """Three kinds of mesh, each with every implementation, in one process."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert len(result.stdout.splitlines()) == 12, result.stderr[-2000:]
    assert result.returncode == 0, result.stderr[-2000:]

"""Compile fast, run once."""

import functools

import jax

# Optimising what runs once would take six times as long as all the rest.
jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    },
)

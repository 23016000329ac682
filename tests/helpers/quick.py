"""Two ways to compile: fast, for what runs once, and as users do."""

import functools

import jax

from tfm.check.results import jit

__all__ = ["jit", "users_jit"]

# The defaults of the flags that conftest.py sets for all other programs.
users_jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_cpu_use_fusion_emitters": True,
        "xla_cpu_parallel_codegen_split_count": 32,
    },
)

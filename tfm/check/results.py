"""Results of checks, comparisons, and random inputs and parameters."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.nn import initializers

TOLERANCE = 1e-4  # largest difference, relative to the largest number if that is above 1

# Optimizing code that runs once would take longer than everything else.
jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    },
)


class Result(NamedTuple):
    check: str
    passed: bool | None  # None: not checked; `says` gives the reason
    difference: float | None
    says: str  # the property that must hold


def holds(check: str, says: str, passed: bool, instead: object = None) -> Result:
    """Passes if a property holds; if not, `says` ends with what there is instead of it."""
    return Result(check, passed, None, says if passed else f"{says}, not {instead!r:.100}")


def near(check: str, says: str, *pairs: tuple[Any, Any]) -> Result:
    """Passes if the trees of each pair hold the same numbers."""
    greatest = 0.0
    for actual, expected in pairs:
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            if x.shape != y.shape:
                return Result(check, False, math.inf, f"{says}: shapes {x.shape} and {y.shape}")
            apart = np.max(np.abs(x - y), initial=0) / max(1.0, np.max(np.abs(y), initial=0))
            greatest = float(np.fmax(greatest, apart)) if np.isfinite(apart) else math.inf
    return Result(check, greatest <= TOLERANCE, greatest, says)


def finite(check: str, says: str, tree: Any) -> Result:
    """Passes if all numbers of a tree are finite; `difference` counts those that are not."""
    bad = {
        jax.tree_util.keystr(path): int(np.sum(~np.isfinite(leaf)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    wrong = [name for name, count in bad.items() if count]
    where = f"; not finite: {', '.join(wrong)}" if wrong else ""
    return Result(check, not wrong, float(sum(bad.values())), says + where)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def varied(tree: Any, seed: int = 7) -> Any:
    """Perturbs parameters, so that no zero hides a mistake."""
    rng = np.random.default_rng(seed)

    def vary(leaf: Any) -> np.ndarray:
        x, noise = np.asarray(leaf), 0.1 * rng.normal(size=np.shape(leaf))
        return np.where(x == 0, noise, x * (1 + noise)).astype(x.dtype)

    return jax.tree.map(vary, tree)


def start(
    params: Mapping[str, initializers.Initializer], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Returns initialized parameters, perturbed by `varied`."""
    initial = {n: init(jax.random.key(i), shapes[n]) for i, (n, init) in enumerate(params.items())}
    return varied(initial)

"""What a model is worth on a set of examples, with intervals over the examples."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax import Array

from tfm.objectives.tokens import Batch, inputs_of, losses

Sums = Mapping[str, np.ndarray]


def evaluate(module: nn.Module, variables: Mapping[str, Any], batch: Batch) -> dict[str, Array]:
    """Sums for each example (B): loss, right answers, count."""
    logits: Any = module.apply(variables, **inputs_of(batch))
    return losses(logits, batch)


def over(
    look: Callable[..., dict[str, Array]], variables: Any, batches: Iterable[Mapping[str, Any]]
) -> Sums:
    """The sums of every example that counts, in order."""
    found = [jax.device_get(look(variables, batch)) for batch in batches]
    sums = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    scored = sums["count"] > 0
    return {name: x[scored].astype(np.float64) for name, x in sums.items()}


def metrics(sums: Sums, bytes_per_token: float | None = None) -> dict[str, float]:
    """Loss per token and what follows from it; accuracy per token and per example."""
    total = {name: float(np.sum(x)) for name, x in sums.items()}
    loss = total["loss"] / total["count"]
    out = {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "accuracy": total["right"] / total["count"],
        "exact": float(np.mean(sums["right"] == sums["count"])),
    }
    if bytes_per_token is not None:
        out["bits_per_byte"] = loss / math.log(2) / bytes_per_token
    return out


def intervals(
    sums: Sums,
    bytes_per_token: float | None = None,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bootstrap intervals: examples drawn again with replacement.  Efron 1979."""
    count = len(sums["count"])
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        rows = rng.integers(0, count, count)
        found.append(metrics({name: x[rows] for name, x in sums.items()}, bytes_per_token))
    tails = [50 * (1 - level), 50 * (1 + level)]
    return {
        name: tuple(np.percentile([one[name] for one in found], tails).tolist())
        for name in found[0]
    }

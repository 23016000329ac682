"""Cross-entropy of wanted tokens or classes, whatever the model and the task.

A batch holds a model's own arguments and beside them `targets_…` and `weights_…`, which say what is
wanted where, and how much it counts.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp

Batch = Mapping[str, Any]


def losses(logits: Array, batch: Batch, smoothing: Array | None = None) -> dict[str, Array]:
    """Sums over the scored tokens of each example: loss, right answers, and how many they are."""
    (target_name,) = (name for name in batch if name.startswith("targets"))
    targets, weights = batch[target_name], batch[target_name.replace("targets", "weights")]
    log_p = jax.nn.log_softmax(logits)
    loss = -jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    right = (jnp.argmax(logits, -1) == targets).astype(jnp.float32)
    out = {"loss": loss, "right": right, "count": jnp.ones_like(loss)}
    if smoothing is not None:  # Szegedy et al. 2016, §7
        out["smooth"] = (1 - smoothing) * loss - smoothing * jnp.mean(log_p, -1)
    axes = tuple(range(1, weights.ndim))
    return {name: jnp.sum(x * weights, axes) for name, x in out.items()}


def inputs_of(batch: Batch) -> dict[str, Any]:
    return {k: x for k, x in batch.items() if not k.startswith(("targets", "weights"))}

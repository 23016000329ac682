"""Internal metrics: how attention spreads its weights, and how gradients reach the layers.

They measure claims such as "the softmax saturates" or "gradients vanish".
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax import numpy as jnp

from tfm.data.dataset import Dataset
from tfm.evaluate.evaluator import Declared, EvalContext, Evaluator, Metrics, Result
from tfm.evaluate.metric import NEITHER, Metric
from tfm.layers.stack import UNROLLED, unrolled
from tfm.objectives.base import Batch, Objective, sums_of
from tfm.objectives.batches import eval_batches

ENTROPY = Metric("attention_entropy", NEITHER, unit="nats")
LARGEST = Metric("attention_max", NEITHER, most=1.0)
SPREAD = Metric("logit_std", NEITHER)  # of a query's logits over the visible keys
GRADIENT = Metric("gradient_norm", NEITHER)
VALID = {"encoder": "source_valid_BS", "decoder": "decoder_valid_BT", "": "valid_BT"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Internals(Evaluator):
    """Computes means over queries and heads, and the norm of the gradient of the mean loss.

    Attention of each layer and gradients of each layer are slices.
    """

    rows: int | None = 64

    def declares(self, spec: Any, objective: Objective, dataset: Dataset | None) -> Declared:
        return (ENTROPY, LARGEST, SPREAD, GRADIENT) if spec.attends else (GRADIENT,)

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        gradient = jax.jit(lambda variables, batch: _gradient(context, variables, batch))
        capture = jax.jit(lambda variables, inputs: _captured(context, variables, inputs))
        total, count = None, 0.0
        sums = dict[str, np.ndarray]()  # by site: entropy, largest weight, spread, queries
        left = len(dataset)
        for batch in eval_batches(context.objective, dataset, context.batch):
            grads = gradient(context.variables, batch)
            total = grads if total is None else jax.tree.map(jnp.add, total, grads)
            count += float(np.sum(batch.weights))
            if context.spec.attends:
                intermediates = jax.device_get(capture(context.variables, batch.inputs))
                for site, values in attention_sums(intermediates, batch, left):
                    sums[site] = sums.get(site, 0.0) + values
            left -= len(batch.weights)
        norms = gradient_norms(jax.tree.map(lambda g: np.asarray(g) / max(count, 1.0), total))
        slices = {site: _means(values) for site, values in sums.items()}
        for path, norm in norms.items():
            slices.setdefault(path, {})["gradient_norm"] = norm
        metrics = _means(np.sum(list(sums.values()), 0)) if sums else {}
        metrics["gradient_norm"] = float(np.sqrt(sum(x * x for x in norms.values())))
        return Result(metrics, slices)


def _gradient(context: EvalContext, variables: Mapping[str, Any], batch: Batch) -> Any:
    """Returns the gradient of the summed loss with respect to the parameters."""

    def loss(params: Any) -> Any:
        bound = {**variables, "params": params}
        x: Any = context.model.apply(bound, **batch.inputs)
        sums = sums_of(context.model, context.objective, bound, x, batch, None, None)
        return jnp.sum(sums["loss"])

    return jax.grad(loss)(variables["params"])


def _captured(context: EvalContext, variables: Mapping[str, Any], inputs: Any) -> Any:
    output: Any = context.model.apply(variables, **inputs, capture=("details", "weights"))
    return {name: x for name, x in flatten_dict(output[1], sep="/").items() if name.endswith("HTS")}


def attention_sums(
    intermediates: Mapping[str, np.ndarray], batch: Batch, rows: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields, for each attention layer, sums over queries and heads, and their number.

    Only queries of the first `rows` examples count that are no padding and see a key.
    """
    for name, weights in intermediates.items():
        side, _, last = name.rpartition("/")
        kind, separator, suffix = last.partition("weights_")
        if not separator:
            continue
        before = f"{side}/" if side else ""
        scanned = suffix.startswith("N")
        valid = batch.inputs.get(VALID.get(side, ""))
        parts = [intermediates.get(f"{before}{kind}{x}_{suffix}") for x in ("logits", "visible")]
        for number, weights_BHTS in enumerate(weights if scanned else weights[None]):
            logits, visible = (x[number] if scanned and x is not None else x for x in parts)
            seen_BHTS = weights_BHTS > 0 if visible is None else visible
            counts_BHT = np.array(seen_BHTS.any(-1))
            counts_BHT[rows:] = False
            if valid is not None:
                counts_BHT &= np.asarray(valid)[:, None, :]
            values = _per_query(weights_BHTS, logits, seen_BHTS)
            site = f"{before}layer_{number}" + (f"/{kind.rstrip('_')}" if kind else "")
            yield site, np.array([*(np.sum(x[counts_BHT]) for x in values), counts_BHT.sum()])


def _per_query(
    weights_BHTS: np.ndarray, logits_BHTS: np.ndarray | None, seen_BHTS: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns entropy, largest weight, and standard deviation of visible logits (BHT)."""
    weights_BHTS = weights_BHTS.astype(np.float64)
    safe_BHTS = np.where(weights_BHTS > 0, weights_BHTS, 1.0)
    entropy_BHT = -np.sum(weights_BHTS * np.log(safe_BHTS), -1)
    if logits_BHTS is None:
        return entropy_BHT, weights_BHTS.max(-1), np.full(entropy_BHT.shape, np.nan)
    count_BHT1 = np.maximum(seen_BHTS.sum(-1, keepdims=True), 1)
    logits_BHTS = np.where(seen_BHTS, logits_BHTS, 0.0).astype(np.float64)
    mean_BHT1 = logits_BHTS.sum(-1, keepdims=True) / count_BHT1
    squares_BHTS = np.where(seen_BHTS, np.square(logits_BHTS - mean_BHT1), 0.0)
    return entropy_BHT, weights_BHTS.max(-1), np.sqrt(squares_BHTS.sum(-1) / count_BHT1[..., 0])


def _means(sums: np.ndarray) -> Metrics:
    entropy, largest, spread, count = (float(x) for x in sums)
    means = {"attention_entropy": entropy, "attention_max": largest, "logit_std": spread}
    return {name: x / max(count, 1.0) for name, x in means.items() if not np.isnan(x)}


def gradient_norms(grads: Mapping[str, Any]) -> dict[str, float]:
    """Returns the norm of the gradient of each layer, and of each other part of the model."""
    squares = dict[str, float]()
    for path, grad in flatten_dict(unrolled(grads), sep="/").items():
        names = path.split("/")
        layer = next((i for i, name in enumerate(names) if UNROLLED.fullmatch(name)), 0)
        part = "/".join(names[: layer + 1])
        squares[part] = squares.get(part, 0.0) + float(np.sum(np.square(np.float64(grad))))
    return {part: float(np.sqrt(x)) for part, x in squares.items()}

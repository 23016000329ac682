"""Alignment: how often a decoder attends to the source word that a target word comes from.

Bahdanau et al. 2015, §5.2.1. The decoder reads the target (teacher forcing); it attends to the
source word with the largest weight of a head.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from tfm.data.dataset import Dataset
from tfm.evaluate.evaluator import EvalContext, Evaluator, Result
from tfm.evaluate.metric import HIGH, Metric
from tfm.objectives.base import Objective
from tfm.objectives.batches import eval_batches
from tfm.objectives.seq2seq import Seq2Seq


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alignment(Evaluator):
    """Computes how often the best head is right; it is chosen on another split."""

    computes = (Metric("right", HIGH, most=1.0, headline=True),)

    def refuses(self, spec: Any, objective: Objective, dataset: Dataset) -> str | None:
        if dataset.form != "pairs" or dataset.take(np.zeros(1, np.int64)).alignment is None:
            return "needs data with word alignments; english_french and english_chinese have them"
        if not spec.has_source or not spec.attends:
            return "needs a decoder that attends to its source"
        return None

    def evaluate(self, context: EvalContext, dataset: Dataset) -> Result:
        other = "train" if self.split == "valid" else "valid"
        chosen_on = dataclasses.replace(self, rows=len(dataset)).limited(context.data(other))
        tree = alignment(context, chosen_on, dataset, context.batch)
        return Result({"right": tree.pop("right")}, details={"chosen_on": other, **tree})


def alignment(loaded: Any, chosen_on: Dataset, dataset: Dataset, size: int) -> dict[str, Any]:
    """Returns the share of target words for which the best head, chosen on other examples, is
    right; those of all heads; and that of the source word at the same position."""
    chosen_NH, _ = right(loaded, chosen_on, size)
    right_NH, same_place = right(loaded, dataset, size)
    layer, head = np.unravel_index(np.argmax(chosen_NH), chosen_NH.shape)
    return {
        "layer": int(layer),
        "head": int(head),
        "right": float(right_NH[layer, head]),
        "heads": right_NH.tolist(),
        "baselines": {"same place": same_place},
    }


def right(loaded: Any, dataset: Dataset, size: int) -> tuple[np.ndarray, float]:
    """Returns the share of target words for which each head of each layer is right (NH), and that
    of the source word at the same position."""
    step = jax.jit(functools.partial(_looked_at, loaded.model))
    total, right, same = 0, 0, 0
    for number, batch in enumerate(eval_batches(Seq2Seq(), dataset, size)):
        rows = np.arange(number * size, min(number * size + size, len(dataset)))
        examples = dataset.take(rows)
        assert examples.target is not None
        assert examples.alignment is not None
        real_BT = examples.target.valid(dataset.max_target)
        true_BT = examples.target.padded(dataset.max_target, examples.alignment)
        place_NHBT = np.asarray(step(loaded.variables, batch.inputs))[:, :, : len(rows)]
        place_NHBT = place_NHBT[..., : dataset.max_target]  # what follows the last word is its end
        right = right + np.sum((place_NHBT == true_BT) & real_BT, (2, 3))
        same += int(np.sum((np.arange(dataset.max_target) == true_BT) & real_BT))
        total += int(np.sum(real_BT))
    return np.asarray(right) / total, same / total


def _looked_at(module: Any, variables: Any, inputs: Any) -> Any:
    """Returns the place in the source with the largest weight (NHBT)."""
    _, intermediates = module.apply(variables, **inputs, capture=("weights",))
    decoder = intermediates["decoder"]
    cross = "cross_weights_NBHTS" in decoder
    weights_NBHTS = decoder["cross_weights_NBHTS"] if cross else decoder["weights_BHTS"][None]
    return weights_NBHTS.argmax(-1).swapaxes(1, 2)

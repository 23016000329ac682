"""Which source word does a decoder look at when it emits a word? Beside the true alignment.

Bahdanau et al. 2015, §5.2.1. The word that is emitted is the target's (teacher forcing), and the
word that is looked at is where a head's weights are greatest.
"""

import functools
from typing import Any

import jax
import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset
from tfm.objectives.batches import eval_batches
from tfm.objectives.seq2seq import Seq2Seq


def alignment(loaded: Any, chosen_on: Dataset, dataset: Dataset, size: int) -> dict[str, Any]:
    """The share of target words for which the best head is right. Which head that is was chosen on
    other examples. Beside it, all heads of each layer, and the place of the word itself."""
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
    """NH: the share of target words for which each head of each layer is right; and that of the
    source word at the same place."""
    if dataset.form != "pairs" or dataset.take(np.zeros(1, np.int64)).alignment is None:
        raise UserError(
            "--alignment: the data do not say which word comes from which; those that do: "
            "english_french, english_chinese"
        )
    if loaded.spec.family == "seq2seq" and not loaded.spec.attends:
        raise UserError("--alignment: this model has no attention: attention.score='none'")
    step = jax.jit(functools.partial(_looked_at, loaded.model))
    total, found, same = 0, 0, 0
    for number, batch in enumerate(eval_batches(Seq2Seq(), dataset, size)):
        rows = np.arange(number * size, min(number * size + size, len(dataset)))
        examples = dataset.take(rows)
        assert examples.target is not None
        assert examples.alignment is not None
        real_BT = examples.target.valid(dataset.max_target)
        true_BT = examples.target.padded(dataset.max_target, examples.alignment)
        place_NHBT = np.asarray(step(loaded.variables, batch.inputs))[:, :, : len(rows)]
        place_NHBT = place_NHBT[..., : dataset.max_target]  # what follows the last word is its end
        found = found + np.sum((place_NHBT == true_BT) & real_BT, (2, 3))
        same += int(np.sum((np.arange(dataset.max_target) == true_BT) & real_BT))
        total += int(np.sum(real_BT))
    return np.asarray(found) / total, same / total


def _looked_at(module: Any, variables: Any, inputs: Any) -> Any:
    """NHBT: the place in the source where the weights are greatest."""
    _, found = module.apply(variables, **inputs, capture=("weights",))
    decoder = found["decoder"]
    if "cross_weights_NBHTS" in decoder:
        weights_NBHTS = decoder["cross_weights_NBHTS"]
    else:
        weights_NBHTS = decoder["weights_BHTS"][None]
    return weights_NBHTS.argmax(-1).swapaxes(1, 2)

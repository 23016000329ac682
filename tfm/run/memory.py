"""The memory that the batches of a run need at least."""

from typing import Any

import jax
import numpy as np

from tfm.data.dataset import Dataset
from tfm.models.spec import TransformerSpec
from tfm.runtime import check_memory


def check_batch(run: Any, split: str, dataset: Dataset) -> None:
    """Raises if a batch is beyond this machine's memory, before one is made. Counted are ids,
    labels and weights, and the states that gradients need: less than a step takes."""
    data, model, train = run.data, run.model, split == "train"
    key = "batch_tokens" if train and data.batch_tokens else "batch" if train else "eval_batch"
    length, rows = dataset.max_length + dataset.max_target, getattr(data, key)
    if train and data.pack is not None:
        length = int(np.sum(data.pack))
    tokens = rows if key == "batch_tokens" else rows * length
    batch = [jax.ShapeDtypeStruct((tokens, 4), np.float32)]
    if isinstance(model, TransformerSpec) and not run.optimizer.frozen:
        shape = tokens // run.train.accumulate, model.width * (model.layers if train else 1)
        batch.append(jax.ShapeDtypeStruct(shape, model.dtype.entry))
    text = f"data set {split!r}: the batches of data.{key}={rows}, with rows of {length} tokens,"
    check_memory(batch, text, f"data.{key} or the rows")

"""Read one sequence, write another.  Sutskever et al. 2014."""

import numpy as np

from tfm.data.dataset import FIRST, Dataset, Examples, Ragged, Special
from tfm.objectives.base import Batch, Objective, int32


class Seq2Seq(Objective):
    """With teacher forcing: the decoder reads the target shifted right by one, and must predict the
    target and its end. A label is a target of one token, without an end."""

    families = ("encoder_decoder", "seq2seq")
    forms = ("pairs", "labels")
    labels_in = "decoder_input_BT"
    by_position = True

    def refuses(self, dataset: Dataset) -> str | None:
        return super().refuses(dataset) or numbers_refused(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": vocab_with_labels(dataset)}

    def prepare(self, examples: Examples, dataset: Dataset, rng: np.random.Generator) -> Batch:
        source, special = examples.tokens, dataset.special
        if examples.labels is None:
            decoder_input, decoder_valid, labels = shifted(
                examples.target, dataset.max_target, special
            )
        else:
            labels = int32(examples.labels[:, None] + FIRST)
            decoder_input = np.full_like(labels, special.bos)
            decoder_valid = np.ones(labels.shape, bool)
        inputs = {
            "source_BS": int32(source.padded(dataset.max_length)),
            "source_valid_BS": source.valid(dataset.max_length),
            "decoder_input_BT": decoder_input,
            "decoder_valid_BT": decoder_valid,
        }
        return Batch(inputs, labels, decoder_valid.astype(np.float32))


def shifted(
    target: Ragged | None, longest: int, special: Special
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a decoder reads (BOS and the target), which of it is real, and what it must predict (the
    target and EOS)."""
    assert target is not None
    target_BT = int32(target.padded(longest))
    decoder_input_BT = np.pad(target_BT, ((0, 0), (1, 0)), constant_values=special.bos)
    labels_BT = np.pad(target_BT, ((0, 0), (0, 1)))
    labels_BT[np.arange(len(target)), target.lengths] = special.eos
    return decoder_input_BT, np.arange(longest + 1) <= target.lengths[:, None], labels_BT


def numbers_refused(dataset: Dataset) -> str | None:
    """Why labels cannot be written as tokens, if they cannot."""
    if dataset.form == "labels" and dataset.classes is None:
        return "needs classes, but the labels are numbers"
    return None


def vocab_with_labels(dataset: Dataset) -> int:
    """The ids that there are when a class is written as a token."""
    return max(dataset.vocab, FIRST + (dataset.classes or 0))

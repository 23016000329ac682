"""Write a sequence: for another one, or for a vector.

Sutskever et al. 2014; from a vector, as a caption for an image: Vinyals et al. 2015.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import FIRST, Dataset, Examples, Ragged, Special
from tfm.data.reader import Prompt, Reader
from tfm.objectives.base import (
    Batch,
    Objective,
    Rng,
    int32,
    numbers_refused,
    text_given,
    vocab_with_labels,
)


class Writes(Objective):
    """The base of objectives whose answer is a sequence of its own, after a source or a vector."""

    by_position = True
    writes = True

    def prompt_for(self, reader: Reader, source: Sequence[Any], target: str | None) -> Prompt:
        """Returns the prompt for a source; with a target, the answer as well."""
        prompt = self.begin(reader, source)
        if target is None:
            return prompt
        ids = reader.ids(target)
        end = reader.ends[0] if reader.ends else -1
        return prompt._replace(tokens=[*prompt.tokens, *ids], labels=[*ids, end])

    def begin(self, reader: Reader, ids: Sequence[Any]) -> Prompt:
        return Prompt([reader.decoder_start or 0], source=list(ids))


class Seq2Seq(Writes):
    """Trains with teacher forcing: the decoder reads the target shifted right by one, and predicts
    the target and its end. A label is a target of one token, without an end."""

    families = ("encoder_decoder", "seq2seq")
    forms = ("pairs", "labels")
    labels_in = "decoder_input_BT"

    def refuses(self, dataset: Dataset) -> str | None:
        return super().refuses(dataset) or numbers_refused(dataset)

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": vocab_with_labels(dataset)}

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        source, special = examples.tokens, dataset.special
        if examples.labels is None:
            target = shifted(examples.target, dataset.max_target, special)
            decoder_input, decoder_valid, labels = target
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

    def read(
        self, reader: Reader, text: str | None, target: str | None = None, task: int | None = None
    ) -> Prompt:
        return self.prompt_for(reader, reader.encode(text_given(text), task), target)


class VectorToSequence(Writes):
    """The model begins from the vector and, as in seq2seq, reads the target shifted right."""

    families = ("recurrent",)
    forms = ("vectors",)
    labels_in = "tokens_BT"

    @property
    def head(self) -> dict[str, Any]:
        return {"shape": "1:N", "classes": None}

    def sizes(self, dataset: Dataset) -> dict[str, int]:
        return {"vocab": dataset.vocab, "vector": dataset.vector or 0}

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        tokens_BT, valid_BT, labels_BT = shifted(
            examples.tokens, dataset.max_length, dataset.special
        )
        inputs = {"tokens_BT": tokens_BT, "valid_BT": valid_BT, "vector_BD": examples.vectors}
        return Batch(inputs, labels_BT, valid_BT.astype(np.float32))

    def read(self, reader: Reader, text: str | None, target: str | None = None) -> Prompt:
        text = text_given(text)
        try:
            vector = [float(word) for word in text.replace(",", " ").split()]
        except ValueError as e:
            raise UserError(
                f"{text!r}: this model begins from a vector, so write its numbers: '0.5 -1 2' ({e})"
            ) from None
        return self.prompt_for(reader, vector, target)

    def begin(self, reader: Reader, ids: Sequence[Any]) -> Prompt:
        return Prompt([reader.decoder_start or 0], vector=[float(x) for x in ids])


def shifted(
    target: Ragged | None, longest: int, special: Special
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what a decoder reads (BOS and the target), which of it is real, and what it must
    predict (the target and EOS)."""
    assert target is not None
    target_BT = int32(target.padded(longest))
    decoder_input_BT = np.pad(target_BT, ((0, 0), (1, 0)), constant_values=special.bos)
    labels_BT = np.pad(target_BT, ((0, 0), (0, 1)))
    labels_BT[np.arange(len(target)), target.lengths] = special.eos
    return decoder_input_BT, np.arange(longest + 1) <= target.lengths[:, None], labels_BT

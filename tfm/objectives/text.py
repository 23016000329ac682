"""What the objectives of plain text share."""

import math

from tfm.data.dataset import Dataset, Examples
from tfm.metric import LOW, Metric
from tfm.objectives.base import Objective, Sums, Targets, int32

BITS = (
    Metric("bits_per_byte", LOW, unit="bits", headline=True),
    Metric("bits_per_word", LOW, unit="bits"),
)


def text_rows(examples: Examples, dataset: Dataset) -> Targets:
    """The tokens as rows, which of them are real, and which may be scored."""
    tokens, longest = examples.tokens, dataset.max_length
    valid_BT = scored_BT = tokens.valid(longest)
    if examples.scored is not None:
        scored_BT = tokens.padded(longest, examples.scored)
    return Targets(int32(tokens.padded(longest)), valid_BT, scored_BT)


def without_last(rows: Targets) -> Targets:
    """A window of text has one token more than its length, for objectives that predict the next
    one. Where nothing is predicted from the left alone, the last is not read."""
    return Targets(*(x_BT[:, :-1] for x_BT in rows))


def text_metrics(loss: float, dataset: Dataset) -> dict[str, float]:
    """A loss per token in bits per byte and per word, which do not depend on the tokenizer."""
    sizes = {"byte": dataset.bytes_per_token, "word": dataset.words_per_token}
    bits = loss / math.log(2)
    return {f"bits_per_{name}": bits / size for name, size in sizes.items() if size is not None}


class TextMetrics(Objective):
    """An objective whose loss is that of every token of a text, or of a part that is typical."""

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        sizes = (dataset and dataset.bytes_per_token, dataset and dataset.words_per_token)
        bits = zip(BITS, sizes, strict=True)
        return (
            *super().declares(dataset),
            *(metric for metric, size in bits if dataset is None or size is not None),
        )

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        out = super().metrics(sums, dataset)
        return out | text_metrics(out["loss"], dataset)

"""Write the spans that are missing from a text.

T5, Raffel et al. 2020, §3.1.4; UL2, Tay et al. 2023, §3.1.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax import Array
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.data.reader import MASK, MASKS, Prompt, Reader
from tfm.evaluate.metric import HIGH, LOW, Metric
from tfm.objectives.base import (
    Batch,
    Losses,
    Rng,
    Sums,
    Targets,
    cross_entropy,
    int32,
    text_given,
    text_rows,
    without_last,
    without_positions,
)
from tfm.objectives.seq2seq import Writes
from tfm.ops.fast import argmax_last, log_loss

TEXT = (  # metrics of the hidden tokens alone, without sentinels
    Metric("text_loss", LOW, unit="nats"),
    Metric("text_perplexity", LOW, least=1.0),
    Metric("text_accuracy", HIGH, most=1.0),
)


class Denoiser(NamedTuple):
    """The share of the tokens that is hidden, and the mean length of a hidden span."""

    rate: float
    span: float
    mode: int = 0  # the number of its mode token, where there are any


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Writes):
    """The encoder reads the text with a sentinel in place of each hidden span; the decoder writes
    each sentinel and what it stands for, and one more sentinel as the end:

        Thank you <0> me to your party <1> week.    →    <0> for inviting <1> last <2>

    A share `rate` of the tokens is hidden, in spans of `span` tokens on average, drawn as in T5: a
    text begins with what is seen and ends with a span. Sentinels are `sentinels` ids after those
    of the data. The last token of a window is not read.

    Hidden are the spans: the encoder does not see them, and the decoder sees what it has written.
    Metrics named text_… are of the hidden tokens alone, without sentinels.

    A trained model fills the masks of a text, each by a span, and continues a text as if a mask
    stood at its end.
    """

    rate: float = 0.15
    span: float = 3.0
    sentinels: int = 100

    families = ("encoder_decoder", "seq2seq")
    forms = ("text",)
    labels_in = "decoder_input_BT"
    same_vocab = True  # sentinels come after the data's ids
    name: ClassVar[str] = "span_corruption"
    modes: ClassVar[tuple[str, ...]] = ()  # tokens before the text, after the sentinels
    fills = True

    def __post_init__(self) -> None:
        for rate, span, _ in self.denoisers:
            if not 0 < rate < 1 or not span >= 1:
                raise UserError(
                    f"{self.name}: rate={rate} must be between 0 and 1, and span={span} at least 1"
                )
        if self.sentinels < 2:
            raise UserError(f"{self.name}: sentinels={self.sentinels} must be at least 2")

    @property
    def denoisers(self) -> tuple[Denoiser, ...]:
        return (Denoiser(self.rate, self.span),)

    def added(self, dataset: Dataset) -> tuple[str, ...]:
        return (*(f"<{number}>" for number in range(self.sentinels)), *self.modes)

    def refuses(self, dataset: Dataset) -> str | None:
        if dataset.form == "text":
            if dataset.max_length < 3:
                return "needs at least 2 tokens in a row, besides the last"
            needed = int(max(spans for _, spans in self._sizes(dataset))) + 1
            if needed > self.sentinels:
                return f"needs {needed} sentinels for {dataset.max_length - 1} tokens; say so"
        return super().refuses(dataset)

    def prepare(self, examples: Examples, dataset: Dataset, rng: Rng) -> Batch:
        rows, scored_BT, which_B = self._drawn(examples, dataset, rng)
        source, target, counts = corrupted(rows, scored_BT, dataset.vocab)
        sizes, bos = self._sizes(dataset), dataset.special.bos
        if self.modes:
            mode_B = np.array([mode for *_, mode in self.denoisers])[which_B]
            starts_B = np.cumsum(source.lengths) - source.lengths
            ids = np.insert(source.ids, starts_B, dataset.vocab + self.sentinels + mode_B)
            source = Ragged(ids, source.lengths + 1)
        longest = rows.tokens_BT.shape[1] + bool(self.modes)
        source_length = max(longest - noise + spans for noise, spans in sizes)
        length = max(noise + spans for noise, spans in sizes) + 1
        labels_BT, valid_BT = int32(target.padded(length)), target.valid(length)
        read_BT = np.pad(labels_BT[:, :-1], ((0, 0), (1, 0)), constant_values=bos)
        inputs = {
            "source_BS": int32(source.padded(source_length)),
            "source_valid_BS": source.valid(source_length),
            "decoder_input_BT": read_BT * valid_BT,
            "decoder_valid_BT": valid_BT,
        }
        return Batch(inputs, labels_BT, target.padded(length, counts).astype(np.float32))

    def predicted(self, examples: Examples, dataset: Dataset, rng: Rng) -> Targets:
        rows, scored_BT, _ = self._drawn(examples, dataset, rng)
        return rows._replace(predicted_BT=rows.predicted_BT & scored_BT)

    def loss(self, logits: Array, batch: Batch, label_smoothing: Array | None = None) -> Losses:
        right_BT = argmax_last(logits) == batch.labels
        return {
            **cross_entropy(logits, batch, label_smoothing),
            "losses_BT": log_loss(logits, batch.labels),
            "right_BT": right_BT.astype(jnp.float32),
            "labels_BT": jnp.where(batch.weights > 0, batch.labels, -1),
        }

    def per_example(self, sums: Sums, dataset: Dataset) -> Sums:
        text_BT = (sums["labels_BT"] >= 0) & (sums["labels_BT"] < dataset.vocab)
        return {
            **without_positions(sums),
            "text_loss": np.sum(sums["losses_BT"], 1, where=text_BT),
            "text_correct": np.sum(sums["right_BT"], 1, where=text_BT),
            "text_count": np.sum(text_BT, 1),
        }

    def declares(self, dataset: Dataset | None = None) -> tuple[Metric, ...]:
        return (*super().declares(dataset), *TEXT)

    def metrics(self, sums: Sums, dataset: Dataset) -> dict[str, float]:
        count = max(float(np.sum(sums["text_count"])), 1.0)
        loss = float(np.sum(sums["text_loss"])) / count
        return {
            **super().metrics(sums, dataset),
            "text_loss": loss,
            "text_perplexity": math.exp(min(loss, 700.0)),
            "text_accuracy": float(np.sum(sums["text_correct"])) / count,
        }

    def read(self, reader: Reader, text: str | None, target: str | None = None) -> Prompt:
        text = text_given(text)
        filling = any(mask in text for mask in MASKS)
        source, places = reader.with_marks(
            text if filling else text + MASK, lambda number: reader.vocab + number
        )
        if len(places) >= self.sentinels:
            raise UserError(f"{len(places)} masks: there are sentinels for {self.sentinels - 1}")
        if self.modes:
            source = [reader.vocab + self.sentinels + (0 if filling else 1), *source]
        prompt = self.begin(reader, source)
        if target is None:
            return prompt
        if len(places) > 1:
            raise UserError(f"--target is for a text with one {MASK}")
        ids = [reader.vocab, *reader.ids(target)]
        return prompt._replace(
            tokens=[*prompt.tokens, *ids], labels=[*ids, *self.ends(reader, prompt)]
        )

    def ends(self, reader: Reader, prompt: Prompt) -> tuple[int, ...]:
        """Returns the sentinel after that of the last span."""
        return (reader.vocab + sum(map(self._sentinel(reader), prompt.source or ())),)

    def continues(self, reader: Reader) -> bool:
        return True

    def answer(self, reader: Reader, prompt: Prompt, output: Any) -> str:
        """Returns the text with its spans in their places."""
        spans, is_sentinel = self._spans(reader, output), self._sentinel(reader)
        ids: list[int] = []
        for id_ in prompt.source or ():
            ids += spans[id_] if is_sentinel(id_) else [id_]
        return reader.decode([id_ for id_ in ids if id_ < reader.vocab])

    def filled(
        self, reader: Reader, prompt: Prompt, output: Any, top: int
    ) -> list[list[dict[str, Any]]]:
        """Returns the spans of the sequences that were written, each with the probability of all
        sequences that have it."""
        masks = []
        for sentinel in filter(self._sentinel(reader), prompt.source or ()):
            chances: dict[tuple[int, ...], float] = collections.defaultdict(float)
            for tokens, logprob in output:
                chances[tuple(self._spans(reader, tokens)[sentinel])] += math.exp(logprob)
            best = sorted(chances.items(), key=lambda item: -item[1])[:top]
            masks.append(
                [{"token": reader.decode(x), "ids": list(x), "probability": p} for x, p in best]
            )
        return masks

    def _sentinel(self, reader: Reader) -> Any:
        return lambda id_: 0 <= id_ - reader.vocab < self.sentinels

    def _spans(self, reader: Reader, tokens: Sequence[int]) -> dict[int, list[int]]:
        """Returns the ids after the first occurrence of each sentinel, up to the next sentinel."""
        spans: dict[int, list[int]] = collections.defaultdict(list)
        sentinel, is_sentinel = -1, self._sentinel(reader)
        for id_ in tokens:
            if is_sentinel(id_):
                sentinel = -1 if id_ in spans else id_
                spans[id_] += []
            elif id_ < reader.vocab:
                spans[sentinel].append(int(id_))
        return spans

    def _drawn(
        self, examples: Examples, dataset: Dataset, rng: Rng
    ) -> tuple[Targets, np.ndarray, np.ndarray]:
        """Returns rows with what is hidden, which tokens may be scored, and each row's denoiser."""
        rows = without_last(text_rows(examples, dataset))
        which_B = self._which(len(rows.tokens_BT), rng)
        rate_B, span_B, _ = (np.array(x)[which_B] for x in zip(*self.denoisers, strict=True))
        length_B = rows.valid_BT.sum(1)
        noise_B, spans_B = noise_and_spans(length_B, rate_B, span_B)
        hidden_BT = noise_mask(rows.tokens_BT.shape[1], length_B, noise_B, spans_B, rng)
        return rows._replace(predicted_BT=hidden_BT), rows.predicted_BT, which_B

    def _which(self, count: int, rng: Rng) -> np.ndarray:
        return np.zeros(count, np.int64)

    def _sizes(self, dataset: Dataset) -> list[tuple[int, int]]:
        """Returns how many tokens and spans of the longest row each denoiser hides."""
        length = dataset.max_length - 1
        sizes = (noise_and_spans(np.array(length), rate, span) for rate, span, _ in self.denoisers)
        return [(int(noise), int(spans)) for noise, spans in sizes]


MODES = ("[R]", "[S]", "[X]")  # regular, sequential, extreme


@dataclasses.dataclass(frozen=True)
class UL2(SpanCorruption):
    """A mixture of denoisers. Of r + s + x rows, about r, s and x have each of these modes:

    R, regular: a share of 0.15 of the tokens is hidden, in spans of 3 or 8.
    S, sequential: the last quarter is hidden, in one span, as in a prefix language model.
    X, extreme: 0.5 in spans of 3, 8 or 64, or 0.15 in spans of 64.

    A token before the text tells the mode (`mode_tokens`); their ids come after the sentinels.
    Hidden are the spans, as in `SpanCorruption`. A trained model fills masks in mode R, and
    continues a text in mode S.
    """

    r: float = 2.0
    s: float = 1.0
    x: float = 4.0
    mode_tokens: bool = True

    pads = True
    name = "ul2"

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self.r, self.s, self.x
        if min(shares) < 0 or not sum(shares):
            raise UserError(f"ul2: r, s, x = {shares} must not be negative, and one above 0")
        plain = SpanCorruption()
        if (self.rate, self.span) != (plain.rate, plain.span):
            raise UserError("ul2: its denoisers have their own rate and span; give r, s, x")

    @property
    def denoisers(self) -> tuple[Denoiser, ...]:  # Tay et al. 2023, table 1
        extreme = ((0.5, 3), (0.5, 8), (0.15, 64), (0.5, 64))
        return (
            *(Denoiser(0.15, 3, 0), Denoiser(0.15, 8, 0), Denoiser(0.25, math.inf, 1)),
            *(Denoiser(rate, span, 2) for rate, span in extreme),
        )

    @property
    def modes(self) -> tuple[str, ...]:  # type: ignore[override]
        return MODES if self.mode_tokens else ()

    def _which(self, count: int, rng: Rng) -> np.ndarray:
        modes, shares = [mode for *_, mode in self.denoisers], (self.r, self.s, self.x)
        share = np.array([shares[mode] / modes.count(mode) for mode in modes])
        return rng.choice(len(modes), count, p=share / share.sum())


def noise_and_spans(length: Any, rate: Any, span: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many tokens of a row are hidden, and in how many spans. Before each span there is
    at least one token that is seen, so a single token cannot be hidden."""
    noise = np.clip(np.round(length * rate), 1, np.maximum(length - 1, 1)) * (length > 1)
    spans = np.clip(np.round(noise / span), 1, np.maximum(np.minimum(noise, length - noise), 1))
    return noise.astype(np.int64), (spans * (noise > 0)).astype(np.int64)


def noise_mask(
    longest: int, length_B: np.ndarray, noise_B: np.ndarray, spans_B: np.ndarray, rng: Rng
) -> np.ndarray:
    """Draws which tokens are hidden: seen and hidden parts in turns, both cut at random into as
    many pieces of at least one token.  T5's random_spans_noise_mask."""
    seen_BP = _pieces(longest, length_B - noise_B, spans_B, rng)
    hidden_BP = _pieces(longest, noise_B, spans_B, rng)
    count = seen_BP.shape[1]
    end_BP = np.cumsum(np.stack([seen_BP, hidden_BP], 2).reshape(-1, 2 * count), 1)
    # Each end of a part turns what follows from seen to hidden or back.
    turns_BT = np.zeros((len(end_BP), longest + 1), np.int64)
    row_N, part_N = np.nonzero(np.arange(2 * count) < 2 * spans_B[:, None])
    turns_BT[row_N, end_BP[row_N, part_N]] = 1  # all ends of a row differ
    return (np.cumsum(turns_BT, 1) % 2 == 1)[:, :longest]


def _pieces(longest: int, items_B: np.ndarray, pieces_B: np.ndarray, rng: Rng) -> np.ndarray:
    """Draws the sizes of `pieces` parts of at least one item: each begins at random among all items
    but the first."""
    most = int(pieces_B.max(initial=1))
    place_BI = rng.random((len(items_B), longest))
    place_BI[:, 0] = -1  # the first piece begins at the first item
    place_BI[np.arange(longest) >= items_B[:, None]] = np.inf
    beyond_BP = np.arange(most) >= pieces_B[:, None]
    begin_BP = np.sort(np.argsort(place_BI, 1)[:, :most] + longest * beyond_BP, 1)
    end_BP = np.roll(begin_BP, -1, 1)
    end_BP[:, -1] = longest
    return np.maximum(np.minimum(end_BP, items_B[:, None]) - begin_BP, 0)


def corrupted(
    rows: Targets, scored_BT: np.ndarray, sentinel: int
) -> tuple[Ragged, Ragged, np.ndarray]:
    """Returns what is read, what is written, and which tokens of the latter count. `sentinel` is
    the first one's id."""
    tokens_BT, valid_BT, hidden_BT = rows
    begins_BT = hidden_BT & ~np.pad(hidden_BT[:, :-1], ((0, 0), (1, 0)))
    sentinel_BT = sentinel - 1 + np.cumsum(begins_BT, 1)
    source_BT = np.where(begins_BT, sentinel_BT, tokens_BT)
    source = Ragged.of(source_BT, valid_BT & (~hidden_BT | begins_BT))
    # Two places for each token: the sentinel before it, and itself; then the last sentinel.
    end_B1 = sentinel_BT[:, -1:] + 1

    def twice(first_BT: np.ndarray, second_BT: np.ndarray, end_B1: np.ndarray) -> np.ndarray:
        both_BT = np.stack([first_BT, second_BT], 2).reshape(len(first_BT), -1)
        return np.concatenate([both_BT, end_B1], 1)

    some_B1 = begins_BT.any(1, keepdims=True)
    written = twice(begins_BT, hidden_BT, np.ones_like(some_B1))
    target_BT = twice(sentinel_BT, tokens_BT, end_B1)
    counts_BT = twice(begins_BT, hidden_BT & scored_BT, some_B1)
    return source, Ragged.of(target_BT, written), counts_BT[written]

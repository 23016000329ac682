"""Data sets made from others: labels as text, rows with a prefix, several data sets as one."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.data.draws import key_of, permuted, shuffled
from tfm.data.records import joined, spread
from tfm.data.tokenizers.tokenizer import tokenizer_of


def with_text_labels(dataset: Dataset) -> Dataset:
    """Turns labels into target texts; pairs stay unchanged."""
    if dataset.form == "pairs":
        return dataset
    names = dataset.label_names
    tokenizer = tokenizer_of(dataset.vocabulary)
    if dataset.form != "labels" or names is None or tokenizer is None:
        raise UserError(f"labels_as_text: the data are {dataset.form}, whose labels have no names")
    ids = [tokenizer.encode(name) for name in names]
    targets = Ragged(np.concatenate(ids).astype(np.int32), np.array([len(text) for text in ids]))

    def labels(rows: np.ndarray) -> np.ndarray:
        return np.asarray(dataset.read(rows).labels)

    def read(rows: np.ndarray) -> Examples:
        examples = dataset.read(rows)
        return Examples(tokens=examples.tokens, target=targets.take(np.asarray(examples.labels)))

    def lengths() -> np.ndarray:
        blocks = np.array_split(np.arange(len(dataset)), len(dataset) // 65536 + 1)
        label_N = np.concatenate([labels(rows) for rows in blocks])
        sides = dataset.row_lengths()[:, 0], targets.lengths[label_N]
        return np.stack(sides, 1).astype(np.int32)

    return dataclasses.replace(
        dataset,
        read=read,
        lengths=lengths,
        form="pairs",
        max_target=int(targets.lengths.max()),
        target_texts=lambda rows: [names[label] for label in labels(rows)],
        classes=None,
        label_names=None,
    )


def with_prefix(prefix: Sequence[int], dataset: Dataset, notes: tuple[str, ...]) -> Dataset:
    """Puts a prefix before each row, which is read but not predicted."""
    size = len(prefix)

    def read(rows: np.ndarray) -> Examples:
        examples = dataset.read(rows)
        tokens, piece = joined([*prefix, examples.tokens])

        def shifted(x: np.ndarray | None) -> np.ndarray | None:
            return None if x is None else spread(x, piece == size)

        scored = examples.scored
        if dataset.form in ("text", "tags") and size:
            scored = np.ones(len(examples.tokens.ids), bool) if scored is None else scored.copy()
            if dataset.form == "text":  # the first token of a row is never predicted
                scored[np.cumsum(examples.tokens.lengths) - examples.tokens.lengths] = False
        alignment = examples.alignment
        if alignment is not None:
            alignment = np.where(alignment >= 0, alignment + size, alignment)
        return dataclasses.replace(
            examples,
            tokens=tokens,
            segments=shifted(examples.segments),
            tags=shifted(examples.tags),
            scored=shifted(scored),
            alignment=alignment,
        )

    def lengths() -> np.ndarray:
        length_NS = dataset.row_lengths()
        return np.concatenate([length_NS[:, :1] + size, length_NS[:, 1:]], 1)

    return dataclasses.replace(
        dataset,
        read=read,
        lengths=lengths,
        max_length=dataset.max_length + size,
        next_row=None,
        aligned=dataset.aligned and not size,
        notes=notes,
        best=None,
        shortcuts={},
    )


def repeated(counts: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Returns the rows of each data set in an epoch: proportional to its weight, at least all."""
    pairs = list(zip(counts, weights, strict=True))
    scale = max(count / weight for count, weight in pairs)
    return [max(count, round(weight * scale)) for count, weight in pairs]


def concatenated(named: Mapping[str, Dataset], rows_of: Sequence[int], list_parts: bool) -> Dataset:
    """Joins data sets into one, shuffled once. `rows_of` is the number of rows from each; if it has
    fewer, they are repeated. With `list_parts`, `Dataset.parts` lists them."""
    opened, ends = list(named.values()), np.cumsum(rows_of)
    first, begins, total = opened[0], ends - rows_of, int(ends[-1])
    key = key_of(0, "mixture")

    def locate(index_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the data set of an index before shuffling, and its row there."""
        number_N = np.searchsorted(ends, index_N, "right")
        counts = np.array([len(dataset) for dataset in opened])
        return number_N, (index_N - begins[number_N]) % counts[number_N]

    def read(rows: np.ndarray) -> Examples:
        number_N, row_N = locate(permuted(total, key, rows))
        batches = [opened[n].read(row_N[number_N == n]) for n in np.unique(number_N)]
        # The rows are now in the order of their data sets; the inverse of that order restores them.
        order_N = np.argsort(np.argsort(number_N, kind="stable"))
        return Examples.concatenate(_with_same_fields(batches)).take(order_N)

    def lengths() -> np.ndarray:
        number_N, row_N = locate(shuffled(total, key))
        out_NS = np.zeros((total, 2 if first.form == "pairs" else 1), np.int32)
        for number, dataset in enumerate(opened):
            inside = number_N == number
            out_NS[inside] = dataset.row_lengths()[row_N[inside]]
        return out_NS

    def lost_tags(rows: np.ndarray) -> Ragged:
        located = zip(*locate(permuted(total, key, rows)), strict=True)
        cut = [(opened[n].lost_tags, np.array([row])) for n, row in located]
        tags = [np.zeros(0, np.int32) if lost is None else lost(row).ids for lost, row in cut]
        return Ragged(np.concatenate(tags), np.array([len(x) for x in tags]))

    def counts() -> np.ndarray:
        parts = [dataset.counts() for dataset in opened if dataset.counts is not None]
        return np.sum([np.pad(x, (0, first.vocab - len(x))) for x in parts], 0)

    even = len({(data.max_length, data.max_target) for data in opened}) == 1
    shape: dict[str, Any] = {
        "max_length": max(dataset.max_length for dataset in opened),
        "max_target": max(dataset.max_target for dataset in opened),
        "padded": not even or any(dataset.padded for dataset in opened),
    }
    notes = [f"{name}: {note}" for name, dataset in named.items() for note in dataset.notes]
    for (name, dataset), rows in zip(named.items(), rows_of, strict=True):
        if rows != len(dataset):
            notes.append(f"{name}: its {len(dataset)} rows are {rows} of an epoch")
    parts = {}
    if list_parts and len(named) > 1:
        parts = {name: dataclasses.replace(x, notes=(), **shape) for name, x in named.items()}
    return dataclasses.replace(
        first,
        read=read,
        lengths=lengths,
        count=total,
        next_row=None,
        aligned=all(dataset.aligned for dataset in opened),
        best=None,
        shortcuts={},
        bytes_per_token=None,
        words_per_token=None,
        counts=None if any(dataset.counts is None for dataset in opened) else counts,
        target_texts=None,
        lost_tags=lost_tags if any(dataset.lost_tags for dataset in opened) else None,
        notes=tuple(notes),
        parts=parts,
        **shape,
    )


def _with_same_fields(batches: list[Examples]) -> list[Examples]:
    """Fills in `segments` and `scored`, or drops `alignment`, where only some batches have it."""
    defaults: dict[str, Any] = {"segments": np.int32(0), "scored": np.True_}
    for name, default in defaults.items():
        some = any(getattr(batch, name) is not None for batch in batches)
        for i, batch in enumerate(batches if some else ()):
            if getattr(batch, name) is None:
                field: dict[str, Any] = {name: np.full(len(batch.tokens.ids), default)}
                batches[i] = dataclasses.replace(batch, **field)
    if any(batch.alignment is None for batch in batches):
        batches = [dataclasses.replace(batch, alignment=None) for batch in batches]
    return batches

"""Data sets made from others: labels as text, rows after a prefix, several sets as one."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Examples, Ragged
from tfm.data.draws import key_of, permuted, shuffled
from tfm.data.formats.records import joined


def with_text_labels(dataset: Dataset) -> Dataset:
    """Labels as texts that are to be written; pairs stay as they are."""
    if dataset.form == "pairs":
        return dataset
    if dataset.form != "labels" or dataset.label_names is None or dataset.encode is None:
        raise UserError(f"labels_as_text: the data are {dataset.form}, whose labels have no names")
    ids = [dataset.encode(name) for name in dataset.label_names]
    table = Ragged(np.concatenate(ids).astype(np.int32), np.array([len(own) for own in ids]))
    read, lengths = dataset.read, dataset.lengths

    def pairs(rows: np.ndarray) -> Examples:
        some = read(rows)
        assert some.labels is not None
        target = Ragged(table.ids[table.places(some.labels)], table.lengths[some.labels])
        return Examples(tokens=some.tokens, target=target)

    def both() -> np.ndarray:
        assert lengths is not None
        blocks = np.array_split(np.arange(len(dataset)), len(dataset) // 65536 + 1)
        labels = np.concatenate([np.asarray(read(rows).labels) for rows in blocks])
        sides = lengths()[: len(dataset), 0], table.lengths[labels]
        return np.stack(sides, 1).astype(np.int32)

    return dataclasses.replace(
        dataset,
        read=pairs,
        lengths=None if lengths is None else both,
        form="pairs",
        max_target=int(table.lengths.max()),
        classes=None,
        label_names=None,
    )


def after(prefix: Sequence[int], dataset: Dataset) -> Dataset:
    """The rows after a prefix, which is read but not predicted."""
    read, lengths, many = dataset.read, dataset.lengths, len(prefix)

    def prefixed(rows: np.ndarray) -> Examples:
        some = read(rows)
        tokens, part = joined([*prefix, some.tokens])
        own = part == many

        def spread(x: np.ndarray | None) -> np.ndarray | None:
            if x is None:
                return None
            out = np.zeros(own.shape, x.dtype)
            out[own] = x
            return out

        scored = some.scored
        if dataset.form in ("text", "tags") and many:
            scored = np.ones(len(some.tokens.ids), bool) if scored is None else scored.copy()
            if dataset.form == "text":  # the first token of a row has never been predicted
                scored[np.cumsum(some.tokens.lengths) - some.tokens.lengths] = False
        alignment = some.alignment
        if alignment is not None:
            alignment = np.where(alignment >= 0, alignment + many, alignment)
        return dataclasses.replace(
            some,
            tokens=tokens,
            segments=spread(some.segments),
            tags=spread(some.tags),
            scored=spread(scored),
            alignment=alignment,
        )

    def longer() -> np.ndarray:
        assert lengths is not None
        out = lengths().copy()
        out[:, 0] += many
        return out

    return dataclasses.replace(
        dataset,
        read=prefixed,
        lengths=None if lengths is None else longer,
        max_length=dataset.max_length + many,
        next_row=None,
        aligned=dataset.aligned and not many,
        best=None,
        shortcuts={},
    )


def repeated(counts: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Rows of each data set in an epoch: in proportion to the weights, and at least all."""
    both = list(zip(counts, weights, strict=True))
    scale = max(count / weight for count, weight in both)
    return [max(count, round(weight * scale)) for count, weight in both]


def mixed(named: Mapping[str, Dataset], times: Sequence[int], parts: bool) -> Dataset:
    """One data set that has so many rows of each, shuffled once for all; rows come several times
    where there are fewer. `parts`: it tells which they are."""
    opened, ends = list(named.values()), np.cumsum(times)
    first, begins, total = opened[0], ends - times, int(ends[-1])

    key = key_of(0, "mixture")

    def place(row_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of which data set a row is, and which of its rows, before they are repeated."""
        part_N = np.searchsorted(ends, row_N, "right")
        return part_N, row_N - begins[part_N]

    def read(rows: np.ndarray) -> Examples:
        part_N, row_N = place(permuted(total, key, rows))
        found, order = list[Examples](), list[np.ndarray]()
        for number, dataset in enumerate(opened):
            own = np.flatnonzero(part_N == number)
            if len(own):
                found.append(dataset.read(row_N[own] % len(dataset)))
                order.append(own)
        return Examples.concatenate(_level(found)).take(np.argsort(np.concatenate(order)))

    def lengths() -> np.ndarray:
        part_N, row_N = place(shuffled(total, key))
        out_NS = np.zeros((total, 2 if first.form == "pairs" else 1), np.int32)
        for number, dataset in enumerate(opened):
            own = part_N == number
            out_NS[own] = dataset.row_lengths()[row_N[own] % len(dataset)]
        return out_NS

    def counts() -> np.ndarray:
        sums = np.zeros(first.vocab, np.int64)
        for one in opened:
            own = one.counts() if one.counts is not None else np.zeros(0, np.int64)
            sums[: len(own)] += own
        return sums

    longest = [max(getattr(one, key) for one in opened) for key in ("max_length", "max_target")]
    even = len({(one.max_length, one.max_target) for one in opened}) == 1
    shape: dict[str, Any] = {
        "max_length": longest[0],
        "max_target": longest[1],
        "padded": not even or any(one.padded for one in opened),
    }
    notes = [f"{name}: {note}" for name, one in named.items() for note in one.notes]
    for (name, one), n in zip(named.items(), times, strict=True):
        if n != len(one):
            notes.append(f"{name}: its {len(one)} rows are {n} of an epoch")
    own = {k: dataclasses.replace(one, notes=(), **shape) for k, one in named.items() if parts}
    return dataclasses.replace(
        first,
        read=read,
        lengths=lengths,
        count=total,
        next_row=None,
        aligned=all(one.aligned for one in opened),
        best=None,
        shortcuts={},
        bytes_per_token=None,
        words_per_token=None,
        counts=None if any(one.counts is None for one in opened) else counts,
        notes=tuple(notes),
        parts=own if len(own) > 1 else {},
        **shape,
    )


def _level(found: Sequence[Examples]) -> list[Examples]:
    """Examples with the same fields given."""
    defaults: dict[str, Any] = {"segments": np.int32(0), "scored": np.True_}
    for name, default in defaults.items():
        if any(getattr(one, name) is not None for one in found):
            given: list[dict[str, Any]] = [
                {}
                if getattr(one, name) is not None
                else {name: np.full(len(one.tokens.ids), default)}
                for one in found
            ]
            found = [dataclasses.replace(x, **more) for x, more in zip(found, given, strict=True)]
    if any(one.alignment is None for one in found):
        found = [dataclasses.replace(one, alignment=None) for one in found]
    return list(found)

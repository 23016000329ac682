"""Separate records: sentences with labels, pairs of sentences, words with tags.

`write_records` tokenizes records into the columns of a cache entry; `open_records` reads rows of
that entry by array gathers.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.dataset import Dataset, Examples, Ragged, Reading, at_most, spans
from tfm.data.files import Place, ReadLog
from tfm.data.tokenizers.tokenizer import Tokenizer

BATCH = 1 << 20  # characters tokenized at a time
TOKENS, SECOND, TARGET = "tokens", "second", "target"  # columns of ids
TARGET_TEXT = "target_text"


class Record(NamedTuple):
    """One example of a file, as text."""

    place: Place
    text: str | Sequence[str]  # a sentence, or the words that have tags
    second: str | None = None  # labels: the second sentence
    target: str | None = None  # pairs
    label: str | None = None  # labels
    tags: Sequence[str] | None = None  # tags: one for each word

    def texts(self) -> Iterator[str]:
        """Yields all text of the record, for a tokenizer to learn from."""
        yield self.text if isinstance(self.text, str) else " ".join(self.text)
        yield from filter(None, (self.second, self.target))

    def names(self) -> Iterator[str]:
        """Yields the names of its labels or tags."""
        yield from self.tags or ()
        if self.label is not None:
            yield self.label


class Layout(NamedTuple):
    """The kind of content that the records of a corpus have."""

    form: str  # a key of FORMS
    settings: Mapping[str, Any] = {}  # the options that determine what is read from the files
    two_texts: bool = False  # labels: records have a second sentence
    numeric: bool = False  # labels: they are real numbers
    label_names: tuple[str, ...] | None = None  # if the data set declares them


def write_records(
    records: Iterable[Record],
    layout: Layout,
    tokenizer: Tokenizer,
    label_names: Sequence[str],
    writer: cache.Writer,
    log: ReadLog,
) -> dict[str, Any]:
    """Tokenizes records into columns and returns the facts of the entry. Records with unknown
    labels or without tokens are bad."""
    label_ids = {name: i for i, name in enumerate(label_names)}
    words = WordEncoder(tokenizer) if layout.form == "tags" else None
    counts, dtype = np.zeros(tokenizer.vocab, np.int64), id_dtype(tokenizer.vocab)
    rows, ends, lengths = 0, Counter[str](), dict[str, Counter[int]]()

    def append(name: str, values: np.ndarray, length_N: np.ndarray) -> None:
        writer.append(name, values)
        writer.append(f"{name}_ends", np.cumsum(length_N, dtype=np.int64) + ends[name])
        ends[name] += len(values)

    if layout.form != "pairs":  # which have no labels
        records = (r for r in records if _is_labeled(r, layout, label_ids, log))
    for batch in _batches(records):
        if words is None:
            columns = {
                name: Ragged(*tokenizer.encode_batch([getattr(record, field) for record in batch]))
                for name, field in {TOKENS: "text", SECOND: "second", TARGET: "target"}.items()
                if getattr(batch[0], field) is not None
            }
        else:
            columns = {TOKENS: words([record.text for record in batch])}
        kept_N = np.all([column.lengths > 0 for column in columns.values()], 0)
        for row in np.flatnonzero(~kept_N):
            log.bad(batch[row].place, "no token: the text is empty or contains only spaces")
        kept = np.flatnonzero(kept_N)
        for name, column in columns.items():
            part = column if len(kept) == len(batch) else column.take(kept)
            append(name, part.ids.astype(dtype), part.lengths)
            lengths.setdefault(name, Counter()).update(part.lengths.tolist())
            counts += np.bincount(part.ids, minlength=len(counts))
        if layout.two_texts:
            both = np.sum([column.lengths[kept] for column in columns.values()], 0)
            lengths.setdefault("both", Counter()).update(both.tolist())
        if layout.form == "labels":
            labels = [str(record.label) for record in itertools.compress(batch, kept_N)]
            ids = labels if layout.numeric else [label_ids[label] for label in labels]
            writer.append("labels", np.array(ids, np.float32 if layout.numeric else np.int32))
        if layout.form == "pairs":
            texts = [str(record.target).encode() for record in itertools.compress(batch, kept_N)]
            sizes = np.fromiter(map(len, texts), np.int64, len(texts))
            append(TARGET_TEXT, np.frombuffer(b"".join(texts), np.uint8), sizes)
        if words is not None:
            tags, scored = words.tags(batch, label_ids)
            places = columns[TOKENS].places(kept)
            writer.append("tags", tags[places])
            writer.append("scored", scored[places])
        rows += len(kept)
    shown = {name: sorted(numbers.items()) for name, numbers in lengths.items()}
    return {"rows": rows, "lengths": shown, **token_facts(counts, tokenizer, writer)}


def id_dtype(vocab: int) -> Any:
    """Returns the smallest type that holds all ids."""
    return np.uint16 if vocab <= 1 << 16 else np.int32


def token_facts(counts: np.ndarray, tokenizer: Tokenizer, writer: cache.Writer) -> dict[str, int]:
    """Stores how often each id occurs and returns the number of all and of unknown tokens."""
    writer.append("counts", counts)
    unk = tokenizer.special.unk
    return {"tokens": int(counts.sum()), "unknown": 0 if unk is None else int(counts[unk])}


def _is_labeled(record: Record, layout: Layout, label_ids: dict[str, int], log: ReadLog) -> bool:
    """Checks that the training split has the labels of a record, or that they are numbers."""
    if layout.numeric:
        try:
            if math.isfinite(float(str(record.label))):
                return True
        except ValueError:
            pass
        log.bad(record.place, f"{record.label!r} is not a number")
        return False
    unknown = next((name for name in record.names() if name not in label_ids), None)
    if unknown is not None:
        some = ", ".join([*itertools.islice(label_ids, 10), *["…"] * (len(label_ids) > 10)])
        log.bad(record.place, f"label {unknown!r} is not in the training split, which has: {some}")
    return unknown is None


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch, size = list[Record](), 0
    for record in records:
        batch.append(record)
        size += sum(len(text) for text in (record.text, record.second, record.target) if text)
        if size > BATCH or len(batch) > BATCH // 64:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class WordEncoder:
    """Tokenizes words one by one, and remembers the pieces of every word."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.known: dict[str, list[int]] = {}
        self.pieces: list[int] = []  # number of pieces of each word of the last batch

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Ragged:
        space = " " if self.tokenizer.spaced else ""
        texts = [space * (i > 0) + word for words in sentences for i, word in enumerate(words)]
        if len(self.known) > 1 << 20:
            self.known.clear()
        new = list(dict.fromkeys(text for text in texts if text not in self.known))
        if new:
            special = self.tokenizer.special
            unknown = [special.eos if special.unk is None else special.unk]
            encoded = Ragged(*self.tokenizer.encode_batch(new)).sequences()
            for text, ids in zip(new, encoded, strict=True):
                self.known[text] = ids.tolist() or unknown
        words = [self.known[text] for text in texts]
        self.pieces = [len(word) for word in words]
        ids = np.fromiter(itertools.chain.from_iterable(words), np.int32, sum(self.pieces))
        ends = np.cumsum(self.pieces)[np.cumsum([len(words) for words in sentences]) - 1]
        return Ragged(ids, np.diff(ends, prepend=0))

    def tags(
        self, batch: Sequence[Record], label_ids: Mapping[str, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tag of each word at its first piece, and which pieces are scored."""
        first = np.cumsum(self.pieces) - self.pieces
        tags, scored = np.zeros(sum(self.pieces), np.int32), np.zeros(sum(self.pieces), bool)
        tags[first] = [label_ids[tag] for record in batch for tag in record.tags or ()]
        scored[first] = True
        return tags, scored


def open_records(
    entry: cache.Entry,
    layout: Layout,
    tokenizer: Tokenizer,
    reading: Reading,
    split: str,
    count: int | None,
    **facts: Any,
) -> Dataset:
    """Opens the rows of an entry. Rows longer than `reading` allows lose their end."""
    rows = _Rows(entry, layout, tokenizer, reading)
    return Dataset(
        read=rows.read,
        count=at_most(count, entry.facts["rows"], split),
        max_length=rows.max_length,
        max_target=rows.max_target,
        lengths=rows.lengths,
        target_texts=rows.target_texts if layout.form == "pairs" else None,
        lost_tags=rows.lost_tags if layout.form == "tags" and any(rows.notes(split)) else None,
        notes=(*skipped_note(entry, split), *rows.notes(split)),
        **facts,
    )


def skipped_note(entry: cache.Entry, split: str) -> tuple[str, ...]:
    """Says how many bad lines were left out of an entry."""
    skipped, first = entry.facts["skipped"], entry.facts["first"]
    return (f"{split}: {skipped} bad lines left out, for example {first[0]}",) if skipped else ()


class _Rows:
    def __init__(self, entry: cache.Entry, layout: Layout, tokenizer: Tokenizer, reading: Reading):
        self.entry, self.form = entry, layout.form
        self.around, self.two_texts = tokenizer.around(self.form), SECOND in entry.columns
        before, after, between, closing = map(len, self.around)
        self.added = before + (between + closing if self.two_texts else after)  # special ids
        histogram = {name: np.array(pairs) for name, pairs in entry.facts["lengths"].items()}
        self.source_lengths = histogram["both" if self.two_texts else TOKENS]
        self.target_lengths = histogram.get(TARGET)
        self.max_length = int(self.source_lengths[-1, 0]) + self.added
        if reading.max_length is not None:
            self.max_length = min(self.max_length, reading.max_length)
        if self.max_length <= self.added:
            raise UserError(f"data.max_length={self.max_length} leaves no room for a token")
        self.max_target = 0 if self.target_lengths is None else int(self.target_lengths[-1, 0])
        if self.max_target and reading.max_target is not None:
            self.max_target = min(self.max_target, reading.max_target)

    def notes(self, split: str) -> Iterator[str]:
        """Says how many rows were truncated."""
        for key, histogram, limit in (
            ("max_length", self.source_lengths, self.max_length - self.added),
            ("max_target", self.target_lengths, self.max_target),
        ):
            if histogram is not None and histogram[-1, 0] > limit:
                over = histogram[histogram[:, 0] > limit]
                rows, lost = over[:, 1].sum(), ((over[:, 0] - limit) * over[:, 1]).sum()
                value = getattr(self, key)
                yield f"{split}: {rows} rows truncated to data.{key}={value}; {lost} tokens lost"

    def lengths(self) -> np.ndarray:
        """Returns the lengths of all rows as they are read: N1, or N2 for pairs."""

        def stored(name: str) -> np.ndarray:
            return np.diff(self.entry[f"{name}_ends"][:], prepend=0)

        first_N = stored(TOKENS) + self.added + (stored(SECOND) if self.two_texts else 0)
        sides = [np.minimum(first_N, self.max_length)]
        if self.form == "pairs":
            sides.append(np.minimum(stored(TARGET), self.max_target))
        return np.stack(sides, 1).astype(np.int32)

    def read(self, rows: np.ndarray) -> Examples:
        room = self.max_length - self.added
        before, after, between, closing = self.around
        fields: dict[str, Any] = {}
        start_N, length_N = self._bounds(TOKENS, rows)
        if self.form == "labels":
            fields["labels"] = self.entry["labels"][rows]
        if self.two_texts:
            start2_N, length2_N = self._bounds(SECOND, rows)
            length_N, length2_N = _truncated(length_N, length2_N, room)
            first = self._ids(TOKENS, start_N, length_N)
            second = self._ids(SECOND, start2_N, length2_N)
            tokens, piece = joined([*before, first, *between, second, *closing])
            segments = (piece > len(before) + len(between)).astype(np.int32)
            return Examples(tokens=tokens, segments=segments, **fields)
        length_N = np.minimum(length_N, room)
        tokens = self._ids(TOKENS, start_N, length_N)
        if self.form == "tags":
            places = spans(start_N, length_N)
            fields = {name: self.entry[name][places] for name in ("tags", "scored")}
        if self.form == "pairs":
            start_N, length_N = self._bounds(TARGET, rows)
            fields["target"] = self._ids(TARGET, start_N, np.minimum(length_N, self.max_target))
        if before or after:
            tokens, piece = joined([*before, tokens, *after])
            for name in fields.keys() & {"tags", "scored"}:
                fields[name] = spread(fields[name], piece == len(before))
        return Examples(tokens=tokens, **fields)

    def lost_tags(self, rows: np.ndarray) -> Ragged:
        """Returns the tags of the words that `max_length` cuts off."""
        start_N, length_N = self._bounds(TOKENS, rows)
        kept_N = np.minimum(length_N, self.max_length - self.added)
        places = spans(start_N + kept_N, length_N - kept_N)
        scored = self.entry["scored"][places]
        row = np.repeat(np.arange(len(rows)), length_N - kept_N)
        counts = np.bincount(row[scored], minlength=len(rows))
        return Ragged(self.entry["tags"][places][scored], counts)

    def target_texts(self, rows: np.ndarray) -> list[str]:
        """Returns the targets of some rows as the files have them."""
        bounds = zip(*self._bounds(TARGET_TEXT, rows), strict=True)
        text = self.entry[TARGET_TEXT]
        return [text[slice(start, start + size)].tobytes().decode() for start, size in bounds]

    def _bounds(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where rows start in a column, and how long they are."""
        ends = self.entry[f"{name}_ends"]
        start_N = np.where(rows > 0, ends[np.maximum(rows - 1, 0)], 0)
        return start_N, ends[rows] - start_N

    def _ids(self, name: str, start_N: np.ndarray, length_N: np.ndarray) -> Ragged:
        return Ragged(self.entry[name][spans(start_N, length_N)].astype(np.int32), length_N)


def _truncated(
    first_N: np.ndarray, second_N: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts two lengths so that their sum is at most `room`; the longer one is cut first."""
    first = np.minimum(first_N, np.maximum(room - second_N, room - room // 2))
    return first, np.minimum(second_N, room - first)


def joined(pieces: Sequence[Ragged | int]) -> tuple[Ragged, np.ndarray]:
    """Joins sequences row by row; an int is an id that every row gets.

    Also returns the index of the piece that each id comes from.
    """
    count = next(len(piece) for piece in pieces if isinstance(piece, Ragged))
    single = np.ones(count, np.int64)
    length_PN = np.stack([single if isinstance(x, int) else x.lengths for x in pieces])
    lengths = length_PN.sum(0)
    start_PN = np.cumsum(length_PN, 0) - length_PN + (np.cumsum(lengths) - lengths)
    ids, index = np.zeros(lengths.sum(), np.int32), np.zeros(lengths.sum(), np.int32)
    for i, piece in enumerate(pieces):
        places = spans(start_PN[i], length_PN[i])
        ids[places] = piece if isinstance(piece, int) else piece.ids
        index[places] = i
    return Ragged(ids, lengths), index


def spread(x: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Places the values of `x` where `where` is True, and zeros elsewhere."""
    out = np.zeros(where.shape, x.dtype)
    out[where] = x
    return out

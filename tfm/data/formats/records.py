"""Corpora of separate examples: sentences with labels, pairs of sentences, words with tags."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.dataset import Dataset, Examples, Ragged, at_most, spans
from tfm.data.files import Bad, Meter, Place
from tfm.data.formats.corpus import Corpus, Tally, id_dtype
from tfm.data.tokenizers.tokenizer import Tokenizer

BATCH = 1 << 20  # characters that are tokenised at a time
TOKENS, SECOND, TARGET = "tokens", "second", "target"  # the parts of a record that are text


class Record(NamedTuple):
    """One example, as text."""

    place: Place
    text: str | Sequence[str]  # a sentence, or the words that have tags
    second: str | None = None  # labels: the second sentence
    target: str | None = None  # pairs
    label: str | None = None  # labels
    tags: Sequence[str] | None = None  # tags: one for each word


class Records(Corpus):
    """`records(split, bad, meter)` gives the examples of a split, one after another."""

    pair = False  # labels: a record has a second sentence

    def records(self, split: str, bad: Bad, meter: Meter) -> Iterator[Record]:
        raise NotImplementedError

    def texts(self, bad: Bad, meter: Meter) -> Iterator[str]:
        for record in self.records("train", bad, meter):
            yield record.text if isinstance(record.text, str) else " ".join(record.text)
            yield from filter(None, (record.second, record.target))

    def names(self, bad: Bad, meter: Meter) -> Iterator[str]:
        for record in self.records("train", bad, meter):
            yield from record.tags or ()
            yield from () if record.label is None else (record.label,)

    def write(self, split: str, writer: cache.Writer, bad: Bad, meter: Meter) -> dict[str, Any]:
        tokenizer = self.tokenizer()
        to_ids = Words(tokenizer) if self.form == "tags" else _Sentences(tokenizer)
        number = {name: i for i, name in enumerate(self.label_names() or ())}
        tally = Tally(tokenizer.vocab, tokenizer.special.unk)
        dtype, ends = id_dtype(tokenizer.vocab), Counter[str]()
        lengths: dict[str, Counter[int]] = {}
        is_known = _has_number if self.numbers else _has_names
        known = (r for r in self.records(split, bad, meter) if is_known(r, number, bad))
        for batch in _batches(known):
            parts = to_ids(batch)
            kept = np.ones(len(batch), bool)
            for part in parts.values():
                kept &= part.lengths > 0
            for row in np.flatnonzero(~kept):
                bad(batch[row].place, "no token: there is nothing in the text, or only spaces")
            rows = np.flatnonzero(kept)
            for name, part in parts.items():
                ids, own = part.ids[part.places(rows)], part.lengths[rows]
                writer.append(name, ids.astype(dtype))
                writer.append(f"{name}_ends", np.cumsum(own) + ends[name])
                ends[name] += len(ids)
                lengths.setdefault(name, Counter()).update(own.tolist())
                tally.add(ids)
            if self.pair:
                both = np.sum([part.lengths[rows] for part in parts.values()], 0)
                lengths.setdefault("both", Counter()).update(both.tolist())
            if self.form == "labels":
                labels = [str(batch[row].label) for row in rows]
                if self.numbers:
                    writer.append("labels", np.array(labels, np.float32))
                else:
                    writer.append("labels", np.array([number[x] for x in labels], np.int32))
            if isinstance(to_ids, Words):
                tags, scored = to_ids.tags(batch, number)
                places = parts[TOKENS].places(rows)
                writer.append("tags", tags[places])
                writer.append("scored", scored[places])
            ends["rows"] += len(rows)
        if not ends["rows"]:
            raise UserError(f"{self.kind}: {split!r} has no example that can be read")
        shown = {name: sorted(counts.items()) for name, counts in lengths.items()}
        return {"rows": ends["rows"], "lengths": shown, **tally.facts(writer)}

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        entry, tokenizer = self.entry(split), self.tokenizer()
        reader = _Reader(self, entry, tokenizer)
        facts = self.facts()
        return Dataset(
            read=reader,
            count=at_most(count, entry.facts["rows"], split),
            max_length=reader.max_length,
            max_target=reader.max_target,
            lengths=reader.lengths,
            notes=(*notes(entry, split), *reader.notes(split)),
            **facts,
        )


def notes(entry: cache.Entry, split: str) -> tuple[str, ...]:
    """What was left out of an entry."""
    skipped, first = entry.facts["skipped"], entry.facts["first"]
    return (f"{split}: {skipped} bad lines left out, as {first[0]}",) if skipped else ()


def _has_names(record: Record, number: dict[str, int], bad: Bad) -> bool:
    """Whether the training split has the labels of a record."""
    for name in [*(record.tags or ()), *([] if record.label is None else [record.label])]:
        if name not in number:
            some = ", ".join(itertools.islice(number, 10)) + (", …" if len(number) > 10 else "")
            bad(record.place, f"label {name!r} is not in the training split, which has: {some}")
            return False
    return True


def _has_number(record: Record, number: dict[str, int], bad: Bad) -> bool:
    try:
        if math.isfinite(float(str(record.label))):
            return True
    except ValueError:
        pass
    bad(record.place, f"{record.label!r} is not a number")
    return False


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch, size = list[Record](), 0
    for record in records:
        batch.append(record)
        size += sum(len(part) for part in (record.text, record.second, record.target) if part)
        if size > BATCH or len(batch) > BATCH // 64:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Sentences:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, batch: Sequence[Record]) -> dict[str, Ragged]:
        fields = {TOKENS: "text", SECOND: "second", TARGET: "target"}
        parts = {}
        for name, field in fields.items():
            if getattr(batch[0], field) is not None:
                parts[name] = Ragged(
                    *self.tokenizer.encode_batch([getattr(record, field) for record in batch])
                )
        return parts


class Words:
    """Words are tokenised one by one, and each that was seen is remembered."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.known: dict[str, list[int]] = {}
        self.pieces: list[list[int]] = []  # of each word of the batch

    def __call__(self, batch: Sequence[Record]) -> dict[str, Ragged]:
        space = " " if self.tokenizer.spaced else ""
        texts = [
            space * (place > 0) + word for record in batch for place, word in enumerate(record.text)
        ]
        if len(self.known) > 1 << 20:
            self.known.clear()
        new = list(dict.fromkeys(text for text in texts if text not in self.known))
        if new:
            ids, lengths = self.tokenizer.encode_batch(new)
            special = self.tokenizer.special
            unknown = [special.eos if special.unk is None else special.unk]
            for text, pieces in zip(new, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                self.known[text] = pieces.tolist() or unknown
        self.pieces = [self.known[text] for text in texts]
        words = np.array([len(record.text) for record in batch])
        many = np.array([len(pieces) for pieces in self.pieces])
        ids = np.fromiter(itertools.chain.from_iterable(self.pieces), np.int32, many.sum())
        ends = np.cumsum(many)[np.cumsum(words) - 1]
        return {TOKENS: Ragged(ids, np.diff(ends, prepend=0))}

    def tags(
        self, batch: Sequence[Record], number: dict[str, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tag of each word at its first piece, which is scored."""
        many = np.array([len(pieces) for pieces in self.pieces])
        first = np.cumsum(many) - many
        tags, scored = np.zeros(many.sum(), np.int32), np.zeros(many.sum(), bool)
        tags[first] = [number[tag] for record in batch for tag in record.tags or ()]
        scored[first] = True
        return tags, scored


class _Reader:
    """Some rows of an entry: an array gather. Rows that are too long lose their end."""

    def __init__(self, corpus: Records, entry: cache.Entry, tokenizer: Tokenizer):
        self.corpus, self.entry, self.tokenizer = corpus, entry, tokenizer
        self.form, lengths = corpus.form, entry.facts["lengths"]
        self.wraps = tokenizer.wraps and self.form in ("labels", "tags")
        self.added = 2 * self.wraps + (SECOND in entry) * (1 + (not self.wraps))
        self.counts = {name: np.array(counts) for name, counts in lengths.items()}
        self.whole = self.counts["both" if SECOND in entry else TOKENS]
        self.max_length = int(self.whole[-1, 0]) + self.added
        if corpus.reading.max_length is not None:
            self.max_length = min(self.max_length, corpus.reading.max_length)
        if self.max_length <= self.added:
            raise UserError(f"data.max_length={self.max_length} leaves no room for a token")
        self.max_target = int(self.counts[TARGET][-1, 0]) if TARGET in entry else 0
        if self.max_target and corpus.reading.max_target is not None:
            self.max_target = min(self.max_target, corpus.reading.max_target)

    def notes(self, split: str) -> Iterator[str]:
        for key, counts, limit in (
            ("max_length", self.whole, self.max_length - self.added),
            ("max_target", self.counts.get(TARGET), self.max_target),
        ):
            if counts is not None and counts[-1, 0] > limit:
                over = counts[counts[:, 0] > limit]
                rows, lost = over[:, 1].sum(), ((over[:, 0] - limit) * over[:, 1]).sum()
                value = getattr(self, key)
                yield f"{split}: {rows} rows truncated to data.{key}={value}; {lost} tokens lost"

    def lengths(self) -> np.ndarray:
        """Of all rows, as they are read: N1, or N2 of pairs."""

        def whole(name: str) -> np.ndarray:
            return np.diff(self.entry[f"{name}_ends"][:], prepend=0)

        first_N = whole(TOKENS) + self.added
        if SECOND in self.entry:
            first_N += whole(SECOND)
        sides = [np.minimum(first_N, self.max_length)]
        if TARGET in self.entry:
            sides.append(np.minimum(whole(TARGET), self.max_target))
        return np.stack(sides, 1).astype(np.int32)

    def __call__(self, rows: np.ndarray) -> Examples:
        room = self.max_length - self.added
        labels = self.entry["labels"][rows] if self.form == "labels" else None
        begin_N, length_N = self._bounds(TOKENS, rows)
        if SECOND in self.entry:
            begin2_N, length2_N = self._bounds(SECOND, rows)
            length_N, length2_N = fitting(length_N, length2_N, room)
            first, _ = self._ragged(TOKENS, begin_N, length_N)
            second, _ = self._ragged(SECOND, begin2_N, length2_N)
            special = self.tokenizer.special
            head = [special.bos] if self.wraps else []
            tokens, part = joined([*head, first, special.sep, second, special.sep])
            segments = (part > len(head) + 1).astype(np.int32)
            return Examples(tokens=tokens, labels=labels, segments=segments)
        tokens, places = self._ragged(TOKENS, begin_N, np.minimum(length_N, room))
        tags = scored = target = None
        if self.form == "tags":
            tags, scored = self.entry["tags"][places], self.entry["scored"][places]
        if self.form == "pairs":
            begin_N, length_N = self._bounds(TARGET, rows)
            target, _ = self._ragged(TARGET, begin_N, np.minimum(length_N, self.max_target))
        if self.wraps:
            special = self.tokenizer.special
            tokens, part = joined([special.bos, tokens, special.sep])
            if tags is not None and scored is not None:
                tags, scored = _spread(tags, part == 1), _spread(scored, part == 1)
        return Examples(tokens=tokens, target=target, labels=labels, tags=tags, scored=scored)

    def _bounds(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where rows begin, and how long they are."""
        ends = self.entry[f"{name}_ends"]
        begin_N = np.where(rows > 0, ends[np.maximum(rows - 1, 0)], 0)
        return begin_N, ends[rows] - begin_N

    def _ragged(
        self, name: str, begin_N: np.ndarray, length_N: np.ndarray
    ) -> tuple[Ragged, np.ndarray]:
        """The ids from these places on, and where each stands."""
        before_N = np.cumsum(length_N) - length_N
        places = np.arange(length_N.sum()) + np.repeat(begin_N - before_N, length_N)
        return Ragged(self.entry[name][places].astype(np.int32), length_N), places


def fitting(first_N: np.ndarray, second_N: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Two lengths, cut so that their sum is at most `room`: the longer one loses first."""
    half = room // 2
    first = np.minimum(first_N, np.maximum(room - second_N, room - half))
    return first, np.minimum(second_N, room - first)


def joined(pieces: Sequence[Ragged | int]) -> tuple[Ragged, np.ndarray]:
    """Joins sequences row by row; an int is an id that every row gets.

    Also returns the index of the piece that each id comes from.
    """
    count = next(len(piece) for piece in pieces if isinstance(piece, Ragged))
    one = np.ones(count, np.int64)
    length_PN = np.stack([one if isinstance(piece, int) else piece.lengths for piece in pieces])
    lengths = length_PN.sum(0)
    start_PN = np.cumsum(length_PN, 0) - length_PN + (np.cumsum(lengths) - lengths)
    ids, index = np.zeros(lengths.sum(), np.int32), np.zeros(lengths.sum(), np.int32)
    for i, piece in enumerate(pieces):
        places = spans(start_PN[i], length_PN[i])
        ids[places] = piece if isinstance(piece, int) else piece.ids
        index[places] = i
    return Ragged(ids, lengths), index


def _spread(x: np.ndarray, where: np.ndarray) -> np.ndarray:
    out = np.zeros(where.shape, x.dtype)
    out[where] = x
    return out

"""Data sets: rows of examples, generated or read on request, and the sources that open them.

`Dataset.special` lists the special ids. In generated data 0 is padding, 1 begins and separates
sequences, 2 ends them, and the symbols of the data start at 3. `characters` and `bytes` have no
special ids.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError, pick
from tfm.data.draws import Draws, hashed, key_of, mix

PAD, BOS, EOS = 0, 1, 2
FIRST = 3  # the first id of a generated data set's own symbols
BLOCK = 4096  # rows read at a time to measure their lengths


class Special(NamedTuple):
    """Ids that stand for no part of the data.

    If `mask` is None, objectives that need a mask use the id after those of the data.
    """

    pad: int = PAD
    bos: int = BOS  # begins a sequence; [CLS]
    eos: int = EOS
    sep: int = BOS  # separates two sequences
    unk: int | None = None  # replaces text without an id
    mask: int | None = None


FORMS = {
    "text": "a sequence, each token of which follows from those before it",
    "pairs": "a source sequence and its target sequence",
    "labels": "a sequence and its class",
    "tags": "a sequence and the target tokens at some of its positions",
    "vectors": "a vector and the sequence that it encodes",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths, concatenated."""

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, x_NT: np.ndarray, valid_NT: np.ndarray | None = None) -> "Ragged":
        """Builds sequences from the rows of an array, without their padding."""
        if valid_NT is None:
            return cls(x_NT.reshape(-1), np.full(len(x_NT), x_NT.shape[1]))
        return cls(x_NT[valid_NT], np.sum(valid_NT, axis=1))

    def __len__(self) -> int:
        return len(self.lengths)

    def valid(self, length: int) -> np.ndarray:
        return np.arange(length) < self.lengths[:, None]

    def padded(self, length: int, x: np.ndarray | None = None) -> np.ndarray:
        """Returns the ids, or `x` with one value per id, as rows padded with 0 to one length."""
        x = self.ids if x is None else x
        if np.all(self.lengths == length):
            return x.reshape(-1, length)
        out_NT = np.zeros((len(self), length), x.dtype)
        out_NT[self.valid(length)] = x
        return out_NT

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Returns the indices into `ids` of some rows, in that order."""
        starts = np.cumsum(self.lengths) - self.lengths
        return spans(starts[rows], self.lengths[rows])

    def take(self, rows: np.ndarray) -> "Ragged":
        return Ragged(self.ids[self.places(rows)], self.lengths[rows])

    def sequences(self) -> list[np.ndarray]:
        """Returns the ids of each row."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1])

    def hashes(self) -> np.ndarray:
        """Hashes the ids of each row to 64 bits."""
        starts = np.cumsum(self.lengths) - self.lengths
        position = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        return mix(np.add.reduceat(hashed(hashed(0, position), self.ids), starts))


def spans(start_N: np.ndarray, length_N: np.ndarray) -> np.ndarray:
    """Concatenates the ranges from `start` to `start + length`."""
    before_N = np.cumsum(length_N) - length_N
    return np.arange(length_N.sum()) + np.repeat(start_N - before_N, length_N)


def spaced_rows(count: int, most: int) -> np.ndarray:
    """Returns `most` rows, evenly spaced, since a file may be sorted; or all, if they are fewer."""
    return np.arange(count) if count <= most else np.arange(most) * count // most


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
    """Some rows of a data set. The data set's form determines which fields are set."""

    tokens: Ragged
    target: Ragged | None = None  # pairs: the second side
    labels: np.ndarray | None = None  # labels: a class for each row
    tags: np.ndarray | None = None  # tags: the target token, or tag, for each of tokens.ids
    scored: np.ndarray | None = None  # text, tags: which of tokens.ids (or tags) count; None: all
    vectors: np.ndarray | None = None  # vectors: (N, D)
    segments: np.ndarray | None = None  # two sentences: 0 or 1 for each of tokens.ids
    # pairs, if known: for each of target.ids, the position in its row of tokens it comes from
    alignment: np.ndarray | None = None
    rows: np.ndarray | None = None  # row numbers in the data set; set by `Dataset.take`

    def take(self, rows: np.ndarray) -> "Examples":
        """Returns some of the examples, in that order."""
        places = dict.fromkeys(("tags", "scored", "segments"), self.tokens.places(rows))
        if self.alignment is not None and self.target is not None:
            places["alignment"] = self.target.places(rows)

        def take(name: str, x: Any) -> Any:
            if isinstance(x, Ragged):
                return x.take(rows)
            return None if x is None else x[places.get(name, rows)]

        return Examples(**{name: take(name, x) for name, x in vars(self).items()})

    @staticmethod
    def concatenate(batches: Sequence["Examples"]) -> "Examples":
        def concatenate(name: str) -> Any:
            xs = [getattr(batch, name) for batch in batches]
            if isinstance(xs[0], Ragged):
                ids, lengths = [x.ids for x in xs], [x.lengths for x in xs]
                return Ragged(np.concatenate(ids), np.concatenate(lengths))
            return None if xs[0] is None else np.concatenate(xs)

        return Examples(**{f.name: concatenate(f.name) for f in dataclasses.fields(Examples)})


class Best(NamedTuple):
    """The highest possible accuracy, of scored tokens and of whole examples."""

    token: float
    exact: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """One split of a data set. `read(rows)` returns the examples of any rows, in that order."""

    read: Callable[[np.ndarray], Examples]
    count: int
    form: str
    vocab: int  # number of ids, including the special ones
    max_length: int  # of tokens
    max_target: int = 0  # of the second side of a pair
    padded: bool = True  # a row may be shorter than max_length
    aligned: bool = False  # pairs: there is one target token for each token
    # text: row i + next_row continues row i; its first token is the last one of row i
    next_row: int | None = None
    classes: int | None = None  # labels: number of classes; None: labels are real numbers
    tags: int | None = None  # tags: how many there are, if they are not token ids
    label_names: tuple[str, ...] | None = None  # names of classes or tags
    special: Special = Special()
    vector: int | None = None  # vectors: their width
    best: Best | None = None  # None: unknown
    # Ways to be right without solving the task: the accuracy of each on some examples.
    shortcuts: Mapping[str, Callable[[Examples], float]] = dataclasses.field(default_factory=dict)
    bytes_per_token: float | None = None  # text: bytes of UTF-8 for each scored token
    words_per_token: float | None = None  # text
    counts: Callable[[], np.ndarray] | None = None  # how often each id is in the training split
    lengths: Callable[[], np.ndarray] | None = None  # length of each row: N1 or, for pairs, N2
    parts: Mapping[str, "Dataset"] = dataclasses.field(default_factory=dict)  # of a mixture
    target_texts: Callable[[np.ndarray], list[str]] | None = None  # pairs: as the files have them
    lost_tags: Callable[[np.ndarray], Ragged] | None = None  # of words that max_length cuts off
    pieces: tuple[str, ...] = ()  # the text of each id, if it is fixed; "" for special ids
    separator: str = " "  # between pieces
    vocabulary: str | None = None  # meaning of the ids and labels, if it depends on the files
    notes: tuple[str, ...] = ()  # messages for people: rows left out, rows truncated
    fingerprint: str = ""  # hash of name, options and files

    def __len__(self) -> int:
        return self.count

    def take(self, rows: np.ndarray) -> Examples:
        """Reads some rows and checks that they are valid."""
        rows = np.asarray(rows, np.int64)
        examples = dataclasses.replace(self.read(rows), rows=rows)
        _check(self, examples, len(rows))
        return examples

    def row_lengths(self) -> np.ndarray:
        """Returns the length of each row, N1 or, for pairs, N2; reads all rows if necessary."""
        if self.lengths is not None:
            return self.lengths()[: len(self)].astype(np.int32, copy=False)
        blocks = []
        for begin in range(0, len(self), BLOCK):
            block = self.take(np.arange(begin, min(begin + BLOCK, len(self))))
            sides = [side.lengths for side in (block.tokens, block.target) if side is not None]
            blocks.append(np.stack(sides, 1).astype(np.int32))
        return np.concatenate(blocks)


class Reading(NamedTuple):
    """Settings for reading text, which all data sets of a run share."""

    tokenizer: str | None = None  # an entry of TOKENIZERS
    max_length: int | None = None  # longer examples are truncated
    max_target: int | None = None
    bad: str = "error"  # or "skip": leave bad lines out, and count them


DEFAULT_READING = Reading()


class Source:
    """A data set that is not open yet: what an entry of DATASETS returns. Its options are valid."""

    seeded = True  # whether the seed determines the examples
    mentions: tuple[str, ...] = ()  # other entries of DATASETS that it reads

    def with_reading(self, reading: "Reading") -> "Source":
        """Returns the same data, read with these settings."""
        if reading != DEFAULT_READING:
            raise UserError(
                "its examples are ids, so data.tokenizer, max_length, max_target and bad do not "
                "apply; they are for text(train=…), table(train=…) and other files of text"
            )
        return self

    def with_vocabulary(self, vocabulary: str | None) -> "Source":
        """Returns the same data in the ids of a run's vocabulary, if the data depend on one."""
        return self

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        """Opens the first `count` rows of a split, or all. `seed` determines generated rows."""
        raise NotImplementedError

    def contents(self) -> Mapping[str, Any]:
        """Returns a hash of the file's content for each option that names a file."""
        return {}


SHARES = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}  # tenths of all possible examples
MAX_DRAWS = 2000  # attempts to draw a row that belongs to the split


class Generated(Source):
    """An endless data set. `make(draws)` returns one example for each row of `draws`; `facts`
    are fields of `Dataset`: form, vocab, max_length, …

    A hash of an example's tokens determines its split, and rows are drawn again until they belong
    to the requested split. So no two splits share an example.
    """

    def __init__(self, make: Callable[[Draws], Examples], **facts: Any):
        self.make, self.facts = make, facts

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        if count is None:
            raise UserError(f"its examples are endless; say how many for {split!r}")
        key = key_of(seed, "examples", split)

        def read(rows: np.ndarray) -> Examples:
            return self._read(split, hashed(key, rows))

        return Dataset(read=read, count=at_most(count, None, split), **self.facts)

    def _read(self, split: str, key_N: np.ndarray) -> Examples:
        """Returns, for each key, the first of its draws that belongs to the split."""
        first, end = SHARES[split]
        tries = 10 // (end - first)  # draws of a row at once; about one of them is in the split
        chosen_N, drawn = np.full(len(key_N), -1), list[Examples]()
        for start in range(0, MAX_DRAWS, tries):
            rows = np.flatnonzero(chosen_N < 0)
            key_M = hashed(key_N[rows, None], np.arange(start, start + tries)).ravel()
            drawn.append(self.make(Draws(key_M)))
            tenth_M = (drawn[-1].tokens.hashes() >> np.uint64(32)) * np.uint64(10) >> np.uint64(32)
            belongs_NM = ((tenth_M >= first) & (tenth_M < end)).reshape(len(rows), tries)
            place_N = np.arange(len(rows)) * tries + belongs_NM.argmax(1)
            before = sum(len(batch.tokens) for batch in drawn[:-1])
            chosen_N[rows] = np.where(belongs_NM.any(1), before + place_N, -1)
            if np.all(chosen_N >= 0):
                return Examples.concatenate(drawn).take(chosen_N)
        raise UserError(f"too few different examples: none of {MAX_DRAWS} draws is for {split!r}")


def at_most(count: int | None, limit: int | None, split: str) -> int:
    """Returns how many of a split's `limit` rows to use: `count`, or all if it is None."""
    count = limit if count is None else count
    if type(count) is not int or count < 1 or (limit is not None and count > limit):
        bound = "of at least 1" if limit is None else f"from 1 to {limit}, all that {split!r} has"
        raise UserError(f"{count} examples: it must be a whole number {bound}")
    return count


def whole(task: str, option: str, value: Any, least: int, most: int | None = None) -> int:
    """Checks that an option is a whole number from `least` to `most`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"{task}: {option}={value!r} must be a whole number {limit}")
    return value


def number(task: str, option: str, value: Any, above: float, below: float) -> float:
    """Checks that an option is a number strictly between two others."""
    if type(value) not in (int, float) or not above < value < below:
        raise UserError(f"{task}: {option}={value!r} must be a number between {above} and {below}")
    return float(value)


def length_range(task: str, length: Any, min_length: Any, least: int = 1) -> tuple[int, int]:
    """Returns the shortest and longest length; without `min_length` all lengths are equal."""
    whole(task, "length", length, least)
    if min_length is None:
        return length, length
    return whole(task, "min_length", min_length, least, length), length


def _check(dataset: Dataset, examples: Examples, count: int) -> None:
    """Raises if the examples of a data set, perhaps a user's, do not match its declaration."""
    pick(FORMS, dataset.form, "form")
    fields = {"pairs": "target", "labels": "labels", "tags": "tags", "vectors": "vectors"}
    for form, field in fields.items():
        if (getattr(examples, field) is not None) != (dataset.form == form):
            raise UserError(f"Examples.{field} is for the form {form!r}, and needed there")
    tokens, target, labels = examples.tokens, examples.target, examples.labels
    _check_ids("tokens", tokens, count, dataset, "max_length")
    if target is not None:
        _check_ids("target", target, count, dataset, "max_target")
        if dataset.aligned and np.any(target.lengths != tokens.lengths):
            raise UserError("aligned=True: tokens and target must have the same lengths")
    for field, shape in {
        "labels": (count,),
        "vectors": (count, dataset.vector),
        "alignment": None if target is None else target.ids.shape,
        **dict.fromkeys(("tags", "scored", "segments"), tokens.ids.shape),
    }.items():
        x = getattr(examples, field)
        if x is not None and x.shape != shape:
            raise UserError(f"Examples.{field} has shape {x.shape}, but it must be {shape}")
    if labels is not None and dataset.classes is not None:
        _check_range("labels", labels, "classes", dataset.classes)
    elif labels is not None and not np.issubdtype(labels.dtype, np.floating):
        raise UserError("Examples.labels: without classes they must be numbers such as 2.5")
    if examples.tags is not None:
        limit = "vocab" if dataset.tags is None else "tags"
        _check_range("tags", examples.tags, limit, getattr(dataset, limit))
    if examples.segments is not None:
        _check_range("segments", examples.segments, "segments", 2)
    if examples.scored is not None and examples.scored.dtype != bool:
        raise UserError(f"Examples.scored must be boolean, not {examples.scored.dtype}")


def _check_ids(field: str, ragged: Ragged, count: int, dataset: Dataset, limit: str) -> None:
    if len(ragged) != count:
        raise UserError(f"Examples.{field} has {len(ragged)} rows, but {count} were requested")
    longest, low, high = getattr(dataset, limit), ragged.lengths.min(), ragged.lengths.max()
    if high > longest or low < (1 if dataset.padded else longest):
        bound = f"{limit}={longest}" + ("" if dataset.padded else " and padded=False")
        raise UserError(f"Examples.{field} has lengths from {low} to {high}, but {bound}")
    if ragged.ids.shape != (ragged.lengths.sum(),):
        raise UserError(f"Examples.{field}: ids must be flat, with one entry per unit of length")
    _check_range(field, ragged.ids, "vocab", dataset.vocab)


def _check_range(field: str, x: np.ndarray, limit: str, below: int) -> None:
    if not np.issubdtype(x.dtype, np.integer):
        raise UserError(f"Examples.{field} must be whole numbers, not {x.dtype}")
    if x.min() < 0 or x.max() >= below:
        raise UserError(f"Examples.{field} holds {x.min()} to {x.max()}, but {limit}={below}")

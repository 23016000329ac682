"""What a data set is: rows that are made or read when they are asked for.

`Dataset.special` says which ids are special. In generated data 0 is padding, 1 begins and
separates, 2 ends, and a data set's own symbols start at 3. `characters` and `bytes` have none.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError, pick
from tfm.data.draws import Draws, hashed, key_of, mix

PAD, BOS, EOS = 0, 1, 2
FIRST = 3  # of a data set's own symbols


class Special(NamedTuple):
    """The ids with a meaning of their own, which stand for no part of the data. Where `mask` is
    None, objectives that need one take the id after those of the data."""

    pad: int = PAD
    bos: int = BOS  # begins a sequence; [CLS]
    eos: int = EOS
    sep: int = BOS  # stands between two sequences
    unk: int | None = None  # stands for what has no id
    mask: int | None = None


FORMS = {
    "text": "a sequence, each token of which follows from those before it",
    "pairs": "a sequence and the sequence that is wanted for it",
    "labels": "a sequence and its class",
    "tags": "a sequence and the tokens that are wanted at some of its positions",
    "vectors": "a vector and the sequence that it stands for",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths, one after another."""

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, x_NT: np.ndarray, valid_NT: np.ndarray | None = None) -> "Ragged":
        """The rows of an array, without their padding."""
        if valid_NT is None:
            return cls(x_NT.reshape(-1), np.full(len(x_NT), x_NT.shape[1]))
        return cls(x_NT[valid_NT], np.sum(valid_NT, axis=1))

    def __len__(self) -> int:
        return len(self.lengths)

    def valid(self, length: int) -> np.ndarray:
        return np.arange(length) < self.lengths[:, None]

    def padded(self, length: int, x: np.ndarray | None = None) -> np.ndarray:
        """The ids as rows of one length, filled up with 0; or `x`, which has a value for each."""
        x = self.ids if x is None else x
        if np.all(self.lengths == length):
            return x.reshape(-1, length)
        out_NT = np.zeros((len(self), length), x.dtype)
        out_NT[self.valid(length)] = x
        return out_NT

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where the ids of some rows stand, in that order."""
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)

    def hashes(self) -> np.ndarray:
        """64 bits for each row, which follow from its ids."""
        starts = np.cumsum(self.lengths) - self.lengths
        position = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        return mix(np.add.reduceat(hashed(hashed(0, position), self.ids), starts))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
    """Some rows of a data set. Which fields are given follows from its form."""

    tokens: Ragged
    target: Ragged | None = None  # pairs: the second side
    labels: np.ndarray | None = None  # labels: a class for each row
    tags: np.ndarray | None = None  # tags: the wanted token, or tag, for each of tokens.ids
    scored: np.ndarray | None = None  # text, tags: which of tokens.ids (or tags) count; None: all
    vectors: np.ndarray | None = None  # vectors: (N, D)
    segments: np.ndarray | None = None  # two sentences: 0 or 1 for each of tokens.ids
    # pairs, where it is known: the place in its row of tokens that each of target.ids comes from
    alignment: np.ndarray | None = None
    rows: np.ndarray | None = None  # their numbers in the data set; `Dataset.take` gives them

    def take(self, rows: np.ndarray) -> "Examples":
        """Some of the examples, in that order."""
        places = dict.fromkeys(("tags", "scored", "segments"), self.tokens.places(rows))
        if self.alignment is not None and self.target is not None:
            places["alignment"] = self.target.places(rows)

        def some(name: str, x: Any) -> Any:
            if isinstance(x, Ragged):
                return Ragged(x.ids[x.places(rows)], x.lengths[rows])
            return None if x is None else x[places.get(name, rows)]

        return Examples(**{name: some(name, x) for name, x in vars(self).items()})

    @staticmethod
    def concatenate(parts: Sequence["Examples"]) -> "Examples":
        def joined(name: str) -> Any:
            xs = [getattr(part, name) for part in parts]
            if isinstance(xs[0], Ragged):
                ids, lengths = [x.ids for x in xs], [x.lengths for x in xs]
                return Ragged(np.concatenate(ids), np.concatenate(lengths))
            return None if xs[0] is None else np.concatenate(xs)

        return Examples(**{own.name: joined(own.name) for own in dataclasses.fields(Examples)})


class Best(NamedTuple):
    """The highest accuracy that is possible, of scored tokens and of whole examples."""

    token: float
    exact: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A split of a data set. `read(rows)` gives the examples of any rows, in that order."""

    read: Callable[[np.ndarray], Examples]
    count: int
    form: str
    vocab: int  # number of ids, the special ones included
    max_length: int  # of tokens
    max_target: int = 0  # of the second side of a pair
    padded: bool = True  # a row may be shorter than that
    aligned: bool = False  # pairs: there is one target token for each token
    # text: row i + next_row goes on where row i ends, its first token being the last one of row i
    next_row: int | None = None
    classes: int | None = None  # labels; None: they are numbers, not classes
    tags: int | None = None  # tags: how many there are, where they are not token ids
    label_names: tuple[str, ...] | None = None  # of classes or tags
    special: Special = Special()
    vector: int | None = None  # vectors: their width
    best: Best | None = None  # None: nobody knows
    # Ways to be right without solving the task: the accuracy of each, on some examples.
    shortcuts: Mapping[str, Callable[[Examples], float]] = dataclasses.field(default_factory=dict)
    bytes_per_token: float | None = None  # text: of UTF-8, for each token that is scored
    words_per_token: float | None = None  # text
    counts: Callable[[], np.ndarray] | None = None  # how often each id is in the training split
    lengths: Callable[[], np.ndarray] | None = None  # of each row, N1 or, of pairs, N2
    parts: Mapping[str, "Dataset"] = dataclasses.field(default_factory=dict)  # of a mixture
    encode: Callable[[str], list[int]] | None = None
    decode: Callable[[Sequence[int] | np.ndarray], str] | None = None
    vocabulary: str | None = None  # what the ids and labels stand for, where files differ
    notes: tuple[str, ...] = ()  # what a person should know: rows left out, rows truncated
    fingerprint: str = ""  # of name, options and files

    def __len__(self) -> int:
        return self.count

    def take(self, rows: np.ndarray) -> Examples:
        rows = np.asarray(rows, np.int64)
        examples = dataclasses.replace(self.read(rows), rows=rows)
        _check(self, examples, len(rows))
        return examples


class Reading(NamedTuple):
    """How text is read: settings of `data` that are the same for all its data sets."""

    tokenizer: str | None = None  # an entry of TOKENIZERS
    max_length: int | None = None  # longer ones are truncated
    max_target: int | None = None
    bad: str = "error"  # or "skip": leave bad lines out, and count them


AS_IT_IS = Reading()


class Source:
    """What an entry of DATASETS gives. Its options are checked; no file is opened yet."""

    seeded = True  # whether the seed decides which examples there are
    mentions: tuple[str, ...] = ()  # other entries of DATASETS that it reads

    def with_reading(self, reading: "Reading") -> "Source":
        """The same data, read in another way."""
        if reading != AS_IT_IS:
            raise UserError(
                "its examples are ids, so it takes no data.tokenizer, max_length, max_target or "
                "bad; text(train=…), table(train=…) and other files of text do"
            )
        return self

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        """The first `count` rows of a split, or all. `seed` chooses which rows there are."""
        raise NotImplementedError

    def with_vocabulary(self, vocabulary: str | None) -> "Source":
        """The same data in ids of this vocabulary, where it has one of its own."""
        return self

    def contents(self) -> Mapping[str, Any]:
        """For each option that names a file, a hash of what the file holds."""
        return {}


SHARES = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}  # tenths of all possible examples
MOST_DRAWS = 2000  # of one row, before it is given up


class Generated(Source):
    """A data set without end. `make(draws)` gives one example for each row of `draws`; `facts`
    are fields of `Dataset`: form, vocab, max_length, …

    What is read decides which split an example belongs to, and a row is drawn until it belongs to
    its own. So no two splits share an example.
    """

    def __init__(self, make: Callable[[Draws], Examples], **facts: Any):
        self.make, self.facts = make, facts

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        if count is None:
            raise UserError(f"there is no end of examples; how many for {split!r}?")
        key = key_of(seed, "examples", split)

        def read(rows: np.ndarray) -> Examples:
            return self._read(split, hashed(key, rows))

        return Dataset(read=read, count=at_most(count, None, split), **self.facts)

    def _read(self, split: str, key_N: np.ndarray) -> Examples:
        """For each key, the first of its draws that belongs to the split."""
        first, end = SHARES[split]
        draws = 10 // (end - first)  # of a row at once: about one of them belongs to the split
        found, drawn = np.full(len(key_N), -1), list[Examples]()
        for start in range(0, MOST_DRAWS, draws):
            rows = np.flatnonzero(found < 0)
            key_M = hashed(key_N[rows, None], np.arange(start, start + draws)).ravel()
            drawn.append(self.make(Draws(key_M)))
            tenth_M = (drawn[-1].tokens.hashes() >> np.uint64(32)) * np.uint64(10) >> np.uint64(32)
            belongs_NM = ((tenth_M >= first) & (tenth_M < end)).reshape(len(rows), draws)
            place_N = np.arange(len(rows)) * draws + belongs_NM.argmax(1)
            before = sum(len(part.tokens) for part in drawn[:-1])
            found[rows] = np.where(belongs_NM.any(1), before + place_N, -1)
            if np.all(found >= 0):
                return Examples.concatenate(drawn).take(found)
        raise UserError(f"too few different examples: in {MOST_DRAWS} draws none is for {split!r}")


def at_most(count: int | None, most: int | None, split: str) -> int:
    """`count` rows of the `most` that a split has; None is all of them, or no limit."""
    count = most if count is None else count
    if type(count) is not int or count < 1 or (most is not None and count > most):
        limit = "of at least 1" if most is None else f"from 1 to {most}, all that {split!r} has"
        raise UserError(f"{count} examples: it must be a whole number {limit}")
    return count


def _check(dataset: Dataset, examples: Examples, count: int) -> None:
    """Raise what a data set of a user's own may get wrong."""
    pick(FORMS, dataset.form, "form")
    wanted = {"pairs": "target", "labels": "labels", "tags": "tags", "vectors": "vectors"}
    for form, field in wanted.items():
        if (getattr(examples, field) is not None) != (dataset.form == form):
            raise UserError(f"Examples.{field} is for the form {form!r}, and needed there")
    target = examples.target
    _check_ids("tokens", examples.tokens, count, dataset)
    if target is not None:
        _check_ids("target", target, count, dataset)
        if dataset.aligned and np.any(target.lengths != examples.tokens.lengths):
            raise UserError("aligned=True: tokens and target must have the same lengths")
    for field, shape in {
        "labels": (count,),
        "tags": examples.tokens.ids.shape,
        "scored": examples.tokens.ids.shape,
        "segments": examples.tokens.ids.shape,
        "vectors": (count, dataset.vector),
        "alignment": None if target is None else target.ids.shape,
    }.items():
        x = getattr(examples, field)
        if x is not None and x.shape != shape:
            raise UserError(f"Examples.{field} has shape {x.shape}, but it must be {shape}")
    if examples.labels is not None and dataset.classes is None:
        if not np.issubdtype(examples.labels.dtype, np.floating):
            raise UserError("Examples.labels: without classes they must be numbers, as 2.5")
    elif examples.labels is not None:
        _check_range("labels", examples.labels, "classes", dataset.classes or 0)
    if examples.tags is not None:
        limit = "vocab" if dataset.tags is None else "tags"
        _check_range("tags", examples.tags, limit, getattr(dataset, limit))
    if examples.segments is not None:
        _check_range("segments", examples.segments, "segments", 2)
    if examples.scored is not None and examples.scored.dtype != bool:
        raise UserError(f"Examples.scored must be boolean, not {examples.scored.dtype}")


def _check_ids(field: str, ragged: Ragged, count: int, dataset: Dataset) -> None:
    name = "max_length" if field == "tokens" else "max_target"
    longest = getattr(dataset, name)
    if len(ragged) != count:
        raise UserError(f"Examples.{field}: {len(ragged)} rows came of {count} asked for")
    shortest = 1 if dataset.padded else longest
    if ragged.lengths.max() > longest or ragged.lengths.min() < shortest:
        span = f"{ragged.lengths.min()} to {ragged.lengths.max()}"
        padded = "" if dataset.padded else " and padded=False"
        raise UserError(f"Examples.{field} has lengths from {span}, but {name}={longest}{padded}")
    if ragged.ids.shape != (ragged.lengths.sum(),):
        raise UserError(f"Examples.{field}: ids must be flat, as many as the lengths add up to")
    _check_range(field, ragged.ids, "vocab", dataset.vocab)


def _check_range(field: str, x: np.ndarray, limit: str, below: int) -> None:
    if not np.issubdtype(x.dtype, np.integer):
        raise UserError(f"Examples.{field} must be whole numbers, not {x.dtype}")
    if x.min() < 0 or x.max() >= below:
        raise UserError(f"Examples.{field} holds {x.min()} to {x.max()}, but {limit}={below}")

"""Several data sets as one, each with a weight and a prefix that names its task.

In T5, Raffel et al. 2020, every task is text to text, and a prefix distinguishes the tasks.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError, names_in
from tfm.data.corpus import Corpus, Split
from tfm.data.dataset import DEFAULT_READING, Dataset, Generated, Reading, Source
from tfm.data.files import ReadLog
from tfm.data.records import Layout, Record
from tfm.data.views import concatenated, repeated, with_prefix, with_text_labels


class Task(NamedTuple):
    """A part of a mixture."""

    text: str  # as the config spells it
    source: Source
    weight: float | None  # None: its rows are as frequent as those of the others
    prefix: str | None  # None: it has a task token, or nothing


@dataclasses.dataclass(eq=False)
class Mixture(Source):
    """Rows of all tasks. In training, rows of a task with too few for its weight are repeated, so
    that an epoch contains every row at least once and each task has its share."""

    tasks: Sequence[Task]
    tokens: bool
    as_text: bool
    fingerprint: Callable[[str, Source], str]
    reading: Reading = DEFAULT_READING
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        self.seeded = any(task.source.seeded for task in self.tasks)
        names = [names_in(task.text) + task.source.mentions for task in self.tasks]
        self.mentions = tuple(dict.fromkeys(itertools.chain.from_iterable(names)))
        text = [isinstance(task.source, Corpus) for task in self.tasks]
        if any(text) != all(text):
            raise UserError("mixture: some parts are text, which needs a tokenizer, and some ids")
        self.is_text = all(text)
        if not self.is_text and any(task.prefix for task in self.tasks):
            raise UserError("mixture: prefixes are text, but the parts are ids; tokens=True")

    def with_reading(self, reading: Reading) -> "Mixture":
        for task in self.tasks:
            task.source.with_reading(reading)  # raises if it does not apply
        return dataclasses.replace(self, reading=reading)

    def with_vocabulary(self, vocabulary: str | None) -> "Mixture":
        return dataclasses.replace(self, vocabulary=vocabulary)

    def contents(self) -> Mapping[str, Any]:
        pairs = zip(self.tasks, self._sources, strict=True)
        return {"parts": [self.fingerprint(task.text, source) for task, source in pairs]}

    @functools.cached_property
    def _texts(self) -> Corpus | None:
        """The texts of all tasks, from which one tokenizer and the labels are made."""
        if not self.is_text:
            return None
        joint = _joint_corpus(self.tasks, self.as_text, self.reading.bad)
        return joint.with_reading(self.reading).with_vocabulary(self.vocabulary)

    @functools.cached_property
    def _sources(self) -> list[Source]:
        """The parts with their readings, all with one tokenizer."""
        vocabulary = self.vocabulary if self._texts is None else self._texts.saved_vocabulary()
        sources = []
        for number, task in enumerate(self.tasks):
            taken = 1 if self.tokens else len(self._prefix(number))
            source = task.source.with_reading(self._reading(taken))
            sources.append(source if vocabulary is None else source.with_vocabulary(vocabulary))
        return sources

    def _reading(self, prefix: int) -> Reading:
        """Reduces the maximum length by that of a prefix."""
        longest = self.reading.max_length
        if longest is None or not prefix:
            return self.reading
        if longest <= prefix:
            raise UserError(f"data.max_length={longest} leaves no room beside the prefix")
        return self.reading._replace(max_length=longest - prefix)

    def _prefix(self, number: int) -> list[int]:
        """Returns the ids of a task's prefix. If words begin with a space, its last is dropped."""
        prefix = self.tasks[number].prefix
        if not prefix or self._texts is None:
            return []
        tokenizer = self._texts.tokenizer
        return tokenizer.encode(prefix.rstrip() if tokenizer.spaced else prefix)

    @property
    def tells(self) -> bool:
        """True if rows show their task, by a prefix or a token."""
        return self.tokens or any(task.prefix for task in self.tasks)

    def prefix_ids(self, number: int, vocab: int) -> list[int]:
        """Returns the ids before each row of a task; `vocab` counts the ids without task tokens."""
        return [vocab + number] if self.tokens else self._prefix(number)

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        opened = list[Dataset]()
        for task, source, share in zip(self.tasks, self._sources, self._shares(count), strict=True):
            try:
                dataset = source.open(split, share if isinstance(source, Generated) else None, seed)
            except UserError as e:
                raise UserError(f"part {task.text!r}: {e}") from e
            rows = len(dataset) if share is None else min(share, len(dataset))
            dataset = dataclasses.replace(dataset, count=rows)
            opened.append(with_text_labels(dataset) if self.as_text else dataset)
        _check_alike(opened, [task.text for task in self.tasks])
        vocab = max(dataset.vocab for dataset in opened)
        prefixes = [self.prefix_ids(number, vocab) for number in range(len(opened))]
        texts = self._texts
        if any(prefixes) and texts and texts.tokenizer.around(opened[0].form).before:
            raise UserError("mixture: a prefix would precede the token that begins a sequence")
        if any(prefixes):
            pairs = zip(prefixes, opened, strict=True)
            opened = [with_prefix(x, data, self._notes(data.notes, len(x))) for x, data in pairs]
        if self.tokens:  # one id per task, which stands for no text
            vocab, new = vocab + len(opened), ("",) * len(opened)
            opened = [
                dataclasses.replace(data, vocab=vocab, pieces=data.pieces and data.pieces + new)
                for data in opened
            ]
        weights, rows_of = [task.weight for task in self.tasks], [len(data) for data in opened]
        if split == "train" and None not in weights:
            rows_of = repeated(rows_of, [float(weight or 0) for weight in weights])
        names = [f"part {number}: {task.text}" for number, task in enumerate(self.tasks)]
        return concatenated(dict(zip(names, opened, strict=True)), rows_of, split != "train")

    def _notes(self, notes: Sequence[str], prefix: int) -> tuple[str, ...]:
        """Replaces the reduced maximum length in notes by the one that the config gives."""
        longest = self.reading.max_length
        if longest is None:
            return tuple(notes)
        reduced = f"data.max_length={longest - prefix};"
        shown = f"data.max_length={longest}, {prefix} of it for the prefix;"
        return tuple(note.replace(reduced, shown) for note in notes)

    def _shares(self, count: int | None) -> list[int | None]:
        """Returns how many of `count` rows each task contributes."""
        if count is None:
            return [None] * len(self.tasks)
        if count < len(self.tasks):
            raise UserError(f"{count} examples: there must be one for each of the parts")
        weights = np.array([1.0 if task.weight is None else task.weight for task in self.tasks])
        ends = np.round(np.cumsum(weights) / weights.sum() * count).astype(int)
        return [max(int(n), 1) for n in np.diff(ends, prepend=0)]


def _check_alike(opened: Sequence[Dataset], texts: Sequence[str]) -> None:
    """Raises if the data sets cannot be rows of one."""
    for key in ("form", "vocabulary", "classes", "label_names", "tags", "vector"):
        first, *others = (getattr(dataset, key) for dataset in opened)
        for text, value in zip(texts[1:], others, strict=True):
            if value == first:
                continue
            if key != "form":
                raise UserError(f"{text!r} and {texts[0]!r} differ in {key}")
            cure = "; labels_as_text=True writes labels as text, which makes pairs of them"
            hint = cure if {value, first} == {"pairs", "labels"} else ""
            raise UserError(f"{text!r} has {value}, and {texts[0]!r} has {first}{hint}")


def _joint_corpus(tasks: Sequence[Task], as_text: bool, on_bad: str) -> Corpus:
    """Builds a corpus of the texts of all tasks: their records, then a record with the prefix for
    each text. If labels become text, they are texts too."""
    reading = DEFAULT_READING._replace(bad=on_bad)
    corpora = [t.source.with_reading(reading) for t in tasks if isinstance(t.source, Corpus)]

    def layout() -> Layout:
        forms = {corpus.layout().form for corpus in corpora}
        settings = {"prefixes": [task.prefix for task in tasks], "as_text": as_text}
        return Layout("pairs" if as_text or len(forms) > 1 else forms.pop(), settings)

    def split(name: str) -> Split:
        splits = [corpus.split(name) for corpus in corpora]
        layouts = [corpus.layout() for corpus in corpora]

        def records(log: ReadLog) -> Iterator[Record]:
            for task, part, content in zip(tasks, splits, layouts, strict=True):
                texts, labels, place = 0, list[str](), None
                for record in part.read(log):
                    yield record
                    texts, place = texts + len(list(record.texts())), record.place
                    if as_text and content.form == "labels":
                        labels += record.names()
                if place is not None:
                    prefixes = itertools.repeat(task.prefix or "", texts if task.prefix else 0)
                    yield from (Record(place, text) for text in itertools.chain(labels, prefixes))

        parts = zip(corpora, layouts, splits, strict=True)
        digests = [(corpus.kind, dict(x.settings), part.digest) for corpus, x, part in parts]
        text = json.dumps(digests, sort_keys=True)
        size = sum(part.size for part in splits)
        return Split(hashlib.sha256(text.encode()).hexdigest(), size, records)

    return Corpus(kind="mixture", layout=layout, split=split, files=dict)


def checked(
    parts: tuple, weights: tuple, prefixes: tuple, tokens: bool
) -> Iterator[tuple[str, float | None, str | None]]:
    """Checks the options of a mixture and yields the text, weight and prefix of each part."""
    if not parts or not all(isinstance(text, str) for text in parts):
        raise UserError(f"mixture: parts={parts!r} must be data sets in quotes: ('copy', 'sort')")
    for name, values in {"weights": weights, "prefixes": prefixes}.items():
        if len(values) not in (0, len(parts)):
            raise UserError(
                f"mixture: {name}={values!r} must be one for each of {len(parts)} parts"
            )
    for weight in weights:
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise UserError(f"mixture: weights={weights!r} must be numbers above 0")
    if not all(isinstance(prefix, str) for prefix in prefixes):
        raise UserError(f"mixture: prefixes={prefixes!r} must be texts in quotes")
    if tokens and prefixes:
        raise UserError("mixture: tokens=True and prefixes: choose one of them")
    nothing = (None,) * len(parts)
    numbers = tuple(map(float, weights)) or nothing
    yield from zip(parts, numbers, prefixes or nothing, strict=True)

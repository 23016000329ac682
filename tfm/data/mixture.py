"""Several data sets as one, each with a weight and a prefix that says which task it is.

T5, Raffel et al. 2020: every task is text to text, and a prefix tells them apart.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.config.names import UserError, names_in
from tfm.data.dataset import DEFAULT_READING, Dataset, Generated, Reading, Source
from tfm.data.files import Bad, Meter
from tfm.data.formats.corpus import Corpus, Part
from tfm.data.views import after, mixed, repeated, with_text_labels


@dataclasses.dataclass(frozen=True)
class Task:
    """A part of a mixture."""

    text: str  # its spelling
    source: Source
    weight: float | None  # None: its rows come as often as those of the others
    prefix: str | None  # None: the task has a token of its own, or nothing


class Mixture(Source):
    """Rows of all tasks, one task after another. In training, a task of more weight than rows has
    its rows several times, so that an epoch has every row at least once, and each task its share.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tokens: bool,
        as_text: bool,
        fingerprint: Callable[[str, Source], str],
    ):
        self.tasks, self.tokens, self.as_text = tuple(tasks), tokens, as_text
        self.fingerprint = fingerprint
        self.reading, self.vocabulary = DEFAULT_READING, None
        self.seeded = any(task.source.seeded for task in tasks)
        names = [names_in(task.text) + task.source.mentions for task in tasks]
        self.mentions = tuple(dict.fromkeys(name for own in names for name in own))
        text = [isinstance(task.source, Corpus) for task in tasks]
        if any(text) != all(text):
            raise UserError("mixture: some parts are text, which a tokenizer reads, and some ids")
        self.is_text = all(text)
        if not self.is_text and any(task.prefix for task in tasks):
            raise UserError("mixture: prefixes are text, but the parts are ids; tokens=True")

    def with_reading(self, reading: Reading) -> "Mixture":
        for task in self.tasks:
            task.source.with_reading(reading)  # what cannot be read so is an error
        return self._with(reading=reading)

    def with_vocabulary(self, vocabulary: str | None) -> "Mixture":
        return self._with(vocabulary=vocabulary)

    def _with(self, **changes: Any) -> "Mixture":
        other = Mixture(self.tasks, self.tokens, self.as_text, self.fingerprint)
        vars(other).update({**vars(self), **changes})
        return other

    def contents(self) -> Mapping[str, Any]:
        parts = [self.fingerprint(task.text, source) for task, source in self._sources()]
        return {"parts": parts}

    def _sources(self) -> Iterator[tuple[Task, Source]]:
        """The parts as they are read, all with one tokenizer, prefixes included."""
        texts = self._texts()
        for number, task in enumerate(self.tasks):
            taken = 1 if self.tokens else len(self._prefix(texts, number))
            source = task.source.with_reading(self._reading(taken))
            vocabulary = self.vocabulary if texts is None else texts.own_vocabulary()
            yield task, source if vocabulary is None else source.with_vocabulary(vocabulary)

    def _reading(self, prefix: int) -> Reading:
        """A prefix takes its room from the text."""
        longest = self.reading.max_length
        if longest is None or not prefix:
            return self.reading
        if longest <= prefix:
            raise UserError(f"data.max_length={longest} leaves no room beside the prefix")
        return self.reading._replace(max_length=longest - prefix)

    def _texts(self) -> Corpus | None:
        if not self.is_text:
            return None
        found = _Texts(self.tasks, self.as_text).with_reading(self.reading)
        return found.with_vocabulary(self.vocabulary)

    def _prefix(self, texts: Corpus | None, number: int) -> list[int]:
        """The ids of a task's prefix. Where a word begins with its space, none is left over."""
        prefix = self.tasks[number].prefix
        if not prefix or texts is None:
            return []
        tokenizer = texts.tokenizer()
        return tokenizer.encode(prefix.rstrip() if tokenizer.spaced else prefix)

    @property
    def form(self) -> str:
        """Of its rows."""
        if self.is_text:
            return _Texts(self.tasks, self.as_text).form
        facts = next(task.source.facts for task in self.tasks)  # type: ignore[attr-defined]
        return facts["form"]

    @property
    def tells(self) -> bool:
        """Whether rows show of which task they are."""
        return self.tokens or any(task.prefix for task in self.tasks)

    def prefix_ids(self, number: int, vocab: int) -> list[int]:
        """What stands before a row of a task; `vocab`: how many ids there are without tokens of
        tasks."""
        return [vocab + number] if self.tokens else self._prefix(self._texts(), number)

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        texts = self._texts()
        opened = list[Dataset]()
        shares = self._shares(count)
        for (task, source), share in zip(self._sources(), shares, strict=True):
            try:
                whole = source.open(split, share if isinstance(source, Generated) else None, seed)
            except UserError as e:
                raise UserError(f"part {task.text!r}: {e}") from e
            few = len(whole) if share is None else min(share, len(whole))
            whole = dataclasses.replace(whole, count=few)
            opened.append(with_text_labels(whole) if self.as_text else whole)
        _check_alike(opened, [task.text for task in self.tasks])
        vocab = max(dataset.vocab for dataset in opened)
        prefixes = [
            [vocab + number] if self.tokens else self._prefix(texts, number)
            for number in range(len(opened))
        ]
        wraps = texts is not None and texts.tokenizer().wraps
        if any(prefixes) and wraps and opened[0].form in ("labels", "tags"):
            raise UserError("mixture: a prefix would stand before the token that begins a sequence")
        if any(prefixes):
            opened = [
                dataclasses.replace(after(ids, own), notes=self._notes(own.notes, len(ids)))
                for ids, own in zip(prefixes, opened, strict=True)
            ]
        if self.tokens:
            opened = [_with_tokens(one, vocab, len(opened)) for one in opened]
        weights, times = [task.weight for task in self.tasks], [len(one) for one in opened]
        if split == "train" and None not in weights:
            times = repeated(times, [float(weight or 0) for weight in weights])
        names = [f"part {number}: {task.text}" for number, task in enumerate(self.tasks)]
        return mixed(dict(zip(names, opened, strict=True)), times, parts=split != "train")

    def _notes(self, notes: Sequence[str], prefix: int) -> tuple[str, ...]:
        """What was truncated, in words of the config: the prefix counts."""
        whole = self.reading.max_length
        if whole is None:
            return tuple(notes)
        less, key = f"data.max_length={whole - prefix};", f"data.max_length={whole}"
        return tuple(note.replace(less, f"{key}, {prefix} of it for the prefix;") for note in notes)

    def _shares(self, count: int | None) -> list[int | None]:
        """How many rows each task gives, of `count`."""
        if count is None:
            return [None] * len(self.tasks)
        if count < len(self.tasks):
            raise UserError(f"{count} examples: there must be one for each of the parts")
        weights = np.array([1.0 if task.weight is None else task.weight for task in self.tasks])
        ends = np.round(np.cumsum(weights) / weights.sum() * count).astype(int)
        return [max(int(n), 1) for n in np.diff(ends, prepend=0)]


def _with_tokens(dataset: Dataset, vocab: int, more: int) -> Dataset:
    """With `more` ids after the `vocab` that there are; they stand for no text."""
    decode = dataset.decode
    if decode is None:
        return dataclasses.replace(dataset, vocab=vocab + more)

    def known(ids: Sequence[int] | np.ndarray) -> str:
        return decode([int(id_) for id_ in ids if id_ < vocab])

    return dataclasses.replace(dataset, vocab=vocab + more, decode=known)


def _check_alike(opened: Sequence[Dataset], texts: Sequence[str]) -> None:
    for key in ("form", "vocabulary", "classes", "label_names", "tags", "vector"):
        for text, one in zip(texts, opened, strict=True):
            own, first = getattr(one, key), getattr(opened[0], key)
            if own == first:
                continue
            if key == "form":
                cure = "; labels_as_text=True writes labels as text, which makes pairs of them"
                more = cure if {own, first} == {"pairs", "labels"} else ""
                raise UserError(f"{text!r} has {own}, and {texts[0]!r} has {first}{more}")
            raise UserError(f"{text!r} and {texts[0]!r} have not the same {key}")


class _Texts(Corpus):
    """The texts of all tasks: what their one tokenizer and their labels are made from."""

    kind = "mixture"

    def __init__(self, tasks: Sequence[Task], as_text: bool):
        self.tasks, self.as_text = tasks, as_text
        forms = {source.form for source in self._corpora()}
        self.form = "pairs" if as_text or len(forms) > 1 else forms.pop()

    def _corpora(self) -> list[Corpus]:
        found = [task.source for task in self.tasks]
        return [
            source.with_reading(self._alone()) for source in found if isinstance(source, Corpus)
        ]

    def _alone(self) -> Reading:
        return DEFAULT_READING._replace(bad=self.reading.bad)

    def files(self) -> Mapping[str, str]:
        return {}

    def settings(self) -> dict[str, Any]:
        prefixes = [task.prefix for task in self.tasks]
        return {"prefixes": prefixes, "as_text": self.as_text}

    def part(self, split: str) -> Part:
        parts = [(own.kind, own.settings(), own.part(split)) for own in self._corpora()]
        text = json.dumps([(kind, more, part.digest) for kind, more, part in parts], sort_keys=True)
        size = sum(part.size for _, _, part in parts)
        return Part(hashlib.sha256(text.encode()).hexdigest(), size)

    def texts(self, bad: Bad, meter: Meter) -> Iterator[str]:
        """A prefix stands before every row, and counts as often."""
        for task, source in zip(self.tasks, self._corpora(), strict=True):
            count = 0
            for text in source.texts(bad, meter):
                yield text
                count += 1
            if self.as_text and source.form == "labels":
                yield from source.names(bad, meter)
            for _ in range(count if task.prefix else 0):
                yield str(task.prefix)

    def names(self, bad: Bad, meter: Meter) -> Iterator[str]:
        for source in self._corpora():
            yield from source.names(bad, meter)


def checked(
    parts: tuple, weights: tuple, prefixes: tuple, tokens: bool
) -> Iterator[tuple[str, float | None, str | None]]:
    """The text, weight and prefix of each part of a mixture, as its options give them."""
    if not parts or not all(isinstance(text, str) for text in parts):
        raise UserError(f"mixture: parts={parts!r} must be data sets in quotes: ('copy', 'sort')")
    for name, given in {"weights": weights, "prefixes": prefixes}.items():
        if given and len(given) != len(parts):
            raise UserError(f"mixture: {name}={given!r} must be one for each of {len(parts)} parts")
    for weight in weights:
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise UserError(f"mixture: weights={weights!r} must be numbers above 0")
    if not all(isinstance(prefix, str) for prefix in prefixes):
        raise UserError(f"mixture: prefixes={prefixes!r} must be texts in quotes")
    if tokens and prefixes:
        raise UserError("mixture: tokens=True and prefixes: choose one of them")
    for number, text in enumerate(parts):
        weight = float(weights[number]) if weights else None
        yield text, weight, prefixes[number] if prefixes else None

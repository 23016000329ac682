"""Text that a tokenizer turns into ids: what all such data sets share.

The tokenizer and the names of labels come from the training split alone, or from a run's
vocabulary: then an evaluation uses the ids that the run was trained with.
"""

import contextlib
import copy
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError, canonical, pick, read
from tfm.config.spec import Named
from tfm.data import cache
from tfm.data.dataset import DEFAULT_READING, Reading, Source
from tfm.data.files import Bad, Meter, progress
from tfm.data.tokenizers import TOKENIZERS
from tfm.data.tokenizers.tokenizer import Tokenizer, loads

HOW_BAD = {
    "error": "a bad line is an error",
    "skip": "bad lines are left out, and counted",
}


class Part(NamedTuple):
    """What a split is read from: a hash of what it holds, and its bytes on disk."""

    digest: str
    size: int


class Corpus(Source):
    """The base of data sets of text."""

    seeded = False
    kind: str  # the entry of DATASETS
    form: str
    numbers = False  # labels: they are numbers, not names of classes
    reading: Reading = DEFAULT_READING
    vocabulary: str | None = None

    def part(self, split: str) -> Part:
        """What a split is read from; an error if there is no such split."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The options that decide what is read from the files."""
        return {}

    def texts(self, bad: Bad, meter: Meter) -> Iterator[str]:
        """The training split, for a tokenizer to learn from."""
        raise NotImplementedError

    def names(self, bad: Bad, meter: Meter) -> Iterator[str]:
        """The labels or tags of the training split, for those that have them."""
        return iter(())

    def write(self, split: str, writer: cache.Writer, bad: Bad, meter: Meter) -> dict[str, Any]:
        """Tokenise a split into the columns of a new entry of the cache, and give its facts."""
        raise NotImplementedError

    def files(self) -> Mapping[str, str]:
        """For each option that names a file, a hash of what the file holds."""
        raise NotImplementedError

    def with_reading(self, reading: Reading) -> "Corpus":
        pick(HOW_BAD, reading.bad, "data.bad")
        other = copy.copy(self)
        other.reading = reading
        return other

    def with_vocabulary(self, vocabulary: str | None) -> "Corpus":
        other = copy.copy(self)
        other.vocabulary = vocabulary
        return other

    def contents(self) -> Mapping[str, str]:
        changed = zip(Reading._fields, self.reading, DEFAULT_READING, strict=True)
        more = {f"data.{name}": repr(own) for name, own, default in changed if own != default}
        return {**self.files(), **more, "data.tokenizer": self.tokenizer().digest}

    def tokenizer(self) -> Tokenizer:
        if self.vocabulary is not None:
            return loads(json.dumps(_known(self.vocabulary)["tokenizer"]))
        text = self.reading.tokenizer
        if text is None:
            raise UserError(
                f"{self.kind} is text, which needs a tokenizer: data.tokenizer='bpe(vocab=8000)', "
                f"or another of {', '.join(TOKENIZERS)}"
            )
        maker = text.entry if isinstance(text, Named) else read(text, TOKENIZERS, "tokenizer")

        def make() -> Tokenizer:
            if not maker.learns:
                return maker.make(iter(()))
            with progress(f"learning {text}", self.part("train").size) as meter:
                return maker.make(self.texts(Bad(self.reading.bad), meter))

        if not maker.make.__module__.startswith("tfm."):  # a user's own, whose code may change
            return make()

        def build(writer: cache.Writer) -> dict[str, Any]:
            tokenizer = make()
            writer.append("tokenizer", np.frombuffer(tokenizer.dumps.encode(), np.uint8))
            return {"vocab": tokenizer.vocab}

        spelled = canonical(text, TOKENIZERS)
        source = self._key("train") if maker.learns else maker.files()
        about = {"what": "tokenizer", "dataset": self.kind, "tokenizer": spelled}
        found = cache.entry(cache.key_of(tokenizer=spelled, source=source), about, build)
        return loads(found["tokenizer"][:].tobytes().decode())

    def label_names(self) -> tuple[str, ...] | None:
        """The names of classes or tags, by their number: sorted, numbers by their value."""
        if self.form not in ("labels", "tags") or self.numbers:
            return None
        known = None if self.vocabulary is None else _known(self.vocabulary)["labels"]
        if known is not None:
            return tuple(known)

        def build(writer: cache.Writer) -> dict[str, Any]:
            with progress(f"labels of {self.kind}", self.part("train").size) as meter:
                found = set(self.names(Bad(self.reading.bad), meter))
            if not found:
                raise UserError(f"{self.kind}: the training split has no labels")
            whole = all(name.removeprefix("-").isdecimal() for name in found)
            return {"labels": sorted(found, key=lambda name: (int(name) if whole else 0, name))}

        about = {"what": "labels", "dataset": self.kind}
        key = cache.key_of(labels=self._key("train"))
        return tuple(cache.entry(key, about, build).facts["labels"])

    def own_vocabulary(self) -> str:
        """What the ids and labels stand for, as it goes with a run."""
        if self.vocabulary is not None:
            return self.vocabulary
        return vocabulary_of(self.tokenizer(), self.label_names())

    def entry(self, split: str) -> cache.Entry:
        """The tokens of a split, from the cache; they are made if they are not there."""
        before = self.part(split)

        def build(writer: cache.Writer) -> dict[str, Any]:
            bad = Bad(self.reading.bad)
            with progress(f"tokenising {self.kind}, {split}", before.size) as meter:
                facts = self.write(split, writer, bad, meter)
            if self.part(split) != before:
                raise UserError(f"{self.kind}: the files of {split!r} were edited while being read")
            return {**facts, "skipped": bad.count, "first": bad.first}

        tokenizer, labels = self.tokenizer(), self.label_names()
        key = cache.key_of(
            split=self._key(split), tokenizer=tokenizer.digest, labels=labels, form=self.form
        )
        by = "of a run" if self.vocabulary is not None else str(self.reading.tokenizer)
        about = {"what": "tokens", "dataset": self.kind, "split": split, "tokenizer": by}
        return cache.entry(key, about, build)

    def _key(self, split: str) -> dict[str, Any]:
        own = {"kind": self.kind, "part": self.part(split).digest, "bad": self.reading.bad}
        return {**own, "settings": self.settings()}

    def facts(self) -> dict[str, Any]:
        """The fields of a `Dataset` that all corpora have."""
        tokenizer, names = self.tokenizer(), self.label_names()
        facts: dict[str, Any] = {
            "form": self.form,
            "vocab": tokenizer.vocab,
            "special": tokenizer.special,
            "encode": tokenizer.encode,
            "decode": tokenizer.decode,
            "label_names": names,
            "vocabulary": self.own_vocabulary(),
        }
        with contextlib.suppress(UserError):  # there is no training split
            self.part("train")
            facts["counts"] = lambda: self.entry("train")["counts"][:]
        if names is not None:
            facts["classes" if self.form == "labels" else "tags"] = len(names)
        return facts


@functools.lru_cache(maxsize=16)
def vocabulary_of(tokenizer: Tokenizer, labels: tuple[str, ...] | None) -> str:
    """What ids and labels stand for, as JSON."""
    tree = {"tokenizer": json.loads(tokenizer.dumps), "labels": labels}
    return json.dumps(tree, ensure_ascii=False, sort_keys=True)


def tokenizer_of(vocabulary: str | None) -> Tokenizer | None:
    """The tokenizer of a run, if its vocabulary has one."""
    if vocabulary is None or not vocabulary.startswith("{"):
        return None
    try:
        return loads(json.dumps(_known(vocabulary)["tokenizer"]))
    except UserError:
        return None


def labels_of(vocabulary: str | None) -> tuple[str, ...] | None:
    """The names of a run's classes or tags, by their number, if its vocabulary has them."""
    if vocabulary is None or not vocabulary.startswith("{"):
        return None
    try:
        names = _known(vocabulary)["labels"]
    except UserError:
        return None
    return None if names is None else tuple(names)


def meaning_of_ids(vocabulary: str | None) -> str | None:
    """What the token ids of a vocabulary stand for, whatever its labels are."""
    tokenizer = tokenizer_of(vocabulary)
    return vocabulary if tokenizer is None else tokenizer.digest


@functools.lru_cache(maxsize=16)
def _known(vocabulary: str) -> dict[str, Any]:
    try:
        tree = json.loads(vocabulary)
        if isinstance(tree, dict) and {"tokenizer", "labels"} <= tree.keys():
            return tree
    except ValueError:
        pass
    raise UserError("the model has no tokenizer: it was trained on ids, or on characters")


def id_dtype(vocab: int) -> Any:
    """The smallest type that holds all ids."""
    return np.uint16 if vocab <= 1 << 16 else np.int32


class Tally:
    """Counts ids while they are written."""

    def __init__(self, vocab: int, unk: int | None):
        self.counts, self.unk = np.zeros(vocab, np.int64), unk

    def add(self, ids: np.ndarray) -> None:
        self.counts += np.bincount(ids, minlength=len(self.counts))

    def facts(self, writer: cache.Writer) -> dict[str, Any]:
        writer.append("counts", self.counts)
        unknown = 0 if self.unk is None else int(self.counts[self.unk])
        return {"tokens": int(self.counts.sum()), "unknown": unknown}

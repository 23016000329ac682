"""Text corpora: a format reads records from files, a tokenizer turns them into ids.

Everything that formats share is here: tokenizing into the cache, labels, held-out records. The
tokenizer and the label names come from the training split alone, or from the vocabulary of a run:
then an evaluation uses the ids that the run was trained with.
"""

import contextlib
import dataclasses
import functools
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError, canonical, pick, read
from tfm.config.spec import Named
from tfm.data import cache
from tfm.data.dataset import DEFAULT_READING, Dataset, Reading, Source, number
from tfm.data.files import ON_BAD, ReadLog, digest, find, progress
from tfm.data.records import Layout, Record, open_records, write_records
from tfm.data.tokenizers import TOKENIZERS
from tfm.data.tokenizers.tokenizer import Tokenizer, loads, parsed_vocabulary, vocabulary_of
from tfm.data.windows import Windows, open_stream, write_stream


class Split(NamedTuple):
    """The content of one split."""

    digest: str  # hash of the content
    size: int  # bytes on disk
    read: Callable[[ReadLog], Iterator[Record]]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Corpus(Source):
    """Files of text. `split(name)` raises if there is no such split."""

    kind: str  # the entry of DATASETS
    layout: Callable[[], Layout]
    split: Callable[[str], Split]
    files: Callable[[], Mapping[str, str]]  # a hash of the content per option that names a file
    windows: Windows | None = None  # the records are one stream of text; None: they are separate
    reading: Reading = DEFAULT_READING
    vocabulary: str | None = None  # that of a run

    seeded = False

    @property
    def eos(self) -> bool | None:
        """True if an end id follows each line of a stream; None if the records are separate."""
        return None if self.windows is None else self.windows.eos

    def with_reading(self, reading: Reading) -> "Corpus":
        pick(ON_BAD, reading.bad, "data.bad")
        for name in () if self.windows is None else ("length", "eval_length"):
            length = getattr(self.windows, name)
            if None not in (length, reading.max_length) and reading.max_length < length + 1:
                raise UserError(
                    f"data.max_length={reading.max_length} would cut windows of {name}={length}, "
                    f"which have {length + 1} tokens: write another {name}"
                )
        return dataclasses.replace(self, reading=reading)

    def with_vocabulary(self, vocabulary: str | None) -> "Corpus":
        return dataclasses.replace(self, vocabulary=vocabulary)

    def contents(self) -> Mapping[str, str]:
        changed = zip(Reading._fields, self.reading, DEFAULT_READING, strict=True)
        settings = {f"data.{key}": repr(x) for key, x, default in changed if x != default}
        return {**self.files(), **settings, "data.tokenizer": self.tokenizer.digest}

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run's vocabulary, or one that learned from the training split."""
        if self.vocabulary is not None:
            return parsed_vocabulary(self.vocabulary)[0]
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
            train = self.split("train")
            with progress(f"learning {text}", train.size, self.reading.bad) as log:
                return maker.make(part for record in train.read(log) for part in record.texts())

        if not maker.make.__module__.startswith("tfm."):  # a user's, whose code may change
            return make()

        def build(writer: cache.Writer) -> dict[str, Any]:
            tokenizer = make()
            writer.append("tokenizer", np.frombuffer(tokenizer.dumps.encode(), np.uint8))
            return {"vocab": tokenizer.vocab}

        name = canonical(text, TOKENIZERS)
        source = self._key("train") if maker.learns else maker.files()
        about = {"what": "tokenizer", "dataset": self.kind, "tokenizer": name}
        entry = cache.entry(cache.key_of(tokenizer=name, source=source), about, build)
        return loads(entry["tokenizer"][:].tobytes().decode())

    @functools.cached_property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of classes or tags, by number: sorted, and by value if they are numbers."""
        layout = self.layout()
        if layout.form not in ("labels", "tags") or layout.numeric:
            return None
        vocabulary = self.vocabulary
        known = layout.label_names if vocabulary is None else parsed_vocabulary(vocabulary)[1]
        if known is not None:
            return known

        def build(writer: cache.Writer) -> dict[str, Any]:
            train = self.split("train")
            with progress(f"labels of {self.kind}", train.size, self.reading.bad) as log:
                names = {name for record in train.read(log) for name in record.names()}
            if not names:
                raise UserError(f"{self.kind}: the training split has no labels")
            numeric = all(name.removeprefix("-").isdecimal() for name in names)
            return {"labels": sorted(names, key=lambda name: (int(name) if numeric else 0, name))}

        about = {"what": "labels", "dataset": self.kind}
        key = cache.key_of(labels=self._key("train"))
        return tuple(cache.entry(key, about, build).facts["labels"])

    def saved_vocabulary(self) -> str:
        """Returns the meaning of the ids and labels, as it is saved with a run."""
        if self.vocabulary is not None:
            return self.vocabulary
        return vocabulary_of(self.tokenizer, self.label_names)

    def entry(self, split: str) -> cache.Entry:
        """Returns the tokens of a split from the cache, or tokenizes it."""
        source, layout = self.split(split), self.layout()

        def build(writer: cache.Writer) -> dict[str, Any]:
            title = f"tokenizing {self.kind}, {split}"
            with progress(title, source.size, self.reading.bad) as log:
                records = source.read(log)
                if self.windows is not None:
                    facts = write_stream(records, self.windows.eos, tokenizer, writer)
                else:
                    names = self.label_names or ()
                    facts = write_records(records, layout, tokenizer, names, writer, log)
            if not facts["tokens"]:
                raise UserError(f"{self.kind}: {split!r} has no example that can be read")
            if self.split(split)[:2] != source[:2]:
                raise UserError(f"{self.kind}: the files of {split!r} were edited while being read")
            return {**facts, "skipped": log.count, "first": log.first, "notes": log.notes}

        tokenizer = self.tokenizer
        key = cache.key_of(
            split=self._key(split),
            tokenizer=tokenizer.digest,
            labels=self.label_names,
            form=layout.form,
            **({"target_texts": True} if layout.form == "pairs" else {}),
        )
        origin = "of a run" if self.vocabulary is not None else str(self.reading.tokenizer)
        about = {"what": "tokens", "dataset": self.kind, "split": split, "tokenizer": origin}
        return cache.entry(key, about, build)

    def _key(self, split: str) -> dict[str, Any]:
        """Returns what determines the records of a split, as a part of the cache's keys."""
        content, settings = self.split(split).digest, dict(self.layout().settings)
        return {"kind": self.kind, "part": content, "bad": self.reading.bad, "settings": settings}

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        entry, layout, tokenizer = self.entry(split), self.layout(), self.tokenizer
        facts: dict[str, Any] = {
            "form": layout.form,
            "vocab": tokenizer.vocab,
            "special": tokenizer.special,
            "label_names": self.label_names,
            "vocabulary": self.saved_vocabulary(),
        }
        with contextlib.suppress(UserError):  # there is no training split
            self.split("train")
            facts["counts"] = lambda: self.entry("train")["counts"][:]
        if self.label_names is not None:
            facts["classes" if layout.form == "labels" else "tags"] = len(self.label_names)
        if self.windows is not None:
            dataset = open_stream(entry, self.windows, split, count, **facts)
        else:
            dataset = open_records(entry, layout, tokenizer, self.reading, split, count, **facts)
        notes = *dataset.notes, *entry.facts.get("notes", ()), *self._warnings(split)
        return dataclasses.replace(dataset, notes=notes)

    def _warnings(self, split: str) -> Iterator[str]:
        """Yields what is probably a mistake."""
        if split == "train" and self.label_names is not None and len(self.label_names) == 1:
            yield f"train: there is a single class, {self.label_names[0]!r}: nothing can be learned"
        with contextlib.suppress(UserError):  # there is no training split
            if split != "train" and self.split(split).digest == self.split("train").digest:
                yield f"{split}: it is the file of the training split, so scores are too good"


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """The files of each split: a name per split, with one or more suffixes. If `valid` is a
    number, that share of the training split is held out."""

    kind: str
    names: Mapping[str, str | float]
    suffixes: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        if not isinstance(self.names["valid"], str):
            number(self.kind, "valid", self.names["valid"], 0, 1)

    def paths(self, split: str) -> list[pathlib.Path]:
        """Finds the files of a split; each may be compressed, with .gz after its name."""
        key = split if isinstance(self.names[split], str) else "train"
        if not self.names[key]:
            raise UserError(f"{self.kind}: there is no {key!r} split: write {key}=… for its file")
        names = [f"{self.names[key]}{suffix}" for suffix in self.suffixes]
        return [find(self.kind, name, or_gz=True) for name in names]

    def share(self, split: str) -> float | None:
        """Returns the share of the training file that is held out of it for validation."""
        share = self.names["valid"]
        return share if isinstance(share, float) and split != "test" else None

    def digests(self) -> dict[str, str]:
        named = [split for split, name in self.names.items() if name and isinstance(name, str)]
        return {split: " ".join(map(digest, self.paths(split))) for split in named}


def corpus_of_files(
    kind: str,
    layout: Layout,
    read: Callable[[Sequence[pathlib.Path], ReadLog], Iterator[Record]],
    names: Mapping[str, str | float],
    suffixes: Sequence[str] = ("",),
) -> Corpus:
    """Builds a corpus from a format: `read(paths, log)` yields the records of a split's files.

    If `valid` is a share, a hash of a record's text determines whether it is held out, so no
    sentence is in both splits.
    """
    files = SplitFiles(kind, names, suffixes)

    def split(name: str) -> Split:
        paths, share = files.paths(name), files.share(name)

        def records(log: ReadLog) -> Iterator[Record]:
            for record in read(paths, log):
                if share is not None:
                    held_out = zlib.crc32(next(record.texts()).encode()) < share * 2**32
                    if held_out != (name == "valid"):
                        continue
                yield record

        suffix = "" if share is None else f" {name} {share}"
        size = sum(path.stat().st_size for path in paths)
        return Split(" ".join(map(digest, paths)) + suffix, size, records)

    return Corpus(kind=kind, layout=lambda: layout, split=split, files=files.digests)

"""Files of plain text: one stream of tokens, characters or bytes in windows."""

import codecs
import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tfm.config.names import UserError, pick
from tfm.data.corpus import Corpus, Split, SplitFiles
from tfm.data.dataset import Dataset, Source, number, whole
from tfm.data.files import Place, ReadLog, decoded, digest, find, open_file, raw_lines
from tfm.data.records import Layout, Record
from tfm.data.windows import Windows, cut

BLOCK = 1 << 13  # characters of a block, about
LONG = 1 << 22  # bytes of a line that are read at once


class Span(NamedTuple):
    """A part of a file, in bytes of its uncompressed text; `end` None: to the end."""

    path: pathlib.Path
    begin: int = 0
    end: int | None = None
    lines: int = 0  # lines before it


def text(
    length: int,
    train: str = "",
    valid: str | float = 0.1,
    test: str = "",
    stride: int = 1,
    eos: bool = False,
    eval_length: int | None = None,
) -> Source:
    """Files of plain text (or .gz), as one stream of tokens in windows of `length`.

    Training windows begin at every `stride`-th token. Those of validation and test do not overlap,
    so each token is scored once, the first one after `bos`; their length is `eval_length`, if set:
    in longer windows, more tokens have a long context. `valid` is a file, or the share at
    the end of the training file that is held out. With `eos`, an end id follows each line.
    """
    whole("text", "length", length, 1)
    whole("text", "stride", stride, 1)
    if eval_length is not None:
        whole("text", "eval_length", eval_length, 1)
    files = SplitFiles("text", {"train": train, "valid": valid, "test": test})

    def split(name: str) -> Split:
        (path,), share = files.paths(name), files.share(name)
        span = Span(path)
        if share is not None:
            end, lines = _held_out(path, share, digest(path))
            span = Span(path, 0, end) if name == "train" else Span(path, end, None, lines)
        size = path.stat().st_size
        if path.suffix != ".gz":
            size = (size if span.end is None else span.end) - span.begin

        def records(log: ReadLog) -> Iterator[Record]:
            lines = read_lines(span, log)
            return lines if eos else blocks(lines)

        return Split(f"{digest(path)} {span.begin} {span.end}", size, records)

    return Corpus(
        kind="text",
        layout=lambda: Layout("text", {"eos": eos}),
        split=split,
        files=files.digests,
        windows=Windows(length, stride, eval_length, eos),
    )


@functools.lru_cache(maxsize=64)
def _held_out(path: pathlib.Path, share: float, _: str) -> tuple[int, int]:
    """Returns where the last share of a text begins, at a line if possible, and the number of
    lines before it."""
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        place = int(size * (1 - share))
        file.seek(place)
        file.readline()
        begin = file.tell()
        if begin >= size:  # one long line: begin between two characters
            file.seek(place)
            begin = place + next((i for i, b in enumerate(file.read(4)) if b & 0xC0 != 0x80), 0)
        if not 0 < begin < size:
            raise UserError(f"text: {path} is too short to hold out valid={share} of it")
        file.seek(0)
        sizes = [min(LONG, begin - start) for start in range(0, begin, LONG)]
        return begin, sum(file.read(size).count(b"\n") for size in sizes)


def read_lines(span: Span, log: ReadLog) -> Iterator[Record]:
    """Yields lines with their ends; a very long line is split into several records."""
    line, rest = span.lines + 1, b""
    end = sys.maxsize if span.end is None else span.end
    for part in raw_lines(span.path, log, span.begin, end, LONG):
        content = rest + part
        size = codecs.utf_8_decode(content, "ignore", False)[1]  # without an incomplete character
        content, rest = content[:size], content[size:]
        place = Place(str(span.path), line)
        text = decoded(content, place, log)
        line += content.endswith(b"\n")
        if text:
            yield Record(place, text)
    if rest:
        decoded(rest, Place(str(span.path), line), log)


def blocks(lines: Iterator[Record]) -> Iterator[Record]:
    """Joins lines to blocks that are tokenized separately.

    Blocks end where the rules of GPT-2 and tiktoken give the same tokens as for the whole text:
    after a single line end between words, or before a line that begins with one space.
    """
    block, size, place, last = list[str](), 0, Place("", 0), ""
    for record in lines:
        line = str(record.text)
        safe = (last[-1:] == "\n" and line[:1] == " " and line[1:2].strip()) or (
            last[-1:] == "\n" and last[-2:-1].strip() and line[:1].strip()
        )
        if size > BLOCK and (safe or size > LONG // 16):
            yield Record(place, "".join(block))
            block, size = [], 0
        place = place if block else record.place
        block.append(line)
        size += len(line)
        last = line
    if block:
        yield Record(place, "".join(block))


class Ids(NamedTuple):
    """A file as ids."""

    ids: np.ndarray
    digest: str  # of the file
    pieces: tuple[str, ...] = ()  # the character that each id stands for; (): ids are bytes


@functools.lru_cache(maxsize=4)
def _read(kind: str, path: pathlib.Path, vocabulary: str | None, changed: int, size: int) -> Ids:
    """Reads a file, again only if its time or size changed. It stays in memory, so that later
    reads see what was hashed, even if the file is edited meanwhile."""
    if not size:
        raise UserError(f"{kind}: {path} is empty")
    raw = np.fromfile(path, np.uint8)
    digest = hashlib.sha256(raw.data).hexdigest()
    if kind == "bytes":
        return Ids(raw, digest)
    try:
        text = raw.tobytes().decode()
    except UnicodeDecodeError as e:
        raise UserError(
            f"characters: {path} is not UTF-8 text: byte {e.start} is 0x{raw[e.start]:02x}; "
            "write bytes(path=…), which reads any file"
        ) from None
    code_N = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known = np.zeros(0x110000, bool)
    known[code_N if vocabulary is None else [ord(c) for c in vocabulary]] = True
    code_V, unknown = np.flatnonzero(known), np.flatnonzero(~known[code_N])
    if unknown.size:
        count, place = len(np.unique(code_N[unknown])), int(unknown[0])
        raise UserError(
            f"characters: {path} holds {count} characters that the model does not know, for "
            f"example {text[place]!r} at character {place}; only bytes(path=…) knows all"
        )
    id_of = (np.cumsum(known) - 1).astype(np.min_scalar_type(len(code_V)))
    return Ids(id_of[code_N], digest, tuple(map(chr, code_V)))


@dataclasses.dataclass(frozen=True, eq=False)
class IdFile(Source):
    """Windows of a file of characters or bytes; its end is held out for validation."""

    kind: str
    path: str
    length: int
    valid: float
    vocabulary: str | None = None  # the characters of a run

    seeded = False

    def __post_init__(self) -> None:
        whole(self.kind, "length", self.length, 1)
        number(self.kind, "valid", self.valid, 0, 1)
        if not self.path:
            raise UserError(f"{self.kind}: path={self.path!r} must be the name of a file")

    def with_vocabulary(self, vocabulary: str | None) -> Source:
        return dataclasses.replace(self, vocabulary=vocabulary)

    def contents(self) -> Mapping[str, str]:
        return {"path": self._file().digest}

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        ids, _, pieces = self._file()
        total = len(ids)
        valid = math.ceil(round(total * self.valid, 6))
        train = total - valid
        if train <= self.length:
            raise UserError(
                f"{self.kind}: length={self.length} is too much for {self.path}: {train} of its "
                f"{total} tokens are for training, and a window has one more than its length"
            )
        if valid < 2:
            raise UserError(
                f"{self.kind}: valid={self.valid} leaves {valid} of {total} tokens of {self.path}"
            )
        ids = pick({"train": ids[:train], "valid": ids[train:]}, split, "split")
        size_V = np.array([len(piece.encode()) for piece in pieces] or [1] * 256, np.uint8)
        return cut(
            ids.__getitem__,
            len(ids),
            Windows(self.length),
            split,
            count,
            form="text",
            vocab=len(size_V),
            bytes_per_token=float(size_V[ids[1:]].mean()),  # of the scored tokens
            pieces=pieces,
            separator="",
            vocabulary="".join(pieces) or None,
        )

    def _file(self) -> Ids:
        path = find(self.kind, self.path)
        info = path.stat()
        return _read(self.kind, path, self.vocabulary, info.st_mtime_ns, info.st_size)


def characters(path: str, length: int, valid: float = 0.1) -> Source:
    """The characters of a UTF-8 file; the vocabulary is all that the file holds, sorted.

    The first 1 − `valid` of it is for training, in windows at every offset; the rest is for
    validation, in windows that do not overlap, so each token but the first is scored once.
    """
    return IdFile("characters", path, length, valid)


def raw_bytes(path: str, length: int, valid: float = 0.1) -> Source:
    """The bytes of any file, 256 of them; split like `characters`.  Xue et al. 2022 (ByT5)."""
    return IdFile("bytes", path, length, valid)


DATASETS: dict[str, Callable[..., Source]] = {
    "characters": characters,
    "bytes": raw_bytes,
    "text": text,
}

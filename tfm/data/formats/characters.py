"""Text files read by character or by byte, without a tokenizer."""

import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from tfm.config.names import UserError, pick
from tfm.data.dataset import Dataset, Source, number, whole
from tfm.data.files import find
from tfm.data.windows import Windows, cut


class Text(NamedTuple):
    """A file as ids. `size(part)` is the number of bytes of a slice of them."""

    ids: np.ndarray
    digest: str  # of the file
    vocab: int
    size: Callable[[slice], int]
    pieces: tuple[str, ...] = ()  # the character that each id stands for


def _characters(name: str, raw: np.ndarray, digest: str, vocabulary: str | None) -> Text:
    try:
        text = raw.tobytes().decode()
    except UnicodeDecodeError as e:
        raise UserError(
            f"characters: {name} is not UTF-8 text: byte {e.start} is 0x{raw[e.start]:02x}; "
            "write bytes(path=…), which reads any file"
        ) from None
    code_N = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known = np.zeros(0x110000, bool)
    known[code_N if vocabulary is None else [ord(c) for c in vocabulary]] = True
    code_V, unknown = np.flatnonzero(known), np.flatnonzero(~known[code_N])
    if unknown.size:
        count, place = len(np.unique(code_N[unknown])), int(unknown[0])
        raise UserError(
            f"characters: {name} holds {count} characters that the model does not know, for "
            f"example {text[place]!r} at character {place}; only bytes(path=…) knows all"
        )
    id_of = (np.cumsum(known) - 1).astype(np.min_scalar_type(len(code_V)))
    pieces = tuple(map(chr, code_V))
    return Text(id_of[code_N], digest, len(pieces), lambda part: len(text[part].encode()), pieces)


@functools.lru_cache(maxsize=4)
def _read(kind: str, path: pathlib.Path, vocabulary: str | None, changed: int, size: int) -> Text:
    """Reads a file, again only if its time or size changed. It stays in memory, so that later
    reads see what was hashed, even if the file is edited meanwhile."""
    if not size:
        raise UserError(f"{kind}: {path} is empty")
    raw = np.fromfile(path, np.uint8)
    digest = hashlib.sha256(raw.data).hexdigest()
    if kind == "bytes":
        return Text(raw, digest, 256, lambda part: len(raw[part]))
    return _characters(str(path), raw, digest, vocabulary)


@dataclasses.dataclass(frozen=True, eq=False)
class TextFile(Source):
    """Windows of a file; the end of the file is held out for validation."""

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
        return {"path": self._text().digest}

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        text = self._text()
        total = len(text.ids)
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
        parts = {"train": slice(0, train), "valid": slice(train, total)}
        part = pick(parts, split, "split")
        ids, scored = text.ids[part], slice(part.start + 1, part.stop)
        return cut(
            ids.__getitem__,
            len(ids),
            Windows(self.length),
            split,
            count,
            form="text",
            vocab=text.vocab,
            bytes_per_token=text.size(scored) / len(text.ids[scored]),
            pieces=text.pieces,
            separator="",
            vocabulary="".join(text.pieces) or None,
        )

    def _text(self) -> Text:
        path = find(self.kind, self.path)
        info = path.stat()
        return _read(self.kind, path, self.vocabulary, info.st_mtime_ns, info.st_size)


def characters(path: str, length: int, valid: float = 0.1) -> Source:
    """The characters of a UTF-8 file; the vocabulary is all that the file holds, sorted.

    The first 1 − `valid` of it is for training, in windows at every offset; the rest is for
    validation, in windows that do not overlap, so each token but the first is scored once.
    """
    return TextFile("characters", path, length, valid)


def raw_bytes(path: str, length: int, valid: float = 0.1) -> Source:
    """The bytes of any file, 256 of them; split like `characters`.  Xue et al. 2022 (ByT5)."""
    return TextFile("bytes", path, length, valid)


DATASETS: dict[str, Callable[..., Source]] = {"characters": characters, "bytes": raw_bytes}

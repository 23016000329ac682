"""Plain text as one stream of tokens, cut into windows."""

import functools
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data import cache
from tfm.data.dataset import Dataset, Examples, Ragged, Reading, Source, at_most, number, whole
from tfm.data.files import Bad, Meter, Place, content_size, decoded, digest, find, open_file
from tfm.data.formats.corpus import Corpus, Part, Tally, id_dtype
from tfm.data.formats.records import joined, notes

BLOCK = 1 << 13  # characters of a text that is tokenised by itself, about
LONG = 1 << 22  # bytes of a line that is read at once
BATCH = 128  # blocks that are tokenised at once


class Span(NamedTuple):
    """A part of a file, in bytes of its text; `end` None: to its end."""

    path: pathlib.Path
    begin: int
    end: int | None
    lines: int = 0  # before it


class TextStream(Corpus):
    """A row is a window: it has one token more than `length`, since the first has nothing before it
    from which it could be predicted."""

    kind, form = "text", "text"

    def __init__(
        self,
        train: str,
        valid: str | float,
        test: str,
        length: int,
        stride: int,
        eos: bool,
        eval_length: int | None = None,
    ):
        self.named = {"train": train, "valid": valid, "test": test}
        self.length, self.stride = whole("text", "length", length, 1), stride
        whole("text", "stride", stride, 1)
        self.eval_length = length
        if eval_length is not None:
            self.eval_length = whole("text", "eval_length", eval_length, 1)
        self.eos = eos
        if not isinstance(valid, str):
            number("text", "valid", valid, 0, 1)

    def settings(self) -> dict[str, Any]:
        return {"eos": self.eos}

    def files(self) -> Mapping[str, str]:
        named = {split: name for split, name in self.named.items() if name and _is_file(name)}
        return {split: digest(find("text", str(name))) for split, name in named.items()}

    def part(self, split: str) -> Part:
        path, begin, end, _ = self._span(split)
        size = path.stat().st_size
        if path.suffix != ".gz":
            size = (size if end is None else end) - begin
        return Part(f"{digest(path)} {begin} {end}", size)

    def _span(self, split: str) -> Span:
        name, cut_off = self.named[split], not _is_file(self.named["valid"])
        if not name:
            raise UserError(f"text: there is no {split!r} split: write {split}=… for its file")
        source = name if _is_file(name) else self.named["train"]
        if not source:
            raise UserError("text: there is no 'train' split: write train=… for its file")
        path = find("text", str(source))
        if not cut_off or split == "test":
            return Span(path, 0, None)
        cut, lines = _cut(path, float(self.named["valid"]), digest(path))
        return Span(path, 0, cut) if split == "train" else Span(path, cut, None, lines)

    def texts(self, bad: Bad, meter: Meter) -> Iterator[str]:
        return self.blocks("train", bad, meter)

    def blocks(self, split: str, bad: Bad, meter: Meter) -> Iterator[str]:
        """The text in parts that are tokenised each by itself: lines, or many lines."""
        span = self._span(split)
        if self.eos:
            return pieces(span, bad, meter)
        return grouped(pieces(span, bad, meter))

    def write(self, split: str, writer: cache.Writer, bad: Bad, meter: Meter) -> dict[str, Any]:
        tokenizer = self.tokenizer()
        special, dtype = tokenizer.special, id_dtype(tokenizer.vocab)
        tally, size, words = Tally(tokenizer.vocab, special.unk), 0, 0
        writer.append("tokens", np.array([special.bos], dtype))
        batch = list[str]()

        def flush() -> None:
            if not batch:
                return
            if self.eos:
                lines = [text.removesuffix("\n") for text in batch]
                ids = joined([Ragged(*tokenizer.encode_batch(lines)), special.eos])[0].ids
            else:
                ids = tokenizer.encode_batch(batch)[0]
            writer.append("tokens", ids.astype(dtype))
            tally.add(ids)
            batch.clear()

        for text in self.blocks(split, bad, meter):
            batch.append(text)
            size += len(text.encode())
            words += len(text.split()) + self.eos
            if len(batch) >= (64 * BATCH if self.eos else BATCH):
                flush()
        flush()
        facts = tally.facts(writer)
        if not facts["tokens"]:
            raise UserError(f"{self.kind}: {split!r} holds no token")
        return {"bytes": size, "words": words, **facts}

    def with_reading(self, reading: Reading) -> "Corpus":
        for name in ("length", "eval_length"):
            length = getattr(self, name)
            if reading.max_length is not None and reading.max_length < length + 1:
                raise UserError(
                    f"data.max_length={reading.max_length} would cut windows of {name}={length}, "
                    f"which have {length + 1} tokens: write another {name}"
                )
        return super().with_reading(reading)

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        entry, train = self.entry(split), split == "train"
        length = self.length if train else self.eval_length
        total = entry.facts["tokens"] + 1  # with the one that begins it
        tokens = entry["tokens"]
        if train:
            stride, most = self.stride, (total - 1 - length) // self.stride + 1
            if total <= length:
                raise UserError(
                    f"text: length={length} is too much: the training split has {total - 1} tokens"
                )
        else:  # side by side, so that each token is scored once
            stride, most = length, math.ceil((total - 1) / length)

        def read(rows: np.ndarray) -> Examples:
            place_NT = rows[:, None] * stride + np.arange(length + 1)
            valid_NT = None if train else place_NT < total
            ids_NT = tokens[np.minimum(place_NT, total - 1)].astype(np.int32)
            return Examples(tokens=Ragged.of(ids_NT, valid_NT))

        return Dataset(
            read=read,
            count=at_most(count, most, split),
            max_length=length + 1,
            padded=not train,
            next_row=None if length % stride else length // stride,
            bytes_per_token=entry.facts["bytes"] / (total - 1),
            words_per_token=entry.facts["words"] / (total - 1),
            notes=notes(entry, split),
            **self.facts(),
        )


def _is_file(name: str | float) -> bool:
    return isinstance(name, str)


@functools.lru_cache(maxsize=64)
def _cut(path: pathlib.Path, share: float, _: str) -> tuple[int, int]:
    """Where the last share of a text begins, at a line if there are lines; and the lines before."""
    size = content_size(path)
    with open_file(path) as file:
        place = int(size * (1 - share))
        file.seek(place)
        file.readline()
        cut = file.tell()
        if cut >= size:  # one long line: cut between two characters
            file.seek(place)
            cut = place + next((i for i, b in enumerate(file.read(4)) if b & 0xC0 != 0x80), 0)
        if not 0 < cut < size:
            raise UserError(f"text: {path} is too short to hold out valid={share} of it")
        file.seek(0)
        sizes = [min(LONG, cut - begin) for begin in range(0, cut, LONG)]
        return cut, sum(file.read(size).count(b"\n") for size in sizes)


def pieces(span: Span, bad: Bad, meter: Meter) -> Iterator[str]:
    """Lines with their ends; one that is very long comes in parts."""
    line, unreported, rest = span.lines + 1, 0, b""
    left = sys.maxsize if span.end is None else span.end - span.begin
    try:
        with open_file(span.path) as file:
            file.seek(span.begin)
            while left > 0 and (new := file.readline(min(LONG, left))):
                left -= len(new)
                unreported += len(new)
                new, rest = _characters(rest + new)
                text = decoded(new, Place(str(span.path), line), bad)
                line += new.endswith(b"\n")
                if text:
                    yield text
                if unreported > 1 << 18:
                    meter(unreported)
                    unreported = 0
    except (OSError, EOFError) as e:
        raise UserError(f"cannot read {span.path}: {e}") from e
    meter(unreported)
    if rest:
        decoded(rest, Place(str(span.path), line), bad)


def _characters(content: bytes) -> tuple[bytes, bytes]:
    """Bytes up to the last character that is complete, and the rest."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (content[:-back], content[-back:]) if length > back else (content, b"")
    return content, b""


def grouped(lines: Iterator[str]) -> Iterator[str]:
    """Lines joined to blocks. They end where the rules of GPT-2 and tiktoken give the same tokens
    as for the whole text: after one line end between words, or where one space follows it."""
    block, size, last = list[str](), 0, ""
    for line in lines:
        safe = (last[-1:] == "\n" and line[:1] == " " and line[1:2].strip()) or (
            last[-1:] == "\n" and last[-2:-1].strip() and line[:1].strip()
        )
        if size > BLOCK and (safe or size > LONG // 16):
            yield "".join(block)
            block, size = [], 0
        block.append(line)
        size += len(line)
        last = line
    if block:
        yield "".join(block)


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

    Training windows begin at every `stride`-th token. Those of validation and test stand side by
    side: each token is scored once, the first one after `bos`; they are of `eval_length`, if it is
    given: in longer ones, fewer tokens have little before them. `valid` is a file, or the share at
    the end of the training file that is held out. `eos`: an end id stands for each line's end.
    """
    return TextStream(train, valid, test, length, stride, eos, eval_length)


DATASETS: dict[str, Callable[..., Source]] = {"text": text}

"""Files of plain text: one stream of tokens in windows."""

import functools
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tfm.config.names import UserError
from tfm.data.corpus import Corpus, Split, SplitFiles
from tfm.data.dataset import Source, whole
from tfm.data.files import Place, ReadLog, content_size, decoded, digest, open_file
from tfm.data.records import Layout, Record
from tfm.data.windows import Windows

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
    windows = Windows(whole("text", "length", length, 1), whole("text", "stride", stride, 1))
    if eval_length is not None:
        whole("text", "eval_length", eval_length, 1)
    files = SplitFiles("text", {"train": train, "valid": valid, "test": test})

    def split(name: str) -> Split:
        span = _span(files, name)
        size = span.path.stat().st_size
        if span.path.suffix != ".gz":
            size = (size if span.end is None else span.end) - span.begin

        def records(log: ReadLog) -> Iterator[Record]:
            lines = read_lines(span, log)
            return lines if eos else blocks(lines)

        return Split(f"{digest(span.path)} {span.begin} {span.end}", size, records)

    return Corpus(
        kind="text",
        layout=lambda: Layout("text", {"eos": eos}),
        split=split,
        files=files.digests,
        windows=windows._replace(eval_length=eval_length, eos=eos),
    )


def _span(files: SplitFiles, split: str) -> Span:
    (path,), share = files.paths(split), files.share(split)
    if share is None:
        return Span(path)
    cut, lines = _cut(path, share, digest(path))
    return Span(path, 0, cut) if split == "train" else Span(path, cut, None, lines)


@functools.lru_cache(maxsize=64)
def _cut(path: pathlib.Path, share: float, _: str) -> tuple[int, int]:
    """Returns where the last share of a text begins, at a line if possible, and the number of
    lines before it."""
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


def read_lines(span: Span, log: ReadLog) -> Iterator[Record]:
    """Yields lines with their ends; a very long line is split into several records."""
    line, unreported, rest = span.lines + 1, 0, b""
    left = sys.maxsize if span.end is None else span.end - span.begin
    try:
        with open_file(span.path) as file:
            file.seek(span.begin)
            while left > 0 and (new := file.readline(min(LONG, left))):
                left -= len(new)
                unreported += len(new)
                new, rest = _whole_characters(rest + new)
                place = Place(str(span.path), line)
                text = decoded(new, place, log)
                line += new.endswith(b"\n")
                if text:
                    yield Record(place, text)
                if unreported > 1 << 18:
                    log.advance(unreported)
                    unreported = 0
    except (OSError, EOFError) as e:
        raise UserError(f"cannot read {span.path}: {e}") from e
    log.advance(unreported)
    if rest:
        decoded(rest, Place(str(span.path), line), log)


def _whole_characters(content: bytes) -> tuple[bytes, bytes]:
    """Splits bytes after the last complete character."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (content[:-back], content[-back:]) if length > back else (content, b"")
    return content, b""


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


DATASETS: dict[str, Callable[..., Source]] = {"text": text}

"""Words with tags: CoNLL-U files, and files with a word and its tag on each line."""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence

from tfm.config.names import UserError, pick
from tfm.data.corpus import corpus_of_files
from tfm.data.dataset import Source
from tfm.data.files import Place, ReadLog, lines
from tfm.data.records import Layout, Record

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
ParseLine = Callable[[str], tuple[str, str] | str | None]  # word and tag, an error, or neither


def conllu(
    train: str = "", valid: str | float = "", test: str = "", column: str = "upos"
) -> Source:
    """Words and a column of CoNLL-U files: upos, xpos, deprel, …  universaldependencies.org."""
    index = CONLLU.index(pick({name: name for name in CONLLU}, column, "column"))

    def parse(line: str) -> tuple[str, str] | str | None:
        cells = line.split("\t")
        if len(cells) != len(CONLLU):
            return f"{len(cells)} columns between tabs, and CoNLL-U has {len(CONLLU)}"
        if not cells[0].isdecimal():  # several words written as one (1-2), or an empty node (1.1)
            return None
        return cells[1], cells[index]

    def read(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
        return _read_sentences(paths[0], parse, "#", log)

    names = {"train": train, "valid": valid, "test": test}
    return corpus_of_files("conllu", Layout("tags", {"column": column}), read, names)


def bio(
    train: str = "", valid: str | float = "", test: str = "", word: int = 0, tag: int = -1
) -> Source:
    """A word and its tag on each line, with spaces or a tab between; an empty line ends a sentence.

    `word` and `tag` are columns, from 0 on, or from the end (-1).  CoNLL-2003.
    """

    def read(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
        width: int | None = None

        def parse(line: str) -> tuple[str, str] | str:
            nonlocal width
            cells = line.split("\t") if "\t" in line else line.split()
            width = len(cells) if width is None else width
            if len(cells) != width or width < 2:
                return f"{len(cells)} columns, and the first line has {width}; at least 2"
            try:
                return cells[word], cells[tag]
            except IndexError:
                raise UserError(
                    f"bio: word={word} or tag={tag}: {paths[0]} has {width} columns"
                ) from None

        return _read_sentences(paths[0], parse, "-DOCSTART-", log)

    names = {"train": train, "valid": valid, "test": test}
    return corpus_of_files("bio", Layout("tags", {"word": word, "tag": tag}), read, names)


def _read_sentences(
    path: pathlib.Path, parse: ParseLine, comment: str, log: ReadLog
) -> Iterator[Record]:
    """Yields sentences between empty lines. A sentence with a bad line is left out."""
    begin: Place | None = None
    words, tags, broken = list[str](), list[str](), False
    for place, line in itertools.chain(lines(path, log), [(None, "")]):
        if not line.strip():
            if begin is not None and words and not broken:
                yield Record(begin, words, tags=tags)
            begin, words, tags, broken = None, [], [], False
        elif not line.startswith(comment) and place is not None:
            begin = begin or place
            parsed = parse(line)
            if isinstance(parsed, str):
                log.bad(place, parsed)
                broken = True
            elif parsed is not None:
                words.append(parsed[0])
                tags.append(parsed[1])


DATASETS: dict[str, Callable[..., Source]] = {"conllu": conllu, "bio": bio}

"""Files of sentences: tables with named columns, parallel files, words with tags, SCAN."""

import csv
import difflib
import itertools
import json
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfm.config.names import UserError, pick
from tfm.data.dataset import Source, number
from tfm.data.files import Bad, Meter, Place, decoded, digest, find, lines, raw_lines
from tfm.data.formats.corpus import Part
from tfm.data.formats.records import Record, Records

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
Parse = Callable[[Sequence[pathlib.Path], Bad, Meter], Iterator[Record]]


class Files(Records):
    """A split is a file, or several that are read side by side. `parse` gives the records of a
    split. Where `valid` is a share, that share of the training records is held out: which ones
    follows from their text, so that no sentence is on both sides."""

    def __init__(
        self,
        kind: str,
        form: str,
        parse: Parse,
        named: Mapping[str, str | float],
        ends: Sequence[str] = ("",),
        pair: bool = False,
        numbers: bool = False,
        **settings: Any,
    ):
        self.kind, self.form, self.parse, self.pair = kind, form, parse, pair
        self.numbers = numbers
        self.named, self.ends, self.own_settings = named, ends, settings
        if not isinstance(named["valid"], str):
            number(kind, "valid", named["valid"], 0, 1)

    def settings(self) -> dict[str, Any]:
        return self.own_settings

    def files(self) -> Mapping[str, str]:
        splits = [split for split, name in self.named.items() if name and isinstance(name, str)]
        return {split: " ".join(map(digest, self._paths(split))) for split in splits}

    def part(self, split: str) -> Part:
        paths, share = self._paths(split), self._share(split)
        suffix = "" if share is None else f" {split} {share}"
        size = sum(path.stat().st_size for path in paths)
        return Part(" ".join(map(digest, paths)) + suffix, size)

    def records(self, split: str, bad: Bad, meter: Meter) -> Iterator[Record]:
        share = self._share(split)
        for record in self.parse(self._paths(split), bad, meter):
            if share is None or _is_held(record, share) == (split == "valid"):
                yield record

    def _share(self, split: str) -> float | None:
        share = self.named["valid"]
        return share if isinstance(share, float) and split != "test" else None

    def _paths(self, split: str) -> list[pathlib.Path]:
        name = self.named[split] if isinstance(self.named[split], str) else self.named["train"]
        if not name:
            raise UserError(
                f"{self.kind}: there is no {split!r} split: write {split}=… for its file"
            )
        return [_find(self.kind, f"{name}{end}") for end in self.ends]


def _find(kind: str, name: str) -> pathlib.Path:
    """The file, or the same with .gz."""
    try:
        return find(kind, name)
    except UserError:
        if name.endswith(".gz"):
            raise
        try:
            return find(kind, f"{name}.gz")
        except UserError:
            pass
        raise


def _is_held(record: Record, share: float) -> bool:
    text = record.text if isinstance(record.text, str) else " ".join(record.text)
    return zlib.crc32(text.encode()) < share * 2**32


def table(
    text: str | int,
    train: str = "",
    valid: str | float = "",
    test: str = "",
    label: str | int | None = None,
    text2: str | int | None = None,
    target: str | int | None = None,
    score: str | int | None = None,
) -> Source:
    """Columns of .tsv, .csv or .jsonl files (or .gz): a text and its `label`, two texts and their
    label, or a text and its `target`. A `score` is a label that is a number, for regression.

    A column is named as in the header line, with others for files that name it otherwise:
    text='sentence|content'. Or it is a number from 0 on, and there is no header line.
    """
    if sum(column is not None for column in (label, target, score)) != 1:
        raise UserError("table: give label=… for classes, target=… for pairs, or score=…")
    if text2 is not None and target is not None:
        raise UserError("table: text2=… is for two texts and their label=… or score=…")
    own = score if label is None else label
    wanted = {"text": text, "second": text2, "target": target, "label": own}
    columns = {field: column for field, column in wanted.items() if column is not None}
    if len({type(column) for column in columns.values()}) > 1:
        raise UserError(f"table: columns are names or numbers, not both: {columns}")

    def parse(paths: Sequence[pathlib.Path], bad: Bad, meter: Meter) -> Iterator[Record]:
        for place, row in _rows(paths[0], columns, bad, meter):
            empty = next((field for field, value in row.items() if not value.strip()), None)
            if empty is None:
                yield Record(place, **row)
            else:
                bad(place, f"the column {columns[empty]!r} is empty")

    named = {"train": train, "valid": valid, "test": test}
    kinds: dict[str, Any] = {"pair": text2 is not None, "numbers": score is not None}
    form = "labels" if target is None else "pairs"
    return Files("table", form, parse, named, columns=columns, **kinds)


def _rows(
    path: pathlib.Path, columns: Mapping[str, str | int], bad: Bad, meter: Meter
) -> Iterator[tuple[Place, dict[str, str]]]:
    """The wanted columns of each row, by the fields of `Record`."""
    suffix = pathlib.Path(path.name.removesuffix(".gz")).suffix
    if suffix in (".jsonl", ".json"):
        yield from _json_rows(path, columns, bad, meter)
        return
    cells = _csv_cells if suffix == ".csv" else _tab_cells
    header, width, at = not isinstance(columns["text"], int), None, dict[str, int]()
    for place, row in cells(path, bad, meter):
        if width is None:
            at = {f: _column(place, row, column) for f, column in columns.items()}
            width = len(row)
            if header:
                continue
        if len(row) != width:
            bad(place, f"{len(row)} columns, and the first line has {width}")
        else:
            yield place, {field: row[i] for field, i in at.items()}


def _column(place: Place, header: Sequence[str], column: str | int) -> int:
    """Which column it is; the first of several names that the header has."""
    if isinstance(column, int):
        if not 0 <= column < len(header):
            raise UserError(f"{place}: no column {column}: there are {len(header)}, from 0 on")
        return column
    names = [name.strip().lstrip("\ufeff") for name in header]
    for name in column.split("|"):
        if name in names:
            return names.index(name)
    near = difflib.get_close_matches(column, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its columns: {', '.join(names)[:200]}"
    raise UserError(f"{place}: no column {column!r}; {hint}")


def _tab_cells(path: pathlib.Path, bad: Bad, meter: Meter) -> Iterator[tuple[Place, list[str]]]:
    """Cells between tabs; a quotation mark is a character as any other."""
    for place, line in lines(path, bad, meter):
        yield place, line.split("\t")


def _csv_cells(path: pathlib.Path, bad: Bad, meter: Meter) -> Iterator[tuple[Place, list[str]]]:
    where = Place(str(path), 1)

    def texts() -> Iterator[str]:
        nonlocal where
        for place, line in lines(path, bad, meter):
            where = place
            yield line + "\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        try:
            yield where, next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            bad(where, f"not CSV: {e}")


def _json_rows(
    path: pathlib.Path, columns: Mapping[str, str | int], bad: Bad, meter: Meter
) -> Iterator[tuple[Place, dict[str, str]]]:
    for place, line in lines(path, bad, meter):
        try:
            tree = json.loads(line)
            if not isinstance(tree, dict):
                raise ValueError("no object, {…}")
            row = {}
            for field, column in columns.items():
                name = next((n for n in str(column).split("|") if n in tree), None)
                if name is None:
                    raise ValueError(f"no {column!r}; there are: {', '.join(tree)[:100]}")
                value = tree[name]
                if not isinstance(value, str | int | bool):
                    raise ValueError(f"{name!r} is {str(value)[:40]}, not a text")
                row[field] = str(value)
                row[field].encode()
            yield place, row
        except (ValueError, RecursionError) as e:
            bad(place, f"not a line of JSON: {e}")


def parallel(
    source: str, target: str, train: str = "", valid: str | float = "", test: str = ""
) -> Source:
    """Two files whose lines belong together: `train`.`source` and `train`.`target` (or .gz)."""

    def parse(paths: Sequence[pathlib.Path], bad: Bad, meter: Meter) -> Iterator[Record]:
        both = itertools.zip_longest(*(raw_lines(path, meter) for path in paths))
        count = 0
        for count, pair in enumerate(both, 1):
            places = [Place(str(path), count) for path in paths]
            short = next((i for i, line in enumerate(pair) if line is None), None)
            if short is not None:
                bad(places[1 - short], f"{paths[short].name} has no such line: it has {count - 1}")
                return
            texts = [decoded(line, at, bad) for line, at in zip(pair, places, strict=True)]
            if None in texts:
                continue
            first, second = (str(text).rstrip("\r\n") for text in texts)
            empty = next((i for i, text in enumerate((first, second)) if not text.strip()), None)
            if empty is None:
                yield Record(places[0], first, target=second)
            else:
                bad(places[empty], "the line is empty")
        if not count:
            bad(Place(str(paths[0]), 1), "the file is empty")

    named = {"train": train, "valid": valid, "test": test}
    return Files("parallel", "pairs", parse, named, (f".{source}", f".{target}"))


def conllu(
    train: str = "", valid: str | float = "", test: str = "", column: str = "upos"
) -> Source:
    """Words and a column of CoNLL-U files: upos, xpos, deprel, …  universaldependencies.org."""
    at = CONLLU.index(pick({name: name for name in CONLLU}, column, "column"))

    def parse(paths: Sequence[pathlib.Path], bad: Bad, meter: Meter) -> Iterator[Record]:
        def cells(line: str) -> tuple[str, str] | str | None:
            row = line.split("\t")
            if len(row) != len(CONLLU):
                return f"{len(row)} columns between tabs, and CoNLL-U has {len(CONLLU)}"
            if not row[0].isdecimal():  # several words written as one (1-2), or an empty node (1.1)
                return None
            return row[1], row[at]

        return _sentences(paths[0], cells, lambda line: line.startswith("#"), bad, meter)

    named = {"train": train, "valid": valid, "test": test}
    return Files("conllu", "tags", parse, named, column=column)


def bio(
    train: str = "", valid: str | float = "", test: str = "", word: int = 0, tag: int = -1
) -> Source:
    """A word and its tag on each line, with spaces or a tab between; an empty line ends a sentence.

    `word` and `tag` are columns, from 0 on, or from the end (-1).  CoNLL-2003.
    """

    def parse(paths: Sequence[pathlib.Path], bad: Bad, meter: Meter) -> Iterator[Record]:
        width: list[int] = []

        def cells(line: str) -> tuple[str, str] | str | None:
            row = line.split("\t") if "\t" in line else line.split()
            width[:] = width or [len(row)]
            if len(row) != width[0] or len(row) < 2:
                return f"{len(row)} columns, and the first line has {width[0]}; at least 2"
            try:
                return row[word], row[tag]
            except IndexError:
                raise UserError(
                    f"bio: word={word} or tag={tag}: {paths[0]} has {width[0]} columns"
                ) from None

        return _sentences(paths[0], cells, lambda line: line.startswith("-DOCSTART-"), bad, meter)

    named = {"train": train, "valid": valid, "test": test}
    return Files("bio", "tags", parse, named, word=word, tag=tag)


def _sentences(
    path: pathlib.Path,
    cells: Callable[[str], tuple[str, str] | str | None],
    comment: Callable[[str], bool],
    bad: Bad,
    meter: Meter,
) -> Iterator[Record]:
    """Sentences between empty lines. `cells` gives word and tag of a line, None for one without, or
    what is wrong with it; then the whole sentence is left out."""
    begin: Place | None = None
    words, tags, broken = list[str](), list[str](), False
    for place, line in itertools.chain(lines(path, bad, meter), [(None, "")]):
        if not line.strip():
            if begin is not None and words and not broken:
                yield Record(begin, words, tags=tags)
            begin, words, tags, broken = None, [], [], False
        elif not comment(line) and place is not None:
            begin = begin or place
            found = cells(line)
            if isinstance(found, str):
                bad(place, found)
                broken = True
            elif found is not None:
                words.append(found[0])
                tags.append(found[1])


def scan(train: str = "", valid: str | float = 0.1, test: str = "") -> Source:
    """Commands and actions, `IN: jump twice OUT: I_JUMP I_JUMP`.  Lake & Baroni 2018 (SCAN)."""

    def parse(paths: Sequence[pathlib.Path], bad: Bad, meter: Meter) -> Iterator[Record]:
        for place, line in lines(paths[0], bad, meter):
            command, out, actions = line.removeprefix("IN:").partition(" OUT:")
            if not line.startswith("IN:") or not out or not command.strip() or not actions.strip():
                bad(place, "not of the form 'IN: … OUT: …'")
            else:
                yield Record(place, command.strip(), target=actions.strip())

    return Files("scan", "pairs", parse, {"train": train, "valid": valid, "test": test})


DATASETS: dict[str, Callable[..., Source]] = {
    "table": table,
    "parallel": parallel,
    "conllu": conllu,
    "bio": bio,
    "scan": scan,
}

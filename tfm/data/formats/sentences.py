"""Files of separate sentences: tables, parallel files, SCAN, and words with tags."""

import csv
import difflib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfm.config.names import UserError, pick
from tfm.data.corpus import corpus_of_files
from tfm.data.dataset import Source
from tfm.data.files import Place, ReadLog, decoded, lines, raw_lines
from tfm.data.records import Layout, Record

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
Cells = Iterator[tuple[Place, dict[str, str]]]  # the requested columns, by the fields of `Record`
ParseLine = Callable[[str], tuple[str, str] | str | None]  # word and tag, an error, or neither


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

    A column has its name in the header line; alternatives are for files with other names:
    text='sentence|content'. Or it is a number from 0 on, and there is no header line.
    """
    if sum(column is not None for column in (label, target, score)) != 1:
        raise UserError("table: give label=… for classes, target=… for pairs, or score=…")
    if text2 is not None and target is not None:
        raise UserError("table: text2=… is for two texts and their label=… or score=…")
    fields = {"text": text, "second": text2, "target": target}
    fields["label"] = score if label is None else label
    columns = {field: column for field, column in fields.items() if column is not None}
    if len({type(column) for column in columns.values()}) > 1:
        raise UserError(f"table: columns are names or numbers, not both: {columns}")

    def read(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
        is_json = paths[0].name.removesuffix(".gz").endswith((".jsonl", ".json"))
        for place, cells in (_json_cells if is_json else _cells)(paths[0], columns, log):
            empty = next((field for field, value in cells.items() if not value.strip()), None)
            if empty is None:
                yield Record(place, **cells)
            else:
                log.bad(place, f"the column {columns[empty]!r} is empty")

    form, two_texts = "labels" if target is None else "pairs", text2 is not None
    layout = Layout(form, {"columns": columns}, two_texts, numeric=score is not None)
    names = {"train": train, "valid": valid, "test": test}
    return corpus_of_files("table", layout, read, names)


def _cells(path: pathlib.Path, columns: Mapping[str, str | int], log: ReadLog) -> Cells:
    is_csv = path.name.removesuffix(".gz").endswith(".csv")
    header, width, index = not isinstance(columns["text"], int), None, dict[str, int]()
    for place, line in (_csv_lines if is_csv else _tsv_lines)(path, log):
        if width is None:
            index = {field: _column(place, line, column) for field, column in columns.items()}
            names = [name.strip() for name in line]
            for i in sorted(set(index.values()) if header else ()):
                if names.count(names[i]) > 1:
                    twice = f"the column {names[i]!r} occurs more than once"
                    log.notes.append(f"{place}: {twice}; the first one is read")
            width = len(line)
            if header:
                continue
        if len(line) != width:
            log.bad(place, f"{len(line)} columns, and the first line has {width}")
        else:
            yield place, {field: line[i] for field, i in index.items()}


def _column(place: Place, header: Sequence[str], column: str | int) -> int:
    """Returns the index of a column: of the first of its names that the header has."""
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


def _tsv_lines(path: pathlib.Path, log: ReadLog) -> Iterator[tuple[Place, list[str]]]:
    """Splits lines at tabs; quotation marks have no special meaning."""
    return ((place, line.split("\t")) for place, line in lines(path, log))


def _csv_lines(path: pathlib.Path, log: ReadLog) -> Iterator[tuple[Place, list[str]]]:
    last = Place(str(path), 1)

    def texts() -> Iterator[str]:
        nonlocal last
        for place, line in lines(path, log):
            last = place
            yield line + "\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        try:
            yield last, next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            log.bad(last, f"not CSV: {e}")


def _json_cells(path: pathlib.Path, columns: Mapping[str, str | int], log: ReadLog) -> Cells:
    for place, line in lines(path, log):
        try:
            tree = json.loads(line)
            if not isinstance(tree, dict):
                raise ValueError("no object, {…}")
            cells = {}
            for field, column in columns.items():
                name = next((n for n in str(column).split("|") if n in tree), None)
                if name is None:
                    raise ValueError(f"no {column!r}; there are: {', '.join(tree)[:100]}")
                value = tree[name]
                if not isinstance(value, str | int):  # a bool is an int
                    raise ValueError(f"{name!r} is {str(value)[:40]}, not a text")
                cells[field] = str(value)
                cells[field].encode()  # raises for surrogates
            yield place, cells
        except (ValueError, RecursionError) as e:
            log.bad(place, f"not a line of JSON: {e}")


def parallel(
    source: str, target: str, train: str = "", valid: str | float = "", test: str = ""
) -> Source:
    """Two files with corresponding lines: `train`.`source` and `train`.`target` (or .gz)."""
    suffixes = (f".{source}", f".{target}")
    names = {"train": train, "valid": valid, "test": test}
    return corpus_of_files("parallel", Layout("pairs"), _read_parallel, names, suffixes)


def _read_parallel(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
    count = 0
    for count, pair in enumerate(itertools.zip_longest(*(raw_lines(p, log) for p in paths)), 1):
        places = [Place(str(path), count) for path in paths]
        if None in pair:
            short = pair.index(None)
            log.bad(places[1 - short], f"{paths[short].name} has no such line: it has {count - 1}")
            return
        texts = [decoded(line, place, log) for line, place in zip(pair, places, strict=True)]
        if None in texts:
            continue
        source, target = (str(text).rstrip("\r\n") for text in texts)
        if source.strip() and target.strip():
            yield Record(places[0], source, target=target)
        else:
            log.bad(places[1 if source.strip() else 0], "the line is empty")
    if not count:
        log.bad(Place(str(paths[0]), 1), "the file is empty")


def scan(train: str = "", valid: str | float = 0.1, test: str = "") -> Source:
    """Commands and actions, `IN: jump twice OUT: I_JUMP I_JUMP`.  Lake & Baroni 2018 (SCAN)."""

    def read(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
        for place, line in lines(paths[0], log):
            command, _, actions = line.removeprefix("IN:").partition(" OUT:")
            if line.startswith("IN:") and command.strip() and actions.strip():
                yield Record(place, command.strip(), target=actions.strip())
            else:
                log.bad(place, "not of the form 'IN: … OUT: …'")

    names = {"train": train, "valid": valid, "test": test}
    return corpus_of_files("scan", Layout("pairs"), read, names)


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
                wrong = f"bio: word={word} or tag={tag}: {paths[0]} has {width} columns"
                raise UserError(wrong) from None

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


DATASETS: dict[str, Callable[..., Source]] = {
    "table": table,
    "parallel": parallel,
    "scan": scan,
    "conllu": conllu,
    "bio": bio,
}

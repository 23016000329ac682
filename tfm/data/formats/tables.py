"""Tables with named columns: .tsv, .csv and .jsonl files."""

import csv
import difflib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfm.config.names import UserError
from tfm.data.corpus import corpus_of_files
from tfm.data.dataset import Source
from tfm.data.files import Place, ReadLog, lines
from tfm.data.records import Layout, Record


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
        for place, cells in _cells(paths[0], columns, log):
            empty = next((field for field, value in cells.items() if not value.strip()), None)
            if empty is None:
                yield Record(place, **cells)
            else:
                log.bad(place, f"the column {columns[empty]!r} is empty")

    layout = Layout(
        "labels" if target is None else "pairs",
        {"columns": columns},
        two_texts=text2 is not None,
        numeric=score is not None,
    )
    return corpus_of_files("table", layout, read, {"train": train, "valid": valid, "test": test})


def _cells(
    path: pathlib.Path, columns: Mapping[str, str | int], log: ReadLog
) -> Iterator[tuple[Place, dict[str, str]]]:
    """Yields the requested columns of each line, by the fields of `Record`."""
    suffix = pathlib.Path(path.name.removesuffix(".gz")).suffix
    if suffix in (".jsonl", ".json"):
        yield from _json_cells(path, columns, log)
        return
    header, width, index = not isinstance(columns["text"], int), None, dict[str, int]()
    for place, line in (_csv_lines if suffix == ".csv" else _tsv_lines)(path, log):
        if width is None:
            index = {field: _column(place, line, column) for field, column in columns.items()}
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
    for place, line in lines(path, log):
        yield place, line.split("\t")


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


def _json_cells(
    path: pathlib.Path, columns: Mapping[str, str | int], log: ReadLog
) -> Iterator[tuple[Place, dict[str, str]]]:
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
                if not isinstance(value, str | int | bool):
                    raise ValueError(f"{name!r} is {str(value)[:40]}, not a text")
                cells[field] = str(value)
                cells[field].encode()  # raises for surrogates
            yield place, cells
        except (ValueError, RecursionError) as e:
            log.bad(place, f"not a line of JSON: {e}")


DATASETS: dict[str, Callable[..., Source]] = {"table": table}

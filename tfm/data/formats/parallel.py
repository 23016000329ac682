"""Pairs of sentences: parallel files, and the commands and actions of SCAN."""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence

from tfm.data.corpus import corpus_of_files
from tfm.data.dataset import Source
from tfm.data.files import Place, ReadLog, decoded, lines, raw_lines
from tfm.data.records import Layout, Record


def parallel(
    source: str, target: str, train: str = "", valid: str | float = "", test: str = ""
) -> Source:
    """Two files with corresponding lines: `train`.`source` and `train`.`target` (or .gz)."""
    names = {"train": train, "valid": valid, "test": test}
    suffixes = (f".{source}", f".{target}")
    return corpus_of_files("parallel", Layout("pairs"), _read_parallel, names, suffixes)


def _read_parallel(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
    count = 0
    for count, pair in enumerate(itertools.zip_longest(*(raw_lines(p, log) for p in paths)), 1):
        places = [Place(str(path), count) for path in paths]
        short = next((i for i, line in enumerate(pair) if line is None), None)
        if short is not None:
            log.bad(places[1 - short], f"{paths[short].name} has no such line: it has {count - 1}")
            return
        texts = [decoded(line, place, log) for line, place in zip(pair, places, strict=True)]
        if None in texts:
            continue
        source, target = (str(text).rstrip("\r\n") for text in texts)
        empty = next((i for i, text in enumerate((source, target)) if not text.strip()), None)
        if empty is None:
            yield Record(places[0], source, target=target)
        else:
            log.bad(places[empty], "the line is empty")
    if not count:
        log.bad(Place(str(paths[0]), 1), "the file is empty")


def scan(train: str = "", valid: str | float = 0.1, test: str = "") -> Source:
    """Commands and actions, `IN: jump twice OUT: I_JUMP I_JUMP`.  Lake & Baroni 2018 (SCAN)."""
    names = {"train": train, "valid": valid, "test": test}
    return corpus_of_files("scan", Layout("pairs"), _read_scan, names)


def _read_scan(paths: Sequence[pathlib.Path], log: ReadLog) -> Iterator[Record]:
    for place, line in lines(paths[0], log):
        command, out, actions = line.removeprefix("IN:").partition(" OUT:")
        if not line.startswith("IN:") or not out or not command.strip() or not actions.strip():
            log.bad(place, "not of the form 'IN: … OUT: …'")
        else:
            yield Record(place, command.strip(), target=actions.strip())


DATASETS: dict[str, Callable[..., Source]] = {"parallel": parallel, "scan": scan}

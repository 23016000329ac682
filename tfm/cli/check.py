"""Check the ideas of a file.

  tfm check FILE.py [--json]

Every entry of its SCORES, MASKS, NORMALIZERS, POSITIONS, JOINS, NORMS, MIXERS and FEEDFORWARDS,
each with its default options: whole against tiles, causality, padding, gradients, compiled against
op by op. `tfm train` and `tfm sweep` do the same for what a run uses, before it starts. The exit
code is 1 if a check fails.
"""

import json
import pathlib
import sys
from collections.abc import Iterator, Sequence

from tfm.check.entries import CHECKS, MAY_SEE, results
from tfm.check.results import Result
from tfm.config import arguments
from tfm.config.files import run_file
from tfm.config.names import UserError, read
from tfm.config.registries import TABLES
from tfm.config.spec import Named
from tfm.runtime import cache_compilations
from tfm.terminal import console
from tfm.terminal import table as text_table


def main(argv: Sequence[str]) -> None:
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    given = arguments.split(argv, words=1, kind="file", flags=("json",), config=False)
    cache_compilations()
    rows = list(check_file(given.words[0]))
    failed = [(table, name) for table, name, found in rows if found.passed is False]
    if "json" in given.flags:
        lines = [{"table": t, "entry": n, **found._asdict()} for t, n, found in rows]
        print(json.dumps(lines, indent=1))
    else:
        _print(rows)
        for table in dict.fromkeys(table for table, _ in failed):
            print(f"{table}: {MAY_SEE[table]}")
    if failed:
        sys.exit(1)


def check_file(path: str) -> Iterator[tuple[str, str, Result]]:
    """(table, name, result) of every check of every entry of a file."""
    module = run_file(pathlib.Path(path))
    entries = [(table, name) for table in TABLES for name in getattr(module, table, {})]
    if not entries:
        raise UserError(f"{path} brings no entries: none of {', '.join(TABLES)}")
    for table, name in entries:
        if table not in CHECKS:
            why = "it is tried with the data when a run is planned"
            yield table, name, Result("none", None, None, why)
            continue
        try:
            yield from ((table, name, found) for found in results(table, _named(table, name)))
        except UserError as e:
            yield table, name, Result("runs", False, None, str(e))


def _named(table: str, name: str) -> Named:
    """The entry; where it is a function with options, with their defaults."""
    entry = TABLES[table][name]
    is_factory = table in ("MASKS", "NORMALIZERS", "POSITIONS", "MIXERS")
    return Named.of(name, read(name, TABLES[table], table) if is_factory else entry)


def _print(rows: Sequence[tuple[str, str, Result]]) -> None:
    out = text_table("entry", "check", "", ">off by", "what must hold")
    words = {True: "pass", False: "FAIL", None: "—"}
    last = None
    for table, name, found in rows:
        by = "—" if found.difference is None else f"{found.difference:.1e}"
        entry = f"{table}[{name!r}]"
        shown = "" if entry == last else entry
        out.add_row(shown, found.check, words[found.passed], by, found.says)
        last = entry
    console(120).print(out)

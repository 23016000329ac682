"""Checks the ideas in your file: tiles, causality, padding, gradients.

Checks every entry with its default options. SCORES, MASKS, NORMALIZERS, POSITIONS, JOINS, NORMS,
MIXERS, FEEDFORWARDS and CELLS: the whole matrix against tiles, causality, padding, gradients, and
compiled code against single operations. FAMILIES: outputs, padding and decoding with a cache.
OPTIMIZERS and SCHEDULES: a few steps. EVALUATORS: their metrics on a small model. `tfm train` and
`tfm sweep` do the same before a run starts, for the entries that it uses, and try its evaluators
on its data. The exit code is 1 if a check fails.
"""

import json
from collections.abc import Sequence

from tfm.check.entries import CONTRACTS, check_file
from tfm.check.results import Result
from tfm.cli.main import Parser
from tfm.runtime import cache_compilations
from tfm.terminal import console, table

WORDS = {True: "pass", False: "FAIL", None: "—"}


def main(argv: Sequence[str]) -> int:
    parser = Parser("check", __doc__)
    parser.add_argument("file", metavar="FILE.py")
    parser.add_json()
    args = parser.parse(argv)
    cache_compilations()
    results = list(check_file(args.file))
    failed = dict.fromkeys(kind for kind, _, result in results if result.passed is False)
    if args.json:
        rows = [
            {"table": kind, "entry": name, **result._asdict()} for kind, name, result in results
        ]
        print(json.dumps(rows, indent=1))
    else:
        _print(results)
        for kind in failed:
            print(f"{kind}: {CONTRACTS[kind]}")
    return 1 if failed else 0


def _print(results: Sequence[tuple[str, str, Result]]) -> None:
    out = table("entry", "check", "", ">off by", "what must hold")
    previous = None
    for kind, name, result in results:
        entry = f"{kind}[{name!r}]"
        difference = "—" if result.difference is None else f"{result.difference:.1e}"
        shown = "" if entry == previous else entry
        out.add_row(shown, result.check, WORDS[result.passed], difference, result.says)
        previous = entry
    console(120).print(out)

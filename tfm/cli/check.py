"""Checks the ideas in your file: tiles, causality, padding, gradients.

Checks every entry of SCORES, MASKS, NORMALIZERS, POSITIONS, JOINS, NORMS, MIXERS and FEEDFORWARDS
with its default options: the whole matrix against tiles, causality, padding, gradients, and
compiled code against single operations. `tfm train` and `tfm sweep` do the same before a run
starts, for the entries that it uses. The exit code is 1 if a check fails.
"""

import json
from collections.abc import Sequence

from tfm.check.entries import MAY_SEE, check_file
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
            print(f"{kind}: {MAY_SEE[kind]}")
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

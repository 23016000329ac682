"""Writes a web page that shows what a model does with a text, inside.

The page is one HTML file that needs no server and no network. The walk shows every stage from the
text to the next token, with its formula, shape and numbers. The attention view shows all layers and
heads, each with a tag and with the loss without that head.

A translating model's target is its own greedy translation unless --target gives one. In a model
that fills in words, [MASK] stands for the word. A model whose data are ids reads numbers: "5 3 8".
Without --layers the maps of a large model are coarser, so that the page stays below 10 MB; the page
says so.
"""

import io
import os
import pathlib
import re
import sys
from collections.abc import Sequence

import numpy as np

from tfm import disk
from tfm.cli.options import RunParser, texts
from tfm.config.names import UserError
from tfm.explain.explain import explain, numbers
from tfm.explain.page import page
from tfm.run.load import load
from tfm.runtime import cache_compilations, check_compiler


def main(argv: Sequence[str]) -> None:
    parser = RunParser("explain", __doc__)
    parser.add_text()
    parser.add_value("--out", "FILE.html", "the page (explain.html)", default="explain.html")
    text = "a second run, shown with the difference; it must split the text into the same tokens"
    parser.add_value("--with", "RUN", text, dest="other")
    parser.add_value("--target", "TEXT", "the target of a translating model")
    parser.add_value("--second", "TEXT", "the second sentence of a model that classifies two")
    parser.add_value("--layers", "0,2-4", "show only these layers")
    parser.add_value("--npz", "FILE", "write all numbers in full precision")
    args = parser.parse(argv)
    (text,) = texts(args, lines=False)
    if not text.strip():
        raise UserError('the text is empty: write tfm explain RUN "text"')
    layers = _layers(args.layers) if args.layers else None
    cache_compilations()
    check_compiler()
    folders = [folder for folder in (args.run, args.other) if folder]
    runs = [load(folder, args.checkpoint, args.trust) for folder in folders]
    parts = [explain(run, text, args.target, args.second, layers) for run in runs]
    if len({part.name for part in parts}) < len(parts):
        for part, run in zip(parts, runs, strict=True):
            part.name = str(run.folder)
    html, notes = page(parts)
    out = pathlib.Path(args.out)
    _write(out, html.encode())
    if args.npz:
        arrays = {f"{part.name}/{name}" if len(parts) > 1 else name: x
                  for part in parts for name, x in numbers(part).items()}  # fmt: skip
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        _write(pathlib.Path(args.npz), buffer.getvalue())
        print(f"the numbers are in {args.npz}")
    for note in notes:
        print(note, file=sys.stderr)
    print(f"open {out} in a browser ({len(html.encode()) / 1e6:.1f} MB)")


def _write(path: pathlib.Path, content: bytes) -> None:
    try:
        if path.exists() and not path.is_file():  # /dev/stdout
            path.write_bytes(content)
        else:
            disk.write_file(os.path.realpath(path), content)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from e


def _layers(text: str) -> list[int]:
    """Parses "0,2-4" as [0, 2, 3, 4]."""
    layers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last if dash else first]
        if not all(re.fullmatch("[0-9]{1,4}", end) for end in ends) or int(first) > int(ends[1]):
            wrong = f"--layers={text}: write numbers from 0 on, as --layers=0,2-4"
            raise UserError(f"{wrong}; the largest is 9999")
        layers.update(range(int(ends[0]), int(ends[1]) + 1))
    return sorted(layers)

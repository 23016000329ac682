"""Write a page that shows what a model does with a text: `tfm explain`.

  tfm explain RUN ["text"] [--file=FILE] [--out=FILE.html] [--with=RUN2] [--target="text"]
              [--second="text"] [--layers=0,2-4] [--npz=FILE.npz] [--checkpoint=best] [--trust]

The page is one HTML file that needs no server and no network. The walk shows every stage from the
text to the next token, with its formula, its shape and its numbers; the attention shows all layers
and heads, each with its tag and with what the loss becomes without it. It is written to
explain.html unless --out names another file. The text is given in quotes, as a file, or by standard
input.

RUN is a run folder, trained or imported, of any family but Word2Vec. What a translating model
writes is its own greedy translation unless --target gives one. --second is the second sentence of
a model that classifies two. In a model that fills in words, [MASK] stands for the word. A model
whose data are ids reads numbers: "5 3 8". --with puts a second run beside the first, and the
difference of their maps; both must cut the text into the same tokens. --layers chooses layers;
without it the maps of a large model are coarser, so that the page stays below 10 MB, and it says
so. --npz writes all numbers in full precision. Code that a run folder holds is run only with
--trust.
"""

import io
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from tfm.cli import options
from tfm.config.names import UserError
from tfm.explain.explain import explain, numbers
from tfm.explain.page import page
from tfm.run.load import load
from tfm.runtime import cache_compilations, check_compiler

OPTIONS = ("file", "out", "with", "target", "second", "layers", "npz")


def main(argv: Sequence[str]) -> None:
    given = options.parse(argv, __doc__, OPTIONS, as_json=False)
    if given is None:
        return
    (text,) = options.texts_of(given, lines=False)
    if not text.strip():
        raise UserError('the text is empty: write tfm explain RUN "text"')
    chosen, trust = given.options, "trust" in given.flags
    layers = _layers(chosen["layers"]) if "layers" in chosen else None
    cache_compilations()
    check_compiler()
    first = given.words[0]
    runs = [load(folder, chosen.get("checkpoint", "best"), trust)
            for folder in (first, chosen.get("with")) if folder]  # fmt: skip
    target, second = chosen.get("target"), chosen.get("second")
    found = [explain(run, text, target, second, layers) for run in runs]
    if len({one.name for one in found}) < len(found):
        for one, run in zip(found, runs, strict=True):
            one.name = str(run.folder)
    html, notes = page(found)
    out = pathlib.Path(chosen.get("out", "explain.html"))
    _write(out, html.encode())
    if "npz" in chosen:
        arrays = {f"{one.name}/{name}" if len(found) > 1 else name: x
                  for one in found for name, x in numbers(one).items()}  # fmt: skip
        path = pathlib.Path(chosen["npz"])
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        _write(path, buffer.getvalue())
        print(f"the numbers are in {path}")
    for note in notes:
        print(note, file=sys.stderr)
    print(f"open {out} in a browser ({len(html.encode()) / 1e6:.1f} MB)")


def _write(path: pathlib.Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from e


def _layers(text: str) -> list[int]:
    """ "0,2-4" as [0, 2, 3, 4]."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last if dash else first]
        if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
            raise UserError(f"--layers={text}: write numbers from 0 on, as --layers=0,2-4")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return sorted(found)

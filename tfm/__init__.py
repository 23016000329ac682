"""tfm: does this change to a sequence model help, and how sure are we?"""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and __path__[0] != f"{sys.path[0]}/tfm":
    del sys.path[0]  # `python -m tfm` would import any module from the current folder

from typing import Any

from tfm import runtime

__version__ = "0.1.0"

runtime.set_compiler_flags()


def load(folder: str, checkpoint: str = "best", trust: bool = False, special: bool = False) -> Any:
    """The model of a run folder, its parameters, its data and its tokenizer: see `LoadedRun`. Its
    `generate("…")` writes on from a text.

    `trust`: the code that the folder holds, if it does, may be run. `special`: special tokens in a
    text, such as [SEP], are read as such; otherwise they are text.
    """
    from tfm.run.load import load as load_run

    return load_run(folder, checkpoint, trust, special)

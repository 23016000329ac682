"""tfm: does this change to a sequence model help, and how sure are we?"""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and __path__[0] != f"{sys.path[0]}/tfm":
    del sys.path[0]  # `python -m tfm` would import any module from the current folder

from typing import Any

from tfm import runtime

__version__ = "0.1.0"

runtime.set_compiler_flags()


def load(folder: str, checkpoint: str = "best", trust: bool = False, special: bool = False) -> Any:
    """Loads a run: its model, parameters, data and tokenizer; see `LoadedRun`.

    `load("runs/mine").generate("Once upon")` continues a text. `trust` allows code from the folder
    to run. With `special`, special tokens in a text, such as [SEP], are parsed; by default they are
    text.
    """
    from tfm.run.load import load as load_run

    return load_run(folder, checkpoint, trust, special)

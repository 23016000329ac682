"""Imports a Hugging Face folder (GPT-2, LLaMA, BERT, T5, UL2) as a run folder.

Reads config.json and safetensors, in one file or several, never pickle. The run folder holds
config.json (for --config=FOLDER/config.json), a checkpoint, the files of the tokenizer, and the
SHA-256 of every file that was read. Links that lead out of the folder are not followed. If a tensor
is missing, left over or has the wrong shape, the error lists it and nothing is written.
"""

import functools
import sys
from collections.abc import Sequence

from tfm.cli.main import Parser
from tfm.interop.folder import import_folder


def main(argv: Sequence[str]) -> None:
    parser = Parser("import", __doc__)
    parser.add_argument("source", metavar="HF_FOLDER")
    parser.add_value("--workdir", "FOLDER", "the run folder", required=True)
    text = "store the weights in float32 (default), bfloat16 or float16, or as they are: stored"
    parser.add_argument("--dtype", default="float32", help=text)
    args = parser.parse(argv)
    warn = functools.partial(print, file=sys.stderr)
    workdir = import_folder(args.source, args.workdir, args.dtype, warn)
    print(f"imported to {workdir}; look at it with\n  tfm describe --config={workdir}/config.json")

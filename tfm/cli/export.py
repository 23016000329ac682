"""Exports a run, trained or imported, as a Hugging Face folder that transformers loads."""

import pathlib
from collections.abc import Sequence

from tfm.cli.main import Parser
from tfm.data.tokenizers.tokenizer import tokenizer_of
from tfm.interop.folder import export_folder
from tfm.run.folder import Folder


def main(argv: Sequence[str]) -> None:
    parser = Parser("export", __doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("target", metavar="HF_FOLDER")
    parser.add_value("--checkpoint", "NAME", "best or last (best)", default="best")
    parser.add_trust()
    args = parser.parse(argv)
    path = export_folder(args.run, args.target, checkpoint=args.checkpoint, trust=args.trust)
    print(f"exported to {path}")
    if not (pathlib.Path(path) / "tokenizer.json").exists():
        tokenizer = tokenizer_of((Folder(args.run).read("data.json") or {}).get("vocabulary"))
        how = "as this run does" if tokenizer is None else f"with {tokenizer.segmenter}"
        print(f"without its tokenizer: transformers cannot split text {how}")

"""Exports a run, trained or imported, as a Hugging Face folder that transformers loads."""

import pathlib
from collections.abc import Sequence

from tfm.cli.main import Parser
from tfm.interop.folder import export_folder, learned_tokenizer


def main(argv: Sequence[str]) -> None:
    parser = Parser("export", __doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("target", metavar="HF_FOLDER")
    parser.add_value("--checkpoint", "NAME", "best or last (best)", default="best")
    parser.add_trust()
    args = parser.parse(argv)
    path = export_folder(args.run, args.target, checkpoint=args.checkpoint, trust=args.trust)
    print(f"exported to {path}")
    tokenizer = learned_tokenizer(pathlib.Path(args.run))
    if tokenizer is not None and tokenizer.segmenter is not None:
        print(f"without its tokenizer: transformers cannot split text with {tokenizer.segmenter}")

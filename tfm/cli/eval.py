"""Evaluates a checkpoint of a run on a split of its data, or on other data.

Prints JSON: loss, perplexity, accuracy, exact matches and, for text, bits per byte, with 95 %
intervals over the examples. An imported model needs --dataset and --objective.

With --generate, a run trained on pairs of texts writes the target of each source, by greedy
decoding or with the settings of `tfm generate`, and is compared with the target files: BLEU and
chrF by sacrebleu, with its signatures, and exact matches; for all examples, and by the length of
the source in tokens.
"""

import json
import sys
from collections.abc import Sequence

from tfm.cli.options import DECODING, RunParser, decoding
from tfm.config.names import UserError
from tfm.evaluate.alignment import Alignment
from tfm.evaluate.baselines import Baselines
from tfm.evaluate.evaluator import Evaluator
from tfm.evaluate.generation import Generation
from tfm.evaluate.word_vectors import WordVectors
from tfm.run.evaluation import evaluate
from tfm.run.folder import without_nonfinite
from tfm.runtime import cache_compilations, check_compiler
from tfm.terminal import plain


def main(argv: Sequence[str]) -> None:
    parser = RunParser("eval", __doc__)
    parser.add_argument("--split", default="valid", help="train, valid (default) or a test set")
    parser.add_value("--dataset", "NAME", "evaluate on other data")
    parser.add_value("--objective", "NAME", "evaluate with another objective")
    parser.add_number("--examples", "the number of examples")
    text = 'add an evaluator with its options, e.g. "internals(rows=32)"; may be repeated'
    parser.add_value("--evaluate", "EVALUATOR", text, action="append", default=[])
    parser.add_flag(
        "--baselines",
        "add simple methods on the same examples: n-grams, the most frequent class, a bag of "
        "words, the most frequent tag of each word",
    )
    text = "evaluate Word2Vec vectors on files of similar words or analogies"
    parser.add_value("--words", "FILE,FILE", text)
    parser.add_flag(
        "--alignment",
        "add how often a head attends to the aligned source word, for data with alignments; the "
        "head is chosen on another split",
    )
    parser.add_flag("--generate", "compare generated targets with the data")
    parser.add_flag("--lower", "ignore case in BLEU and chrF")
    parser.add_value("--tokenize", "NAME", "sacrebleu's tokenizer (13a)")
    parser.add_decoding()
    args = parser.parse(argv)
    cache_compilations()
    check_compiler()
    evaluators: dict[str, Evaluator] = {}
    if args.baselines:
        evaluators["baselines"] = Baselines()
    if args.words:
        evaluators["words"] = WordVectors(files=tuple(filter(None, args.words.split(","))))
    if args.alignment:
        evaluators["alignment"] = Alignment()
    if args.generate:
        scoring = {"lower": args.lower, "tokenize": args.tokenize or "13a"}
        evaluators["generation"] = Generation(decoding=decoding(args), **scoring)
    else:
        for name in (*DECODING, "tokenize", "lower"):
            if getattr(args, name):
                raise UserError(f"--{name} is for what a model writes: --generate")
    names = ("split", "dataset", "objective", "examples", "checkpoint", "trust")
    options = {name: getattr(args, name) for name in names}
    metrics, messages = evaluate(args.run, evaluators=evaluators, texts=args.evaluate, **options)
    for message in messages:
        print(plain(message), file=sys.stderr)
    print(json.dumps(without_nonfinite(metrics), indent=1, allow_nan=False))

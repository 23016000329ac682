"""Evaluates a checkpoint of a run on a split of its data, or on other data.

Prints JSON: loss, perplexity, accuracy, exact matches and, for text, bits per byte, with 95 %
intervals over the examples. An imported model needs --dataset and --objective.

With --generate, a run trained on pairs of texts writes the target of each source, by greedy
decoding or with the settings of `tfm generate`, and is compared with the target files: BLEU and
chrF by sacrebleu, with its signatures, and exact matches; for all examples, and by the length of
the source in tokens.
"""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tfm.cli.main import whole
from tfm.cli.options import DECODING, RunParser, decoding
from tfm.config.names import UserError, read
from tfm.config.spec import to_spec
from tfm.data.dataset import Dataset
from tfm.data.datasets import DATASETS, open_dataset, takes_tokenizer
from tfm.evaluate import alignment, generation, loss, word_vectors
from tfm.evaluate.baselines import baselines as simple_methods
from tfm.objectives.base import eval_step
from tfm.objectives.table import OBJECTIVES, check_same_ids, open_sizes
from tfm.run.folder import Folder, without_nonfinite
from tfm.run.imported import imported_vocabulary
from tfm.run.load import load
from tfm.run.spec import DataSpec
from tfm.runtime import cache_compilations, check_compiler


def evaluate(
    workdir: str,
    split: str = "valid",
    dataset: str | None = None,
    objective: str | None = None,
    examples: int | None = None,
    checkpoint: str = "best",
    trust: bool = False,
    baselines: bool = False,
    words: tuple[str, ...] = (),
    aligned: bool = False,
    decoding: Mapping[str, Any] | None = None,
    scoring: generation.Scoring = generation.Scoring(),  # noqa: B008
) -> tuple[dict[str, Any], list[str]]:
    """Metrics with intervals, and messages about damaged checkpoints. With `decoding`, settings of
    `DecodeSpec`, also what the model writes is measured."""
    loaded = load(workdir, checkpoint, trust)
    run = loaded.run
    if run is None and (dataset is None or objective is None):
        raise UserError(
            f"{workdir} is an imported model: say on what, --dataset=… and --objective=…"
        )
    data = to_spec(DataSpec, {"dataset": dataset}, "data.") if run is None else run.data
    text = dataset or data.dataset
    name = objective or (run.objective if run else "")
    shown = read(name, OBJECTIVES, "objective")
    if loaded.spec.family not in shown.families:
        raise UserError(f"objective {name!r} is not for the family {loaded.spec.family!r}")
    count = data.examples if split == "train" else data.valid_examples
    known = Folder(workdir).read("data.json") or {}  # an imported model has no data
    vocabulary = known.get("vocabulary")
    if run is None and takes_tokenizer(text):
        vocabulary = imported_vocabulary(loaded.folder)
    opened = open_dataset(text, split, examples or count, data.seed, vocabulary, data.reading)
    if dataset is None and opened.fingerprint != known.get("fingerprint"):
        raise UserError(
            f"{workdir}: data set {str(text)!r} was edited since the run began; "
            "--dataset=… evaluates on it as it is now"
        )
    reason = shown.refuses(opened)
    if reason is not None:
        raise UserError(f"data set {str(text)!r}: objective {name!r} {reason}")
    open_sizes(loaded.spec, shown, opened)
    if known:
        try:
            check_same_ids(shown, known["vocab"], vocabulary, opened)
        except UserError as e:
            raise UserError(f"data set {str(text)!r}: {e}") from e
    chunk = run.train.loss_chunk if run is not None and objective is None else None
    step = jax.jit(functools.partial(eval_step, loaded.model, shown, chunk=chunk))
    sums = loss.measure(shown, opened, step, loaded.variables, data.eval_batch)
    found = {
        "step": loaded.step,
        "split": split,
        "dataset": str(text),
        "examples": len(sums["count"]),
        **loss.metrics(shown, sums, opened),
        "intervals": loss.intervals(shown, sums, opened),
    }
    if baselines:
        reading = data.reading
        train = open_dataset(text, "train", data.examples, data.seed, vocabulary, reading)
        found["baselines"] = simple_methods(shown, train, opened, data.eval_batch)
    if loaded.spec.family == "word2vec":
        found |= _vectors(loaded.params, opened, words)
    elif words:
        raise UserError("--words: only a run of Word2Vec is measured by its vectors")
    if aligned:
        other = "train" if split == "valid" else "valid"
        of = open_dataset(
            text, other, examples or data.valid_examples, data.seed, vocabulary, data.reading
        )
        found["alignment"] = {
            "chosen_on": other,
            **alignment.alignment(loaded, of, opened, data.eval_batch),
        }
    if decoding is not None:
        source = _read_source(text, data, vocabulary)
        found["generation"] = generation.generation(
            loaded, source, opened, dict(decoding), scoring, data.eval_batch
        )
    return found, loaded.messages


def _read_source(text: str, data: DataSpec, vocabulary: str | None) -> Any:
    """A data set that is not opened, as it is read."""
    source = read(text, DATASETS, "data set").with_reading(data.reading)
    return source if vocabulary is None else source.with_vocabulary(vocabulary)


def _vectors(params: Mapping[str, Any], dataset: Dataset, words: Sequence[str]) -> dict[str, Any]:
    """Of Word2Vec: its matrices beside the identity, and its vectors on files of words."""
    input_VD = np.asarray(params["input"])
    output_VD = np.asarray(params.get("output", input_VD))
    ids = word_vectors.word_ids(dataset) if words else {}
    files = {path: word_vectors.measured(input_VD, ids, path) for path in words}
    own = slice(0, dataset.vocab)
    identity = word_vectors.near_identity(input_VD[own], output_VD[own])
    return {"identity": identity, **({"words": files} if words else {})}


def main(argv: Sequence[str]) -> None:
    parser = RunParser("eval", __doc__)
    parser.add_argument("--split", default="valid", help="train, valid (default) or a test set")
    parser.add_argument("--dataset", metavar="NAME", help="evaluate on other data")
    parser.add_argument("--objective", metavar="NAME", help="evaluate with another objective")
    parser.add_argument("--examples", metavar="N", type=whole(), help="the number of examples")
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="add simple methods on the same examples: n-grams, the most frequent class, a bag of "
        "words, the most frequent tag of each word",
    )
    parser.add_argument(
        "--words",
        metavar="FILE,FILE",
        help="evaluate Word2Vec vectors on files of similar words or analogies",
    )
    parser.add_argument(
        "--alignment",
        action="store_true",
        help="add how often a head attends to the aligned source word, for data with alignments; "
        "the head is chosen on another split",
    )
    parser.add_argument(
        "--generate", action="store_true", help="compare generated targets with the data"
    )
    parser.add_argument("--lower", action="store_true", help="ignore case in BLEU and chrF")
    parser.add_argument("--tokenize", metavar="NAME", help="sacrebleu's tokenizer (13a)")
    parser.add_decoding()
    args = parser.parse(argv)
    cache_compilations()
    check_compiler()
    options: dict[str, Any] = {}
    if args.generate:
        options["scoring"] = generation.Scoring(args.lower, args.tokenize or "13a")
        options["decoding"] = decoding(args)
    else:
        for name in (*DECODING, "tokenize", "lower"):
            if getattr(args, name):
                raise UserError(f"--{name} is for what a model writes: --generate")
    metrics, messages = evaluate(
        args.run,
        split=args.split,
        dataset=args.dataset,
        objective=args.objective,
        examples=args.examples,
        checkpoint=args.checkpoint,
        trust=args.trust,
        baselines=args.baselines,
        words=tuple(filter(None, (args.words or "").split(","))),
        aligned=args.alignment,
        **options,
    )
    for message in messages:
        print(message, file=sys.stderr)
    print(json.dumps(without_nonfinite(metrics), indent=1, allow_nan=False))

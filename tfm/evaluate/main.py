"""Evaluate a checkpoint of a run folder on a split of its data, or on other data.

  tfm eval WORKDIR [--split=valid] [--checkpoint=best] [--dataset=NAME] [--objective=NAME]
                   [--examples=N] [--baselines] [--words=FILE,FILE] [--trust]

The checkpoint is `best` (by validation loss) or `last`. The result is loss, perplexity, accuracy,
exact matches and, for text, bits per byte, with 95 % intervals over the examples, as JSON. An
imported model needs --dataset and --objective. --baselines adds what simple methods reach on the
same examples: n-grams, the most frequent class, a bag of words, the most frequent tag of each word.
Of a run of Word2Vec it is told how near the product of its matrices is to the identity, and with
--words what its vectors reach on files of similar words or of analogies. Code that the folder
holds, a score of one's own, is run only with --trust.
"""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tfm import arguments
from tfm.data.dataset import Dataset
from tfm.data.datasets import open_dataset, takes_tokenizer
from tfm.evaluate import metrics, word_vectors
from tfm.evaluate.baselines import baselines as simple_methods
from tfm.folder import Folder, without_nonfinite
from tfm.names import UserError, read
from tfm.objectives.table import OBJECTIVES, check_same_ids, open_sizes
from tfm.run.load import imported_vocabulary, load
from tfm.run.spec import DataSpec
from tfm.runtime import cache_compilations, check_compiler
from tfm.spec import to_spec


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
) -> tuple[dict[str, Any], list[str]]:
    """Metrics with intervals, and messages about damaged checkpoints."""
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
    step = jax.jit(functools.partial(metrics.eval_step, loaded.model, shown, chunk=chunk))
    sums = metrics.measured(shown, opened, step, loaded.variables, data.eval_batch)
    found = {
        "step": loaded.step,
        "split": split,
        "dataset": str(text),
        "examples": len(sums["count"]),
        **shown.metrics(sums, opened),
        "intervals": metrics.intervals(shown, sums, opened),
    }
    if baselines:
        reading = data.reading
        train = open_dataset(text, "train", data.examples, data.seed, vocabulary, reading)
        found["baselines"] = simple_methods(shown, train, opened, data.eval_batch)
    if loaded.spec.family == "word2vec":
        found |= _vectors(loaded.params, opened, words)
    elif words:
        raise UserError("--words: only a run of Word2Vec is measured by its vectors")
    return found, loaded.messages


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
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    options = ("split", "dataset", "objective", "examples", "checkpoint", "words")
    flags = ("trust", "baselines")
    given = arguments.split(argv, words=1, options=options, flags=flags, config=False)
    cache_compilations()
    check_compiler()
    chosen: dict[str, Any] = {**given.options, **{flag: flag in given.flags for flag in flags}}
    if "words" in chosen:
        chosen["words"] = tuple(filter(None, chosen["words"].split(",")))
    if "examples" in chosen:
        chosen["examples"] = arguments.whole(given, "examples", 1)
    found, messages = evaluate(given.words[0], **chosen)
    for text in messages:
        print(text, file=sys.stderr)
    print(json.dumps(without_nonfinite(found), indent=1, allow_nan=False))

"""Evaluate a checkpoint of a run folder on a split of its data, or on other data.

  tfm eval WORKDIR [--split=valid] [--checkpoint=best] [--dataset=NAME] [--objective=NAME]
                   [--examples=N] [--baselines] [--words=FILE,FILE] [--alignment] [--trust]
                   [--generate [--beams=K] [--lower] [--tokenize=13a] …]

The checkpoint is `best` (by validation loss) or `last`. The result is loss, perplexity, accuracy,
exact matches and, for text, bits per byte, with 95 % intervals over the examples, as JSON. An
imported model needs --dataset and --objective. --baselines adds what simple methods reach on the
same examples: n-grams, the most frequent class, a bag of words, the most frequent tag of each word.
Of a run of Word2Vec it is told how near the product of its matrices is to the identity, and with
--words what its vectors reach on files of similar words or of analogies. With --alignment, of a
translation whose data know it: for how many target words the source word that a head looks at is
the right one; the head is chosen on `valid`, or on `train` if `valid` is evaluated. Code that the
folder holds, a score of one's own, is run only with --trust.

With --generate, a run of pairs of texts writes the target of each source, by greedy decoding or
with the settings of `tfm generate` (--beams=4, --length_penalty=1, --max_new=100, …). What it
writes is compared with the targets as their files have them: BLEU and chrF by sacrebleu, with its
signatures, and exact matches; of all, and by the length of the source in tokens. --lower counts
without case, --tokenize is sacrebleu's (zh for Chinese).
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tfm.config import arguments
from tfm.config.names import UserError, read
from tfm.config.spec import to_spec
from tfm.data.dataset import Dataset
from tfm.data.datasets import DATASETS, open_dataset, takes_tokenizer
from tfm.decode.spec import DecodeSpec, decoding_settings
from tfm.evaluate import alignment, generation, metrics, word_vectors
from tfm.evaluate.baselines import baselines as simple_methods
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
            loaded, source, opened, split, dict(decoding), scoring, data.eval_batch
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
    if set(arguments.HELP) & set(argv):
        print(__doc__, end="")
        return
    options = ("split", "dataset", "objective", "examples", "checkpoint", "words")
    flags = ("trust", "baselines")
    decoding = tuple(own.name for own in dataclasses.fields(DecodeSpec))
    given = arguments.split(
        argv,
        words=1,
        options=(*options, *decoding, "tokenize"),
        flags=(*flags, "alignment", "generate", "lower"),
        config=False,
    )
    cache_compilations()
    check_compiler()
    chosen: dict[str, Any] = {
        name: given.options[name] for name in options if name in given.options
    }
    chosen |= {flag: flag in given.flags for flag in flags}
    chosen["aligned"] = "alignment" in given.flags
    settings = {name: given.options[name] for name in decoding if name in given.options}
    if "generate" in given.flags:
        lower, tokenize = "lower" in given.flags, given.options.get("tokenize", "13a")
        chosen["scoring"] = generation.Scoring(lower, tokenize)
        chosen["decoding"] = decoding_settings(settings)
    elif settings or "tokenize" in given.options or "lower" in given.flags:
        name = next(
            iter([*settings, *(["tokenize"] if "tokenize" in given.options else ["lower"])])
        )
        raise UserError(f"--{name} is for what a model writes: --generate")
    if "words" in chosen:
        chosen["words"] = tuple(filter(None, chosen["words"].split(",")))
    if "examples" in chosen:
        chosen["examples"] = arguments.whole(given, "examples", 1)
    found, messages = evaluate(given.words[0], **chosen)
    for text in messages:
        print(text, file=sys.stderr)
    print(json.dumps(without_nonfinite(found), indent=1, allow_nan=False))

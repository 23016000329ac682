"""The registry of data sets, and how they are opened.

A user's file may add its own by defining `DATASETS`: functions whose options have defaults and
which return a `Source`.
"""

import ast
import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tfm.config.names import UserError, expression, pick, read
from tfm.config.spec import Named
from tfm.data import grammars, nested, synthetic
from tfm.data.corpus import Corpus
from tfm.data.dataset import DEFAULT_READING, Dataset, Reading, Source
from tfm.data.formats import sentences, text, tfds
from tfm.data.mixture import Mixture, Task, checked

SPLITS = {"train": "to learn from", "valid": "to choose by", "test": "to report"}


def mixture(
    parts: tuple,
    weights: tuple = (),
    prefixes: tuple = (),
    tokens: bool = False,
    labels_as_text: bool = False,
) -> Source:
    """Several data sets as one: parts=('parallel(…)', 'table(…)').

    `weights` are proportional to how often each is read; without them every row comes once in an
    epoch. The text of `prefixes`, or with `tokens` a token of its task, precedes each row. All
    parts share one tokenizer. With `labels_as_text`, labels are texts to be written, as in T5. Each
    part of the validation split is also evaluated separately.
    """
    tasks = [
        Task(text, read(text, DATASETS, "data set"), weight, prefix)
        for text, weight, prefix in checked(parts, weights, prefixes, tokens)
    ]
    return Mixture(tuple(tasks), tokens, labels_as_text, fingerprint)


class NoData(Source):
    """No data: for imported models, which can be used, but not trained or evaluated."""

    def with_reading(self, reading: Reading) -> Source:
        return self

    def open(self, split: str, count: int | None, seed: int) -> Dataset:
        raise UserError("an imported model has no data: name a data set")


DATASETS: dict[str, Callable[..., Source]] = {
    **synthetic.DATASETS,
    **nested.DATASETS,
    **grammars.DATASETS,
    **text.DATASETS,
    **sentences.DATASETS,
    **tfds.DATASETS,
    "mixture": mixture,
    "none": NoData,
}


def open_splits(
    name: str,
    counts: Mapping[str, int | None],
    seed: int = 0,
    vocabulary: str | None = None,
    reading: Reading = DEFAULT_READING,
) -> dict[str, Dataset]:
    """Opens splits of the data set `name`: as many rows of each as `counts` says; None: all.

    The splits share one tokenizer, which is read once. With a `vocabulary`, text is read in its
    ids, and labels that it does not have are an error.
    """
    source = _source(name)
    try:
        source = source.with_reading(reading)
        source = source if vocabulary is None else source.with_vocabulary(vocabulary)
        opened = {}
        for split, count in counts.items():
            pick(SPLITS, split, "split")
            opened[split] = source.open(split, count, seed)
        digest = fingerprint(name, source)
    except UserError as e:
        raise UserError(f"data set {str(name)!r}: {e}") from e
    return {k: dataclasses.replace(data, fingerprint=digest) for k, data in opened.items()}


def open_dataset(
    name: str,
    split: str,
    count: int | None = None,
    seed: int = 0,
    vocabulary: str | None = None,
    reading: Reading = DEFAULT_READING,
) -> Dataset:
    """Opens one split; see `open_splits`."""
    return open_splits(name, {split: count}, seed, vocabulary, reading)[split]


def takes_tokenizer(name: str) -> bool:
    """Returns whether a data set is text, which needs a tokenizer."""
    source = _source(name)
    return isinstance(source, Corpus) or (isinstance(source, Mixture) and source.is_text)


def _source(name: str) -> Source:
    source = name.entry if isinstance(name, Named) else read(name, DATASETS, "data set")
    if not isinstance(source, Source):
        raise UserError(f"data set {name!r} must be a Source, not {source!r}")
    return source


def fingerprint(text: str, source: Source | None = None) -> str:
    """Hashes the name, the options that differ from their defaults, and the content of files. The
    paths of files do not matter."""
    source = _source(text) if source is None else source
    node, options = expression(text), dict[str, Any]()
    if isinstance(node, ast.Call):
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        node = node.func
    name = ast.unparse(node)
    defaults = inspect.signature(DATASETS[name]).parameters
    options = {k: v for k, v in options.items() if v != defaults[k].default}
    options |= source.contents()
    return hashlib.sha256(repr((name, sorted(options.items()))).encode()).hexdigest()

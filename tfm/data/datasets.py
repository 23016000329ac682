"""The table of data sets, and how one of them is opened.

A user's file may add its own by defining `DATASETS`: functions whose options have defaults, and
which return a `Source`.
"""

import ast
import dataclasses
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from tfm.config.names import UserError, pick, read
from tfm.config.spec import Named
from tfm.data import grammars, nested, synthetic
from tfm.data.dataset import DEFAULT_READING, Dataset, Reading, Source
from tfm.data.formats import characters, streams, tables, tfds
from tfm.data.formats.corpus import Corpus
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

    `weights`: how often each is read; without them every row comes once in an epoch. Before each
    row stands the text of `prefixes`, or with `tokens` a token that only its task has. One
    tokenizer serves all. `labels_as_text`: labels are texts to be written, as in T5. Each part of
    the validation split is also evaluated by itself.
    """
    tasks = [
        Task(text, read(text, DATASETS, "data set"), weight, prefix)
        for text, weight, prefix in checked(parts, weights, prefixes, tokens)
    ]
    return Mixture(tasks, tokens, labels_as_text, _fingerprint)


DATASETS: dict[str, Callable[..., Source]] = {
    **synthetic.DATASETS,
    **nested.DATASETS,
    **grammars.DATASETS,
    **characters.DATASETS,
    **streams.DATASETS,
    **tables.DATASETS,
    **tfds.DATASETS,
    "mixture": mixture,
}


def open_dataset(
    text: str,
    split: str,
    count: int | None = None,
    seed: int = 0,
    vocabulary: str | None = None,
    reading: Reading = DEFAULT_READING,
) -> Dataset:
    """`count` rows of a split of the data set that `text` names, or all that there are. With a
    `vocabulary`, text is read in its ids; what it does not have is an error."""
    source = _source(text)
    try:
        source = source.with_reading(reading)
        source = source if vocabulary is None else source.with_vocabulary(vocabulary)
        pick(SPLITS, split, "split")
        opened = source.open(split, count, seed)
        return dataclasses.replace(opened, fingerprint=_fingerprint(text, source))
    except UserError as e:
        raise UserError(f"data set {str(text)!r}: {e}") from e


def takes_tokenizer(text: str) -> bool:
    """Whether a data set is text, whose ids a tokenizer gives."""
    source = _source(text)
    return isinstance(source, Corpus) or (isinstance(source, Mixture) and source.is_text)


def fingerprint(text: str) -> str:
    """A hash of the name, of the options that differ from their defaults, and of the files. A file
    counts by what it holds, not by its path."""
    return _fingerprint(text, _source(text))


def _source(text: str) -> Source:
    source = text.entry if isinstance(text, Named) else read(text, DATASETS, "data set")
    if not isinstance(source, Source):
        raise UserError(f"data set {text!r} must be a Source, not {source!r}")
    return source


def _fingerprint(text: str, source: Source) -> str:
    node, options = ast.parse(text.strip(), mode="eval").body, dict[str, Any]()
    if isinstance(node, ast.Call):
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        node = node.func
    name = ast.unparse(node)
    takes = inspect.signature(DATASETS[name]).parameters
    options = {k: v for k, v in options.items() if v != takes[k].default} | {**source.contents()}
    return hashlib.sha256(repr((name, sorted(options.items()))).encode()).hexdigest()

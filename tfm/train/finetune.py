"""Starts a run from the weights of another, which was trained, fine-tuned or imported."""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.config.names import UserError
from tfm.data.tokenizers.tokenizer import meaning_of_ids, parsed_vocabulary, tokenizer_of
from tfm.layers.stack import SCANNED, scanned, unrolled
from tfm.run.checkpoint import Checkpoints, evaluated
from tfm.run.folder import Folder
from tfm.run.spec import RunSpec

PARAMS = "params/"  # not part of the paths that a pattern matches
EMBEDS = ("embed", "decoder_embed", "source_embed", "target_embed")
OTHER_LABELS = r"(?!(classify|tag|pair)/).*"  # the heads of classes that mean something else
SHOWN = 6  # names of arrays
TOKENS = (*(f"{x}/token/embedding" for x in EMBEDS), "masked_lm_bias")  # a row for each token id


def initial_variables(
    variables: Mapping[str, Any],
    folder: str,
    pattern: str | None,
    vocab: int | None = None,
    vocabulary: str | None = None,
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Loads the variables of a run folder whose paths match a pattern into those of a model.

    Also lists loaded, skipped and newly initialized paths. `vocab` and `vocabulary` are those of
    this run's data: token vectors are loaded only from a run whose ids mean the same. Ids that an
    objective adds after those of the data may differ. Without a pattern, the head of a classifier
    is loaded if its classes have the same names.
    """
    _, saved, _ = Checkpoints(pathlib.Path(folder), read_only=True).variables("best")
    ours = _flat(variables)
    theirs = _flat(_renamed(_like(evaluated(saved), variables), ours))
    known = Folder(folder).read("data.json")
    taken = ".*" if pattern is None else pattern
    if pattern is None and known and labels_of(known["vocabulary"]) != labels_of(vocabulary):
        taken = OTHER_LABELS
    loaded = sorted(path for path in theirs if path in ours and re.fullmatch(taken, path))
    if not loaded:
        raise UserError(
            f"train.init_pattern={pattern!r}: nothing in {folder} that matches is in this model, "
            f"which has {', '.join(sorted(ours)[:3])}, …"
        )
    imported = known is not None and not known["fingerprint"]
    tables = [path for path in loaded if path in TOKENS]
    if tables and known is not None and vocab is not None:
        _check_ids(folder, known, vocab, vocabulary, imported)
    new: dict[str, Any] = {}
    for path in loaded:
        there, here = np.asarray(theirs[path]), np.asarray(ours[path])
        same = path in tables and known is not None and known["vocab"] == vocab
        if same and not imported and there.shape[1:] == here.shape[1:]:
            rows = min(len(there), len(here))  # the others are not the data's own
            there = np.concatenate([there[:rows], here[rows:]])
        if there.shape != here.shape:
            raise UserError(
                f"train.init_from={folder!r}: {path} is {there.shape} there and {here.shape} "
                "here; train.init_pattern can leave it out"
            )
        new[path] = jax.numpy.asarray(there, here.dtype)
    report = {
        "loaded": loaded,
        "skipped": sorted(theirs.keys() - set(loaded)),
        "new": sorted(ours.keys() - set(loaded)),
    }
    after, paths = {**ours, **new}, flatten_dict(dict(variables), sep="/")
    return unflatten_dict({x: after[x.removeprefix(PARAMS)] for x in paths}, sep="/"), report


def labels_of(vocabulary: str | None) -> tuple[str, ...] | None:
    """Returns the names of the classes that a vocabulary has, if it has a tokenizer."""
    known = vocabulary is not None and tokenizer_of(vocabulary) is not None
    return parsed_vocabulary(str(vocabulary))[1] if known else None


def start_notes(run: RunSpec, report: Mapping[str, list[str]]) -> Iterator[str]:
    """Says which arrays a run starts from, and warns of a rate that would destroy them."""
    for name, paths in report.items():
        more = f", and {len(paths) - SHOWN} more in init.json" if len(paths) > SHOWN else ""
        names = f": {', '.join(paths[:SHOWN])}{more}" if paths else ""
        yield f"{run.train.init_from}: {len(paths)} arrays {name}{names}"
    rate, optimizer = run.optimizer.learning_rate, str(run.optimizer.name)
    if run.model.family == "encoder" and optimizer.startswith("adam") and rate >= 1e-3:
        yield (
            f"optimizer.learning_rate={rate:g} is high for a pre-trained encoder, which usually "
            "forgets what it has learned; 2e-5 to 1e-4 is usual"
        )


def _check_ids(
    folder: str, known: Mapping[str, Any], vocab: int, vocabulary: str | None, imported: bool
) -> None:
    """Raises if an id means something else in the data of the other run."""
    if meaning_of_ids(known.get("vocabulary")) == meaning_of_ids(vocabulary):
        return
    if imported:
        theirs, ours = tokenizer_of(known["vocabulary"]), tokenizer_of(vocabulary)
        if theirs is None or ours is None or theirs.rules.get_vocab() == ours.rules.get_vocab():
            return
    reason = "its token ids stand for other tokens than this run's"
    if known["vocab"] != vocab and not imported:
        reason = f"its data have {known['vocab']} token ids, and this run's {vocab}"
    raise UserError(
        f"train.init_from={folder!r}: {reason}, so its token vectors cannot be loaded: read both "
        f'texts with one vocabulary, data.tokenizer="of_run(path={folder!r})", or leave them out, '
        "train.init_pattern='(?!embed/).*'"
    )


def _renamed(tree: Mapping[str, Any], ours: Mapping[str, Any]) -> Mapping[str, Any]:
    """Renames the input vectors of Word2Vec to the embedding that they become."""
    params = tree["params"]
    if set(params) <= {"input", "output"} and "input" not in ours:
        params = {"embed": {"token": {"embedding": params["input"]}}}
    return {**tree, "params": params}


def _flat(variables: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten_dict(dict(variables), sep="/")
    return {path.removeprefix(PARAMS): leaf for path, leaf in flat.items()}


def _like(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Scans or unrolls the layers of a tree, like those of the other."""
    paths = [path.split("/") for path in flatten_dict(dict(other), sep="/")]
    return scanned(tree) if any(SCANNED in path for path in paths) else unrolled(tree)

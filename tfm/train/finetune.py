"""Starts a run from the weights of another, which was trained, fine-tuned or imported."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.config.names import UserError
from tfm.data.tokenizers.tokenizer import meaning_of_ids
from tfm.layers.stack import SCANNED, scanned, unrolled
from tfm.run.checkpoint import Checkpoints, evaluated
from tfm.run.folder import Folder

PARAMS = "params/"  # not part of the paths that a pattern matches
EMBEDS = ("embed", "decoder_embed", "source_embed", "target_embed")
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
    objective adds after those of the data may differ.
    """
    _, saved, _ = Checkpoints(pathlib.Path(folder), read_only=True).variables("best")
    ours = _flat(variables)
    theirs = _flat(_renamed(_like(evaluated(saved), variables), ours))
    loaded = sorted(path for path in theirs if path in ours and re.fullmatch(pattern or ".*", path))
    if not loaded:
        raise UserError(
            f"train.init_pattern={pattern!r}: nothing in {folder} that matches is in this model, "
            f"which has {', '.join(sorted(ours)[:3])}, …"
        )
    known = Folder(folder).read("data.json")
    if known is not None and not known["fingerprint"]:  # imported: its ids are not checked
        known = None
    tables = [path for path in loaded if path in TOKENS]
    if tables and known is not None and vocab is not None:
        _check_ids(folder, known, vocab, vocabulary)
    new: dict[str, Any] = {}
    for path in loaded:
        there, here = np.asarray(theirs[path]), np.asarray(ours[path])
        same = path in tables and known is not None and known["vocab"] == vocab
        if same and there.shape[1:] == here.shape[1:]:
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


def _check_ids(folder: str, known: Mapping[str, Any], vocab: int, vocabulary: str | None) -> None:
    """Raises if an id means something else in the data of the other run."""
    if meaning_of_ids(known.get("vocabulary")) == meaning_of_ids(vocabulary):
        return
    reason = "its token ids stand for other tokens than this run's"
    if known["vocab"] != vocab:
        reason = f"its data have {known['vocab']} token ids, and this run's {vocab}"
    raise UserError(
        f"train.init_from={folder!r}: {reason}, so its token vectors cannot be loaded: read both "
        "texts with one vocabulary, or leave them out, train.init_pattern='(?!embed/).*'"
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

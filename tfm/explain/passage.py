"""The text that is explained, as a model's inputs, and what its loss is the loss of."""

import dataclasses
from typing import Any

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import FIRST
from tfm.explain.vocabulary import Vocabulary
from tfm.models.spec import ModelSpec
from tfm.run.load import LoadedRun
from tfm.run.read import words as words_of
from tfm.run.text import reads_two

WRITERS = ("encoder_decoder", "seq2seq")
CLASSIFIERS = ("bag", "convolution")
UNSHOWN = {
    "word2vec": "its model has no layers: a word's vector is looked up, and nothing else is done",
}


@dataclasses.dataclass
class Passage:
    """`sequences` are the ids that are read and written, by name. `labels` holds, for each row of
    the logits, the id that is right, or −1 where there is none; None: the model's own choice."""

    inputs: dict[str, np.ndarray]
    sequences: dict[str, list[int]]
    written: str  # the sequence that logits stand at
    labels: np.ndarray | None = None
    loss_of: str = ""  # what the loss is that of, in words
    asked: list[int] | None = None  # the positions at which something is predicted; None: all


def passage(
    loaded: LoadedRun,
    words: Vocabulary,
    text: str,
    target: str | None = None,
    second: str | None = None,
) -> Passage:
    """The inputs for a text. An encoder–decoder without `target` has none yet: see `written`."""
    spec = loaded.spec
    if spec.family in UNSHOWN:
        raise UserError(
            f"a model of the family {spec.family!r} cannot be explained: {UNSHOWN[spec.family]}"
        )
    if getattr(spec, "shape", None) == "1:N":
        raise UserError("model.shape='1:N' starts from a vector, not from a text")
    if not text.strip():
        raise UserError("the text is empty: write what the model shall read")
    prompts = _prompts(loaded, words)
    if target is not None and spec.family not in WRITERS and not prompts:
        raise UserError(f"--target is for models that translate; {spec.family!r} reads one text")
    objective = None if loaded.run is None else loaded.run.objective.names[0]
    classifies = objective in ("pair", "classify", "regress")
    if second is not None and not (classifies and reads_two(loaded)):
        raise UserError("--second is for models that classify two sentences")
    if second is None and objective == "pair":
        raise UserError('the run was trained on two sentences: write --second="text"')
    ids = words.with_masks(text)
    if not ids:
        raise UserError(f"the text {text!r} has no token")
    if spec.family in WRITERS:
        written = None if target is None else words.encode(target)
        return _pair(spec, words, ids, written)
    if prompts:
        return _prompt(loaded, words, ids, None if target is None else words.encode(target))
    asked = None
    if objective == "tag":  # word by word, as in training
        row = words_of(loaded, text.split())
        ids, asked = row.ids, row.places
    elif words.wraps:
        ids = [words.special.bos, *ids, words.special.sep]
    inputs: dict[str, Any] = {}
    if second is not None:
        after = [*words.encode(second), words.special.sep]
        ids = [*ids, *(() if words.wraps else (words.special.sep,)), *after]
        if objective == "pair":
            types = np.arange(len(ids)) >= len(ids) - len(after)
            inputs["types_BT"] = types.astype(np.int32)[None]
    _check("text", ids, spec.vocab, _longest(spec))
    inputs["tokens_BT"] = np.array([ids], np.int32)
    found = Passage(inputs, {"tokens": ids}, "tokens", asked=asked)
    if writes_on(loaded):
        found.labels = np.array([*ids[1:], -1])
        found.loss_of = "each token, from those before it"
    elif spec.family == "encoder" and "masked_lm" in spec.outputs:  # type: ignore[attr-defined]
        mask = words.special.mask
        found.labels = np.array([-1 if id_ == mask else id_ for id_ in ids])
        found.loss_of = "each token, at its own place"
    return found


def _prompt(
    loaded: LoadedRun, words: Vocabulary, ids: list[int], target: list[int] | None
) -> Passage:
    """A pair as one sequence: the source, a separator, and the target."""
    ids, begin = [*ids, words.special.sep], len(ids) + 1
    if target is not None:
        ids = [*ids, *target]
    _check("text", ids, loaded.spec.vocab, _longest(loaded.spec))
    inputs = {"tokens_BT": np.array([ids], np.int32)}
    if loaded.run is not None and loaded.run.objective.names[0] == "prefix_lm":
        inputs["prefix_B"] = np.array([begin], np.int32)
    labels = np.array([*ids[1:], words.special.eos])
    labels[: begin - 1] = -1
    own = None if target is None else labels
    return Passage(inputs, {"tokens": ids}, "tokens", own, "each token of the target")


def _pair(spec: Any, words: Vocabulary, source: list[int], target: list[int] | None) -> Passage:
    longest = _longest(spec)
    _check("text", source, spec.vocab, longest)
    written = [words.start, *(target or ())]
    _check("target", written, spec.decoder_vocab or spec.vocab, longest)
    inputs = {
        "source_BS": np.array([source], np.int32),
        "decoder_input_BT": np.array([written], np.int32),
    }
    found = Passage(inputs, {"source": source, "target": written}, "target")
    if target is not None:
        found.labels = np.array([*target, words.special.eos])
        found.loss_of = "each token of the target, from those before it"
    return found


def with_target(found: Passage, words: Vocabulary, target: list[int], ended: bool) -> Passage:
    """The passage with a target that the model wrote itself."""
    written = [words.start, *target]
    last = words.special.eos if ended else -1
    return dataclasses.replace(
        found,
        inputs={**found.inputs, "decoder_input_BT": np.array([written], np.int32)},
        sequences={**found.sequences, "target": written},
        labels=np.array([*target, last]),
        loss_of="each token that the model wrote itself, from those before it",
    )


def writes_on(loaded: LoadedRun) -> bool:
    """Whether the model predicts the next token."""
    if loaded.spec.family in ("decoder", *WRITERS):
        return True
    of = "" if loaded.run is None else loaded.run.objective.names[0]
    return loaded.spec.family == "recurrent" and of == "next_token"


def _prompts(loaded: LoadedRun, words: Vocabulary) -> bool:
    """Whether what is wanted was written after the text, as one sequence."""
    of = "" if loaded.run is None else loaded.run.objective.names[0]
    return words.form in ("pairs", "labels") and of in ("next_token", "prefix_lm")


def _longest(spec: ModelSpec) -> int | None:
    return getattr(spec, "max_length", None)


def _check(side: str, ids: list[int], vocab: int | None, longest: int | None) -> None:
    if longest is not None and len(ids) > longest:
        raise UserError(
            f"the {side} has {len(ids)} tokens, but the model reads at most {longest} "
            "(model.max_length): write a shorter one"
        )
    beyond = [id_ for id_ in ids if not 0 <= id_ < (vocab or 0)]
    if beyond:
        raise UserError(
            f"the {side} has the id {beyond[0]}, but the model's vocabulary ends at "
            f"{(vocab or 0) - 1}: the tokenizer does not fit the model"
        )


def class_names(loaded: LoadedRun, words: Vocabulary, count: int) -> list[str] | None:
    """What the logits stand for, if not for the vocabulary."""
    spec = loaded.spec
    outputs = getattr(spec, "outputs", ())
    classes = getattr(spec, "classes", None)
    if spec.family == "encoder" and "masked_lm" in outputs:
        return None
    if spec.family not in ("encoder", "recurrent", *CLASSIFIERS) or classes is None:
        if words.labels is None or words.form != "labels":
            return None
        # A class that is written as a token has the id FIRST + its number.
        names = words.names(range(count))
        for i, name in enumerate(words.labels[: max(count - FIRST, 0)]):
            names[FIRST + i] = name
        return names
    if words.labels is not None and len(words.labels) == count:
        return list(words.labels)
    if count == spec.vocab:
        return None
    return [str(i) for i in range(count)]

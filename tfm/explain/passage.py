"""The text that is explained, as a model's inputs, and what follows it."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import FIRST
from tfm.data.reader import Prompt
from tfm.decode.spec import DecodeSpec
from tfm.objectives.base import softmax
from tfm.run.load import LoadedRun
from tfm.run.predict import model_inputs, writer_of

CANDIDATES, STEPS = 10, 8  # continuations on the page, and their length
LONGEST = 64  # target that the model writes itself


class Continuation(NamedTuple):
    """A next token, and the most likely tokens after it, each with its probability."""

    ids: list[int]
    probabilities: list[float]


@dataclasses.dataclass
class Passage:
    """The inputs of one forward pass. `sequences` are the ids that are read and written, by name.
    `labels` holds the right id for each row of the logits, or −1; None: the model's choice."""

    inputs: dict[str, np.ndarray]
    sequences: dict[str, list[int]]
    written: str  # the sequence that logits stand at
    labels: np.ndarray | None = None
    loss_of: str = ""  # what the loss measures, in words
    asked: list[int] | None = None  # the positions at which something is predicted; None: all
    prompt: Prompt | None = None


def passage(
    loaded: LoadedRun, text: str, target: str | None = None, second: str | None = None
) -> tuple[Passage, list[str]]:
    """Returns the inputs for a text, and notes for the reader of the page. The target of a source
    or a vector, if it is not given, is written by the model."""
    objective, reader = loaded.objective, loaded.reader
    if not text.strip():
        raise UserError("the text is empty: write what the model shall read")
    if target is not None and not objective.writes:
        raise UserError("--target is for models that translate; this one reads one text")
    if second is not None and (not objective.classifies or reader.two is False):
        raise UserError("--second is for models that classify two sentences")
    prompt = objective.prompt(reader, text, second=second, target=target)
    loss_of = "each token of the target, from those before it"
    if prompt.source is None and objective.continues(reader):
        loss_of = "each token, from those before it"
    elif objective.fills and not objective.writes:
        loss_of = "each token, at its place"
    notes = []
    if target is None and (prompt.source is not None or prompt.vector is not None):
        prompt = _with_target(loaded, prompt)
        notes.append("The target was written by the model itself, greedily (--target gives one).")
        loss_of = "each token that the model wrote itself, from those before it"
    written = "tokens" if prompt.source is None else "target"
    source = {} if prompt.source is None else {"source": list(prompt.source)}
    return Passage(
        inputs=model_inputs(loaded.spec, prompt),
        sequences={**source, written: list(prompt.tokens)},
        written=written,
        labels=None if prompt.labels is None else np.array(prompt.labels),
        loss_of=loss_of,
        asked=None if prompt.places is None else list(prompt.places),
        prompt=prompt,
    ), notes


def _with_target(loaded: LoadedRun, prompt: Prompt) -> Prompt:
    """Adds the target that the model writes, by greedy decoding."""
    model_inputs(loaded.spec, prompt)  # raises if the model cannot read it
    writer = writer_of(loaded, loaded.objective, prompt)
    most = min(loaded.spec.max_length or LONGEST, LONGEST)
    ((written,),) = writer.write([prompt], DecodeSpec(max_new=most))
    tokens = written.tokens
    target, last = (tokens[:-1], tokens[-1]) if written.ended else (tokens[: most - 1], -1)
    return prompt._replace(tokens=[*prompt.tokens, *target], labels=[*target, last])


def continuations(loaded: LoadedRun, passage: Passage, logits_V: np.ndarray) -> list[Continuation]:
    """Returns the most likely next tokens, each followed by the most likely ones after it."""
    prompt = passage.prompt
    assert prompt is not None
    longest = loaded.spec.max_length or len(prompt.tokens) + STEPS
    steps = min(STEPS, longest - len(prompt.tokens) + 1)  # the last one that is written is not read
    p_V = softmax(np.asarray(logits_V, np.float64))
    first = np.argsort(-logits_V, kind="stable")[:CANDIDATES].tolist()
    writer = writer_of(loaded, loaded.objective, prompt)
    writer = dataclasses.replace(writer, prefix=prompt.prefix is not None)
    going = [id_ for id_ in first if id_ not in writer.ends] if steps > 1 else []
    prompts = [prompt._replace(tokens=[*prompt.tokens, id_]) for id_ in going]
    written = writer.write(prompts, DecodeSpec(max_new=steps - 1)) if prompts else []
    out = {id_: Continuation([id_], [float(p_V[id_])]) for id_ in first}
    for id_, (rest,) in zip(going, written, strict=True):
        out[id_].ids.extend(rest.tokens)
        out[id_].probabilities.extend(np.exp(rest.logprobs).tolist())
    return list(out.values())


def follows(loaded: LoadedRun) -> bool:
    """Returns whether logits are of the token after each position."""
    return loaded.objective.writes and loaded.reader.form != "tags"


def class_names(loaded: LoadedRun, count: int) -> list[str] | None:
    """Returns what the logits stand for, if not for the vocabulary."""
    objective, reader = loaded.objective, loaded.reader
    if objective.classifies or objective.tags:
        if reader.labels is not None and len(reader.labels) == count:
            return list(reader.labels)
        return None if count == loaded.spec.vocab else [str(i) for i in range(count)]
    if reader.labels is None or reader.form != "labels":
        return None
    # A class that is written as a token has the id FIRST + its number.
    names: list[Any] = reader.names(range(count))
    for i, name in enumerate(reader.labels[: max(count - FIRST, 0)]):
        names[FIRST + i] = name
    return names

"""Predictions of a loaded run: objective.prompt → model or decoder → objective.answer."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.data.reader import MASK, MASKS, Prompt
from tfm.decode.prompts import bucket, check_length, padded, pads
from tfm.decode.sample import Filters, penalised, probabilities
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Writer
from tfm.models.spec import ModelSpec
from tfm.objectives.base import Objective
from tfm.objectives.table import OBJECTIVES, objectives

FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")


def _needed(loaded: Any, ability: str) -> Objective:
    """Returns the objective of a run if it has an ability, such as `writes`, or one that reads
    another output of its model."""
    outputs = getattr(loaded.spec, "outputs", None)
    for objective in (loaded.objective, *objectives().values()):
        reads = objective is loaded.objective if outputs is None else objective.output in outputs
        if getattr(objective, ability) and reads:
            return objective
    names = [name for name, entry in OBJECTIVES.items() if getattr(entry, ability)]
    needed = f"{', '.join(names[:-1])}{' or ' if names[:-1] else ''}{names[-1]}"
    if getattr(loaded.objective, ability):
        raise UserError(f"{loaded.folder}: its model has no head for {needed}")
    raise UserError(
        f"{loaded.folder} was trained by objective={str(loaded.run.objective)!r}, not by {needed}"
    )


def check_prompt(spec: ModelSpec, prompt: Prompt) -> None:
    """Raises if a model cannot read a prompt."""
    most = spec.max_length
    vocab = getattr(spec, "decoder_vocab", None) or spec.vocab
    for side, ids, ends in (("text", prompt.tokens, vocab), ("source", prompt.source, spec.vocab)):
        if ids is None:
            continue
        check_length(side, ids, most)
        if ends is not None and max(ids) >= ends:
            raise UserError(
                f"the {side} has the id {max(ids)}, and the model has {ends} ids: the tokenizer is "
                "not the model's"
            )
    width = getattr(spec, "vector", None)
    if prompt.vector is not None and len(prompt.vector) != width:
        raise UserError(f"the vector has {len(prompt.vector)} numbers, and the model reads {width}")


def model_inputs(spec: ModelSpec, prompt: Prompt, length: int | None = None) -> dict[str, Any]:
    """Returns the inputs of a forward pass over one prompt; with `length`, padded."""
    check_prompt(spec, prompt)
    tokens_BT, valid_BT = padded([prompt.tokens], length or len(prompt.tokens))
    if prompt.source is not None:
        return {"source_BS": np.array([prompt.source], np.int32), "decoder_input_BT": tokens_BT}
    inputs: dict[str, Any] = {"tokens_BT": tokens_BT}
    if length is not None:
        inputs["valid_BT"] = valid_BT
    if prompt.types is not None:
        inputs["types_BT"] = padded([prompt.types], tokens_BT.shape[1])[0]
    if prompt.vector is not None:
        inputs["vector_BD"] = np.array([prompt.vector], np.float32)
    if prompt.prefix is not None:
        inputs["prefix_B"] = np.array([prompt.prefix], np.int32)
    return inputs


def outputs(loaded: Any, objective: Objective, prompts: Sequence[Prompt]) -> list[np.ndarray]:
    """Returns the logits for each prompt: of the whole, or of each of its tokens."""
    spec = loaded.spec

    @jax.jit
    def run(variables: Any, inputs: Any) -> Any:
        out: Any = loaded.model.apply(variables, **inputs)
        return out[objective.output] if isinstance(out, dict) else out

    logits = []
    for prompt in prompts:
        length = bucket(len(prompt.tokens), spec.max_length) if pads(spec) else None
        logits.append(np.asarray(run(loaded.variables, model_inputs(spec, prompt, length))[0]))
    return logits


def _answers(loaded: Any, objective: Objective, prompts: Sequence[Prompt]) -> list[Any]:
    logits = outputs(loaded, objective, prompts)
    pairs = zip(prompts, logits, strict=True)
    return [objective.answer(loaded.reader, prompt, output) for prompt, output in pairs]


def classify(loaded: Any, texts: Sequence[tuple[str, str | None]]) -> list[dict[str, Any]]:
    """Returns the class and all probabilities, or a number, for each text with its second."""
    objective, reader = _needed(loaded, "classifies"), loaded.reader
    prompts = [objective.prompt(reader, text, second=second) for text, second in texts]
    answers = _answers(loaded, objective, prompts)
    return [
        {"text": text, **({} if second is None else {"second": second}), **answer}
        for (text, second), answer in zip(texts, answers, strict=True)
    ]


def tag(loaded: Any, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Returns the tag of each word of each text, and its probability."""
    objective, reader = _needed(loaded, "tags"), loaded.reader
    answers = _answers(loaded, objective, [objective.prompt(reader, text) for text in texts])
    return [
        [
            {"word": word, "tag": name, "probability": p}
            for word, (name, p) in zip(text.split(), tags, strict=True)
        ]
        for text, tags in zip(texts, answers, strict=True)
    ]


def fill(loaded: Any, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
    """Returns the most likely tokens, or spans, for each mask of a text."""
    if not any(mask in text for mask in MASKS):
        raise UserError(f"{text!r} has no {MASK}, which stands for the token to be predicted")
    objective, reader = _needed(loaded, "fills"), loaded.reader
    prompt = objective.prompt(reader, text)
    if not objective.writes:
        (output,) = outputs(loaded, objective, [prompt])
        return objective.filled(reader, prompt, output, top)
    writer = writer_of(loaded, objective, prompt)
    search = {"beams": top, "n_best": top, "length_penalty": 0.0} if top > 1 else {}
    (written,) = writer.write([prompt], writer.settings([prompt], search))
    return objective.filled(reader, prompt, [(one.tokens, one.score) for one in written], top)


def writer_of(loaded: Any, objective: Objective, prompt: Prompt) -> Writer:
    """Returns the model as it decodes, with the ids that end what it writes for a prompt."""
    known = vars(loaded).setdefault("_writer", [])
    if not known:
        known.append(Writer.of(loaded.spec, loaded.variables))
    ends = objective.ends(loaded.reader, prompt)
    return dataclasses.replace(known[0], ends=ends, prefix=objective.prefix)


class TextWriter:
    """A run that writes: texts in, texts out. `task` is the number of a task of a mixture."""

    def __init__(self, loaded: Any, task: int | None = None):
        objective, reader = loaded.objective, loaded.reader
        if not objective.writes:
            names = [name for name, one in OBJECTIVES.items() if one.writes]  # type: ignore[union-attr]
            raise UserError(
                f"{loaded.folder} was trained by objective={str(loaded.run.objective)!r}, which "
                f"does not teach it to write from a text; those that do: {', '.join(names)}"
            )
        if reader.form in ("labels", "tags"):
            raise UserError(f"{loaded.folder} writes {reader.form}, not text; tfm eval measures it")
        if task is not None:
            reader.task_ids(task)
        self.loaded, self.objective, self.reader, self.task = loaded, objective, reader, task

    @property
    def continues(self) -> bool:
        """Whether it continues a text, rather than writes its target."""
        return self.objective.continues(self.reader)

    def prompt(self, text: str | None) -> Prompt:
        prompt = self.objective.prompt(self.reader, text, task=self.task)
        self.writer([prompt]).room(prompt)
        check_prompt(self.loaded.spec, prompt)
        return prompt

    def writer(self, prompts: Sequence[Prompt]) -> Writer:
        return writer_of(self.loaded, self.objective, prompts[0])

    def text(self, prompt: Prompt, tokens: Sequence[int]) -> str:
        return self.objective.answer(self.reader, prompt, tokens)

    def write(
        self, texts: Sequence[str | None], options: Mapping[str, Any], batch: int = 32
    ) -> list[dict[str, Any]]:
        """Returns the sequences for each text, the best first, token by token."""
        prompts = [self.prompt(text) for text in texts]
        writer = self.writer(prompts)
        written = writer.write(prompts, writer.settings(prompts, options), batch)
        return [
            {
                "prompt": text,
                "sequences": [
                    {
                        "text": self.text(prompt, one.tokens),
                        "score": one.score,
                        "ended": one.ended,
                        "tokens": [
                            {"id": id_, "text": self.reader.name(id_), "logprob": logprob}
                            for id_, logprob in zip(one.tokens, one.logprobs, strict=True)
                        ],
                    }
                    for one in continuations
                ],
            }
            for text, prompt, continuations in zip(texts, prompts, written, strict=True)
        ]

    def stream(self, text: str | None, options: Mapping[str, Any]) -> Iterator[str]:
        """Yields what is new of the text while it is written, in whole characters."""
        prompt = self.prompt(text)
        writer = self.writer([prompt])
        written = writer.stream(prompt, writer.settings([prompt], options))
        return whole_pieces(self.text(prompt, sequence.tokens) for sequence in written)

    def distribution(
        self, text: str | None, options: Mapping[str, Any], temperatures: Sequence[float], top: int
    ) -> tuple[list[int], np.ndarray]:
        """Returns the most likely next tokens, and the probability of every token at each
        temperature (NV), with the filters of `options`."""
        prompt = self.prompt(text)
        logits_V = self.writer([prompt]).next_logits(prompt)
        filters = {name: options[name] for name in FILTERS if name in options}
        if "repetition_penalty" in filters:
            penalty = jnp.float32(filters.pop("repetition_penalty"))
            seen_V = np.isin(np.arange(len(logits_V)), prompt.tokens)
            logits_V = np.asarray(penalised(jnp.asarray(logits_V), jnp.asarray(seen_V), penalty))
        p_NV = np.stack([next_probabilities(logits_V, t, filters) for t in temperatures])
        return np.argsort(-logits_V, kind="stable")[:top].tolist(), p_NV


def next_probabilities(
    logits_V: np.ndarray, temperature: float, filters: Mapping[str, Any]
) -> np.ndarray:
    """Returns the probability that each token is drawn (V)."""
    spec = to_spec(DecodeSpec, {**filters, "temperature": temperature})
    p_BV = probabilities(jnp.asarray(logits_V)[None], Filters.of(spec, len(logits_V)))
    return np.asarray(jax.device_get(p_BV))[0]


def whole_pieces(texts: Iterator[str]) -> Iterator[str]:
    """Yields what is new in each of several texts, each of which continues the one before. Waits
    for all bytes of a character."""
    shown = text = ""
    for text in texts:
        ready = text.rstrip("\ufffd")
        if ready.startswith(shown) and len(ready) > len(shown):
            yield ready[len(shown) :]
            shown = ready
    if text.startswith(shown) and len(text) > len(shown):
        yield text[len(shown) :]

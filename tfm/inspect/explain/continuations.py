"""What a model would write next, token by token, by plain forward passes."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from tfm.inspect.explain.passage import Passage
from tfm.inspect.explain.vocabulary import Vocabulary
from tfm.run.load import LoadedRun

CANDIDATES, STEPS = 10, 8  # continuations that the page knows, and their length
LONGEST = 64  # of a target that nobody gave


class Continuation(NamedTuple):
    """A next token, and the most probable tokens after it, each with its probability."""

    ids: list[int]
    probabilities: list[float]


def continuations(loaded: LoadedRun, passage: Passage, words: Vocabulary) -> list[Continuation]:
    """The most probable next tokens, each followed by the most probable ones after it."""
    name = "decoder_input_BT" if passage.written == "target" else "tokens_BT"
    begin = passage.inputs[name].shape[1]
    longest = getattr(loaded.spec, "max_length", None) or begin + STEPS
    room = min(STEPS, longest - begin + 1)  # the last one that is written is not read
    logits_V = _run(loaded)(loaded.variables, passage.inputs)[0, begin - 1]
    first_C = np.argsort(-np.asarray(logits_V))[:CANDIDATES]
    return _greedy(loaded, passage, name, first_C, np.asarray(logits_V), room, words)


def write(loaded: LoadedRun, passage: Passage, words: Vocabulary) -> tuple[list[int], bool]:
    """What the model writes for a source, and whether it came to its end."""
    longest = min(getattr(loaded.spec, "max_length", None) or LONGEST, LONGEST)
    logits_V = np.asarray(_run(loaded)(loaded.variables, passage.inputs)[0, 0])
    best = np.argmax(logits_V)[None]
    name = "decoder_input_BT"
    ((ids, _),) = _greedy(loaded, passage, name, best, logits_V, longest - 1, words)
    ended = ids[-1] == words.special.eos
    return ids[:-1] if ended else ids, ended


def _run(loaded: LoadedRun) -> Any:
    return jax.jit(lambda variables, inputs: loaded.model.apply(variables, **inputs))


def _greedy(
    loaded: LoadedRun,
    passage: Passage,
    name: str,
    first_C: np.ndarray,
    logits_V: np.ndarray,
    steps: int,
    words: Vocabulary,
) -> list[Continuation]:
    """Each candidate goes on for `steps` tokens at most, until it ends.

    What stands after a token does not change it, so all steps are of one shape.
    """
    count, begin = len(first_C), passage.inputs[name].shape[1]
    room_CT = ((0, count - 1), (0, max(steps - 1, 0)))
    tokens_CT = np.pad(passage.inputs[name], room_CT, mode="edge")
    rest = {
        key: np.repeat(x, count, 0) for key, x in passage.inputs.items() if key != name
    }

    @jax.jit
    def step(variables: Any, tokens_CT: Any, at: Any) -> Any:
        logits_CTV = loaded.model.apply(variables, **{name: tokens_CT}, **rest)
        log_p_CV = jax.nn.log_softmax(jnp.take(logits_CTV, at, axis=1).astype(jnp.float32))
        return jnp.argmax(log_p_CV, -1), jnp.max(log_p_CV, -1)

    p_V = np.exp(logits_V - np.max(logits_V))
    found = [Continuation([int(id_)], [float(p_V[id_] / p_V.sum())]) for id_ in first_C]
    next_C = first_C
    for at in range(begin, begin + steps - 1):
        tokens_CT[:, at] = next_C
        next_C, log_p_C = (np.asarray(x) for x in step(loaded.variables, tokens_CT, at))
        for row, (id_, log_p) in enumerate(zip(next_C, log_p_C, strict=True)):
            if found[row].ids[-1] != words.special.eos:
                found[row].ids.append(int(id_))
                found[row].probabilities.append(float(np.exp(log_p)))
        if all(one.ids[-1] == words.special.eos for one in found):
            break
    return found

"""What a model would write next, token by token, by plain forward passes."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from tfm.explain.passage import Passage
from tfm.explain.vocabulary import Vocabulary
from tfm.run.load import LoadedRun

CANDIDATES, STEPS = 10, 8  # continuations that the page knows, and their length
LONGEST = 64  # of a target that nobody gave


class Continuation(NamedTuple):
    """A next token, and the most probable tokens after it, each with its probability."""

    ids: list[int]
    probabilities: list[float]


def continuations(
    loaded: LoadedRun, passage: Passage, words: Vocabulary, logits_V: np.ndarray
) -> list[Continuation]:
    """The most probable next tokens, each followed by the most probable ones after it."""
    name = "decoder_input_BT" if passage.written == "target" else "tokens_BT"
    tokens_BT = passage.inputs[name]
    begin = tokens_BT.shape[1]
    longest = getattr(loaded.spec, "max_length", None) or begin + STEPS
    steps = min(STEPS, longest - begin + 1)  # the last one that is written is not read
    p_V = np.exp(logits_V - np.max(logits_V))
    p_V /= p_V.sum()
    first_C = np.argsort(-logits_V, kind="stable")[:CANDIDATES]
    found = [Continuation([int(id_)], [float(p_V[id_])]) for id_ in first_C]
    tokens_CT = np.pad(
        np.concatenate([np.repeat(tokens_BT, len(first_C), 0), first_C[:, None]], 1),
        ((0, 0), (0, STEPS)),
    ).astype(np.int32)
    _go_on(loaded, passage, name, tokens_CT[:, : begin + steps - 1], begin, found, words)
    return found


def write(loaded: LoadedRun, passage: Passage, words: Vocabulary) -> tuple[list[int], bool]:
    """What the model writes for a source, and whether it came to its end."""
    longest = min(getattr(loaded.spec, "max_length", None) or LONGEST, LONGEST)
    name = "decoder_input_BT"
    tokens_BT = np.pad(passage.inputs[name], ((0, 0), (0, longest - 1)))
    found = Continuation([words.start], [1.0])
    _go_on(loaded, passage, name, tokens_BT, 0, [found], words)
    ended = found.ids[-1] == words.special.eos
    # What was written last is not read: a model reads `longest` tokens, with the first.
    return (found.ids[1:-1], True) if ended else (found.ids[1:longest], False)


def _go_on(
    loaded: LoadedRun,
    passage: Passage,
    name: str,
    tokens_CT: np.ndarray,
    begin: int,
    found: list[Continuation],
    words: Vocabulary,
) -> None:
    """Add to each of `found`, whose last token stands at `begin`, until all end or there is no
    place. What stands after a token does not change it, so all steps are of one shape."""
    inputs = {key: np.repeat(x, len(found), 0) for key, x in passage.inputs.items() if key != name}

    @jax.jit
    def step(variables: Any, inputs: Any, tokens_CT: Any, at: Any) -> Any:
        logits_CTV: Any = loaded.model.apply(variables, **{name: tokens_CT}, **inputs)
        log_p_CV = jax.nn.log_softmax(jnp.take(logits_CTV, at, axis=1).astype(jnp.float32))
        return jnp.argmax(log_p_CV, -1), jnp.max(log_p_CV, -1)

    for at in range(begin, tokens_CT.shape[1]):
        outputs = step(loaded.variables, inputs, tokens_CT, at)
        next_C, log_p_C = (np.asarray(x) for x in outputs)
        for one, id_, log_p in zip(found, next_C, log_p_C, strict=True):
            if at == begin or one.ids[-1] != words.special.eos:
                one.ids.append(int(id_))
                one.probabilities.append(float(np.exp(log_p)))
        if all(one.ids[-1] == words.special.eos for one in found):
            break
        if at + 1 < tokens_CT.shape[1]:
            tokens_CT[:, at + 1] = next_C

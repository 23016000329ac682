"""Beam search against one that is written down sequence by sequence, in NumPy."""

import numpy as np
import pytest

from tests.decode.test_writer import SPECS, model, prompts, whole
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Writer

END, NEW = 3, 5


def log_softmax(x):
    x = x.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def by_hand(logits, prompt, beams, penalty, stopping):
    """Lists of (score, tokens). Of all continuations the best 2K are looked at: those among the
    first K that end are finished, the best K others run on."""
    running, finished, closed = [(0.0, [])], [], False
    for length in range(1, NEW + 1):
        grown = [
            (score + logprob, [*tokens, token])
            for score, tokens in running
            for token, logprob in enumerate(log_softmax(logits([*prompt, *tokens])))
        ]
        grown = sorted(grown, key=lambda one: -one[0])[: 2 * beams]
        ends = [tokens[-1] == END or length == NEW for _, tokens in grown]
        for (score, tokens), end in list(zip(grown, ends, strict=True))[:beams]:
            if end and not closed:
                finished.append((score / length**penalty, tokens))
        finished = sorted(finished, key=lambda one: -one[0])[:beams]
        running = [one for one, end in zip(grown, ends, strict=True) if not end][:beams]
        if not running:
            break
        full = len(finished) == beams
        hoped = NEW if stopping == "never" and penalty > 0 else length
        if full and (stopping == "full" or running[0][0] / hoped**penalty <= finished[-1][0]):
            closed = True
    return finished


FAMILIES = ["decoder", "encoder_decoder", "recurrent", "seq2seq"]
SETTINGS = [(2, 1.0, "estimate"), (4, 0.0, "full"), (3, 2.0, "never"), (4, -1.0, "estimate")]


def cases():
    """Yields every family with all settings; the first tier has each family and setting once."""
    for i, name in enumerate(FAMILIES):
        for j, settings in enumerate(SETTINGS):
            yield pytest.param(name, *settings, marks=() if i == j else pytest.mark.ci)


@pytest.mark.parametrize(("name", "beams", "penalty", "stopping"), list(cases()))
def test_beams_are_those_of_the_definition(name, beams, penalty, stopping):
    spec = SPECS[name]
    module, tree = model(spec)
    settings = DecodeSpec(
        max_new=NEW, beams=beams, n_best=beams, length_penalty=penalty, stopping=stopping
    )
    found = Writer.of(spec, tree, ends=(END,)).write(prompts(spec), settings)
    for prompt, ones in zip(prompts(spec), found, strict=True):
        wanted = by_hand(whole(module, tree, prompt), list(prompt.tokens), beams, penalty, stopping)
        assert [one.tokens for one in ones] == [tokens for _, tokens in wanted]
        np.testing.assert_allclose(
            [one.score for one in ones], [score for score, _ in wanted], rtol=1e-5, atol=1e-4
        )
        for one in ones:
            total = sum(one.logprobs) / len(one.tokens) ** penalty
            assert one.score == pytest.approx(total, rel=1e-5, abs=1e-4)
            assert one.ended == (one.tokens[-1] == END)


def test_enough_beams_find_the_best_of_all_sequences():
    """Every sequence of two tokens, one by one."""
    spec = SPECS["decoder"]
    module, tree = model(spec)
    prompt = prompts(spec)[0]
    settings = DecodeSpec(max_new=2, beams=11, n_best=3, length_penalty=0.0)
    found = Writer.of(spec, tree).write([prompt], settings)[0]
    logits, ids = whole(module, tree, prompt), list(prompt.tokens)
    first = log_softmax(logits(ids))
    both = {
        (a, b): first[a] + log_softmax(logits([*ids, a]))[b] for a in range(11) for b in range(11)
    }
    best = sorted(both, key=lambda pair: -both[pair])[:3]
    assert [tuple(one.tokens) for one in found] == best
    np.testing.assert_allclose([one.score for one in found], [both[b] for b in best], atol=1e-4)

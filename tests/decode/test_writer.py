"""One loop for every family: with the cache as without it, together as alone, in few programs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.helpers.by_hand import init
from tests.helpers.quick import jit
from tests.helpers.tiers import first_tier
from tfm.config.names import UserError
from tfm.data.reader import Prompt
from tfm.decode import loop
from tfm.decode import prompts as arrays
from tfm.decode.prompts import bucket
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import Writer
from tfm.layers.attention import AttentionSpec
from tfm.layers.block import FeedForwardSpec
from tfm.layers.embed import PositionSpec
from tfm.models.spec import (
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    RecurrentSpec,
    SeqToSeqSpec,
)

VOCAB, NEW = 11, 6
WINDOW = "causal & window(left=3)"


def transformer(cls, scheme="rotary", max_length=48, **changes):
    return cls(
        vocab=VOCAB, width=8, layers=2, max_length=max_length,
        attention=AttentionSpec(heads=2), feedforward=FeedForwardSpec(width=12),
        position=PositionSpec(scheme=scheme), **changes,
    )  # fmt: skip


SPECS = {
    "decoder": transformer(DecoderSpec),
    "learned": transformer(DecoderSpec, "learned"),
    "window": transformer(DecoderSpec, mask="causal & window(left=2)"),
    "state_space": transformer(DecoderSpec, "none", mixer="state_space(states=4)"),
    "encoder_decoder": transformer(EncoderDecoderSpec, "sinusoidal"),
    "recurrent": RecurrentSpec(vocab=VOCAB, width=6, hidden=5, layers=2),
    "from_a_vector": RecurrentSpec(vocab=VOCAB, width=6, hidden=5, shape="1:N", vector=3),
    "seq2seq": SeqToSeqSpec(
        vocab=VOCAB, width=6, hidden=6, attention=AttentionSpec(heads=1, score="additive")
    ),
}
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, VOCAB, n).tolist() for n in (3, 9, 5)]


def prompts(spec):
    if spec.family in ("encoder_decoder", "seq2seq"):
        return [Prompt([1], source) for source in PROMPTS]
    if getattr(spec, "vector", None):
        return [Prompt(ids, vector=[0.5, n, -1.0]) for n, ids in enumerate(PROMPTS)]
    return [Prompt(ids) for ids in PROMPTS]


@functools.cache
def model(spec):
    module = spec.build()
    inputs = {k: np.zeros(x.shape, x.dtype) for k, x in spec.example(1, 4).items()}
    tree = init(module, **inputs)
    # Larger weights, so that the answers differ.
    return module, jax.tree.map(lambda x: 3 * x, tree)


@functools.cache
def compiled(module):
    return jit(module.apply)


def whole(module, tree, prompt):
    """One call of the full pass, of tokens that are padded to one length: what is after a token
    changes nothing before it."""
    if prompt.source is not None:
        source = np.array([prompt.source])
        run = lambda ids: compiled(module)(tree, source_BS=source, decoder_input_BT=ids)
    elif prompt.vector is not None:
        vector = np.array([prompt.vector], np.float32)
        run = lambda ids: compiled(module)(tree, ids, vector)
    else:
        run = lambda ids: compiled(module)(tree, ids)
    size = 16

    def logits(ids):
        padded = np.zeros((1, size), np.int32)
        padded[0, : len(ids)] = ids
        return np.asarray(run(padded))[0, len(ids) - 1]

    return logits


@pytest.mark.parametrize("name", SPECS)
def test_the_loop_writes_what_the_full_pass_would(name):
    """Greedy, token by token, without a cache; prompts of different lengths in one batch."""
    spec = SPECS[name]
    module, tree = model(spec)
    writer = Writer.of(spec, tree)
    found = writer.write(prompts(spec), DecodeSpec(max_new=NEW))
    for prompt, (one,) in zip(prompts(spec), found, strict=True):
        logits, ids, wanted = whole(module, tree, prompt), list(prompt.tokens), []
        for _ in range(NEW):
            x = logits(ids).astype(np.float64)
            ids.append(int(x.argmax()))
            wanted.append(x.max() - np.log(np.exp(x - x.max()).sum()) - x.max())
        assert one.tokens == ids[len(prompt.tokens) :]
        np.testing.assert_allclose(one.logprobs, wanted, atol=1e-4)
        assert one.score == pytest.approx(sum(wanted), abs=1e-3)
        assert not one.ended


@pytest.mark.parametrize("name", ["decoder", "encoder_decoder", "from_a_vector", "seq2seq"])
@pytest.mark.parametrize("search", [{}, {"beams": 2, "n_best": 2}])
def test_forward_passes_write_what_the_cache_writes(name, search):
    """A model that cannot keep a cache reads all tokens anew: here one that can."""
    spec = SPECS[name]
    _, tree = model(spec)
    cached, settings = Writer.of(spec, tree), DecodeSpec(max_new=NEW, **search)
    variables = {kind: {"model": leaves} for kind, leaves in cached.variables.items()}
    plain = dataclasses.replace(
        cached, module=arrays.WithoutCache(cached.module), variables=variables
    )
    for one, other in zip(
        plain.write(prompts(spec), settings), cached.write(prompts(spec), settings), strict=True
    ):
        assert [x.tokens for x in one] == [x.tokens for x in other]
        np.testing.assert_allclose([x.score for x in one], [x.score for x in other], atol=1e-4)


@pytest.mark.parametrize("changes", [{"mask": "everything"}, {"mixer": "token_mlp"}])
def test_a_model_that_cannot_keep_a_cache_decodes(changes):
    """Its greedy tokens are those of passes over exactly the tokens so far, without padding."""
    spec = transformer(DecoderSpec, "learned", **changes)
    module, tree = model(spec)
    assert spec.uncacheable is not None
    found = Writer.of(spec, tree).write(prompts(spec), DecodeSpec(max_new=3))
    for prompt, (one,) in zip(prompts(spec), found, strict=True):
        ids = list(prompt.tokens)
        for _ in range(3):
            ids.append(int(np.argmax(module.apply(tree, np.array([ids]))[0, -1])))
        assert one.tokens == ids[len(prompt.tokens) :]


def test_a_prefix_sees_itself():
    """As `prefix_lm` trains it: the tokens of the prompt see one another, in the cache too."""
    spec = SPECS["decoder"]
    module, tree = model(spec)
    found = Writer.of(spec, tree, prefix=True).write(prompts(spec), DecodeSpec(max_new=NEW))
    run = jit(lambda ids, prefix_B: module.apply(tree, ids[None], prefix_B=prefix_B))
    for prompt, (one,) in zip(prompts(spec), found, strict=True):
        ids = np.zeros(16, np.int32)
        ids[: len(prompt.tokens)] = prompt.tokens
        first = len(prompt.tokens)
        for place in range(first, first + NEW):
            ids[place] = np.argmax(run(ids, np.array([first]))[0, place - 1])
        assert one.tokens == ids[first : first + NEW].tolist()
    plain = Writer.of(spec, tree).write(prompts(spec), DecodeSpec(max_new=NEW))
    assert [ones[0].logprobs for ones in plain] != [ones[0].logprobs for ones in found]


def test_a_row_ends_and_the_others_go_on():
    spec = SPECS["decoder"]
    _, tree = model(spec)
    settings = DecodeSpec(max_new=12)
    free = Writer.of(spec, tree).write(prompts(spec), settings)
    end = free[0][0].tokens[2]
    found = Writer.of(spec, tree, ends=(end,)).write(prompts(spec), settings)
    for (without,), (one,) in zip(free, found, strict=True):
        cut = without.tokens.index(end) + 1 if end in without.tokens else len(without.tokens)
        assert one.tokens == without.tokens[:cut]
        assert one.logprobs == pytest.approx(without.logprobs[:cut], abs=1e-5)
        assert one.ended == (end in without.tokens)
    assert len(found[0][0].tokens) <= 3


def test_what_is_streamed_is_what_is_written():
    spec = SPECS["decoder"]
    _, tree = model(spec)
    writer, settings = Writer.of(spec, tree), DecodeSpec(max_new=11, temperature=1.0, seed=3)
    (whole,), prompt = writer.write([prompts(spec)[0]], settings)[0], prompts(spec)[0]
    parts = list(writer.stream(prompt, settings, chunk=4))
    assert [len(part.tokens) for part in parts] == [1, 5, 9, 11]
    assert parts[-1].tokens == whole.tokens
    for part in parts:
        assert part.tokens == whole.tokens[: len(part.tokens)]


def test_draws_follow_from_the_seed_and_the_row():
    """Not from who else is in the batch, nor from how it is cut."""
    spec = SPECS["decoder"]
    _, tree = model(spec)
    writer = Writer.of(spec, tree)
    settings = DecodeSpec(max_new=8, temperature=1.0)
    together = writer.write(prompts(spec), settings)
    assert writer.write(prompts(spec), settings, batch=2) == together
    assert writer.write(prompts(spec), DecodeSpec(max_new=8, temperature=1.0, seed=1)) != together
    copies = writer.write(prompts(spec)[:1], DecodeSpec(max_new=8, temperature=1.0, n_best=3))[0]
    assert len({tuple(one.tokens) for one in copies}) == 3
    assert [one.score for one in copies] == sorted((one.score for one in copies), reverse=True)


def test_the_penalty_is_that_of_the_definition():
    spec = SPECS["decoder"]
    module, tree = model(spec)
    settings = DecodeSpec(max_new=NEW, repetition_penalty=1.7)
    found = Writer.of(spec, tree).write(prompts(spec), settings)
    plain = Writer.of(spec, tree).write(prompts(spec), DecodeSpec(max_new=NEW))
    assert [one.tokens for (one,) in found] != [one.tokens for (one,) in plain]
    for prompt, (one,) in zip(prompts(spec), found, strict=True):
        logits, ids = whole(module, tree, prompt), list(prompt.tokens)
        for _ in range(NEW):
            x = logits(ids).copy()
            for id_ in set(ids):
                x[id_] = x[id_] / 1.7 if x[id_] > 0 else x[id_] * 1.7
            ids.append(int(x.argmax()))
        assert one.tokens == ids[len(prompt.tokens) :]


@pytest.mark.ci
def test_a_hundred_prompts_compile_as_many_programs_as_there_are_buckets():
    spec = transformer(DecoderSpec, max_length=96)
    _, tree = model(spec)
    writer = Writer.of(spec, tree)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 80, 100)
    buckets = {bucket(int(n)) for n in lengths}
    assert buckets == {16, 32, 64, 128}
    begin, advance = (arrays.compiled(fn, False) for fn in (loop.begin, arrays.advance))
    before = begin._cache_size(), advance._cache_size()
    asked = [Prompt(rng.integers(0, VOCAB, n).tolist()) for n in lengths]
    found = writer.write(asked, DecodeSpec(max_new=4), batch=8)
    after = begin._cache_size(), advance._cache_size()
    assert [b - a for a, b in zip(before, after, strict=True)] == [len(buckets)] * 2
    # Other numbers, prompts and batches compile nothing more.
    alone = [writer.write([one], DecodeSpec(max_new=4), batch=8)[0] for one in asked[:3]]
    assert [one[0].tokens for one in alone] == [one[0].tokens for one in found[:3]]
    again = begin._cache_size() - after[0]
    assert again <= len(buckets)  # batches of one row, which is another shape


def test_other_numbers_of_tokens_and_candidates_compile_few_programs():
    """A buffer, a cache and a number of candidates each have one of a few sizes."""
    spec = dataclasses.replace(SPECS["decoder"], vocab=40)
    _, tree = model(spec)
    writer = Writer.of(spec, tree)
    begin, advance = (arrays.compiled(fn, False) for fn in (loop.begin, arrays.advance))
    before = begin._cache_size(), advance._cache_size()
    longest = writer.write([Prompt([1, 2])], DecodeSpec(max_new=44, temperature=1.0, top_k=3))
    for new, count in zip(range(1, 45, 4), (*range(1, 6), *range(17, 23)), strict=True):
        settings = DecodeSpec(max_new=new, temperature=1.0, top_k=count)
        assert len(writer.write([Prompt([1, 2])], settings)[0][0].tokens) == new
    # Two of tokens (16, 32, 64), of caches (32, 48) and of candidates (16, 32) go together.
    assert begin._cache_size() - before[0] <= 6
    assert advance._cache_size() - before[1] <= 8
    # Fewer tokens are the first of more, and a number of candidates draws the same in any bucket.
    (some,) = writer.write([Prompt([1, 2])], DecodeSpec(max_new=9, temperature=1.0, top_k=3))[0]
    assert some.tokens == longest[0][0].tokens[:9]


def test_beyond_the_context_is_refused():
    spec = SPECS["learned"]
    _, tree = model(spec)
    writer = Writer.of(spec, tree)
    with pytest.raises(UserError, match="has 49 tokens, and the model was made for 48"):
        writer.write([Prompt([1] * 49)], DecodeSpec(max_new=1))
    with pytest.raises(UserError, match="max_new=4: the prompt has 46 tokens.* at most 3"):
        writer.write([Prompt([1] * 46)], DecodeSpec(max_new=4))
    (one,) = writer.write([Prompt([1] * 46)], DecodeSpec(max_new=3))[0]
    assert len(one.tokens) == 3
    assert np.all(np.isfinite(one.logprobs))
    with pytest.raises(UserError, match="the prompt is empty"):
        writer.write([Prompt([])], DecodeSpec())
    with pytest.raises(UserError, match="family='encoder' writes nothing; those that do: decoder"):
        Writer.of(transformer(EncoderSpec), {})


@pytest.mark.parametrize("mask", first_tier(["causal", WINDOW], [WINDOW]))
def test_a_cache_that_grows_gives_what_one_of_full_length_gives(mask, monkeypatch):
    """Prompts of different lengths, in a batch and streamed."""
    spec = transformer(DecoderSpec, mask=mask)
    _, tree = model(spec)
    writer, settings = Writer.of(spec, tree), DecodeSpec(max_new=30)
    asked = [Prompt(ids) for ids in PROMPTS]
    plain = writer.write(asked, settings)
    monkeypatch.setattr(arrays, "SHORTEST", 2)
    monkeypatch.setattr(arrays, "LEAST_CACHE", 4)
    assert arrays.cache_lengths(39, 9, 48) == [10, 18, 34, 48]
    *_, streamed = writer.stream(asked[0], settings, chunk=7)
    pairs = [*zip(writer.write(asked, settings), plain, strict=True), ([streamed], plain[0])]
    for (grown,), (one,) in pairs:
        assert grown.tokens == one.tokens
        np.testing.assert_allclose(grown.logprobs, one.logprobs, atol=1e-5)


@pytest.mark.parametrize(
    ("needed", "prompt", "most", "lengths"),
    [
        (19, 16, None, [32]),
        (271, 16, 512, [144, 272]),
        (1039, 16, None, [144, 272, 528, 1040]),
        (1039, 256, None, [272, 528, 1040]),  # more than the prompt
        (60, 48, 48, [48]),
    ],
)
def test_the_lengths_of_a_cache(needed, prompt, most, lengths):
    assert arrays.cache_lengths(needed, prompt, most) == lengths


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        pytest.param({}, marks=pytest.mark.ci),
        pytest.param({"beams": 2, "n_best": 2}, marks=pytest.mark.ci),
    ],
)
def test_rows_that_are_shared_between_cores_are_written_as_on_one(settings, monkeypatch):
    spec = transformer(DecoderSpec)
    _, tree = model(spec)
    writer, settings = Writer.of(spec, tree, (2,)), DecodeSpec(max_new=NEW, **settings)
    asked = [Prompt([row % VOCAB, row % 3]) for row in range(7)]
    plain = writer.write(asked, settings)
    monkeypatch.setattr("tfm.runtime.cores", lambda: [0, 1])
    monkeypatch.setattr("tfm.decode.writer.PER_CORE", 3)
    for shared, alone in zip(writer.write(asked, settings), plain, strict=True):
        assert [one.tokens for one in shared] == [one.tokens for one in alone]
        np.testing.assert_allclose(
            [one.score for one in shared], [one.score for one in alone], rtol=1e-5
        )

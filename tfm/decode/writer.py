"""One interface to every model that writes: prompts in, continuations out."""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.decode import beam, loop
from tfm.decode.sample import Filters
from tfm.decode.spec import DecodeSpec
from tfm.decode.start import (
    Programs,
    Start,
    bucket,
    cache_lengths,
    enlarged,
    longest,
    padded,
    pads,
    prefill,
    unrolled_model,
)
from tfm.models.spec import ModelSpec

READS_SOURCE = ("encoder_decoder", "seq2seq")
CHUNK = 16  # tokens that are fetched at a time, when they are streamed
PER_CORE = 8  # rows, from which on each core of a CPU writes its own


class Continuation(NamedTuple):
    """What was written after a prompt, its end included."""

    tokens: list[int]
    logprobs: list[float]  # of each token, by the model itself
    score: float  # of the whole: their sum; of beam search, normalised by length
    ended: bool  # by an end token; otherwise it was cut at the most tokens that were asked for


class Prompt(NamedTuple):
    """What a model begins from. Encoder–decoders read a source, and begin to write with `tokens`;
    others go on from the tokens, some from a vector."""

    tokens: Sequence[int]
    source: Sequence[int] | None = None
    vector: Sequence[float] | None = None


class Row(NamedTuple):
    """A prompt, its place among all, and which of its copies it is."""

    prompt: Prompt
    number: int = 0
    copy: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
    """A model with its parameters. `ends` are the ids that end a sequence; with `prefix`, the
    tokens of a prompt see one another."""

    spec: ModelSpec
    module: Any
    variables: Any
    ends: tuple[int, ...] = ()
    prefix: bool = False

    @classmethod
    def of(
        cls, spec: ModelSpec, variables: Any, ends: Sequence[int] = (), prefix: bool = False
    ) -> "Writer":
        module, variables = unrolled_model(spec, variables)
        return cls(spec, module, variables, tuple(ends), prefix)

    def write(
        self, prompts: Sequence[Prompt], settings: DecodeSpec, batch: int = 32
    ) -> list[list[Continuation]]:
        """For each prompt its continuations, the best first. All batches of a call have as many
        rows, and prompts are padded to a few lengths, so few programs are compiled."""
        found: list[list[Continuation]] = [[] for _ in prompts]
        copies = settings.n_best if settings.beams == 1 else 1
        rows = [
            Row(prompt, number, copy)
            for number, prompt in enumerate(prompts)
            for copy in range(copies)
        ]
        cores, size = _cores(), min(batch, len(rows))
        shared = cores > 1 and size >= cores * PER_CORE  # each core writes rows of its own
        size = -(-size // cores) if shared else size
        # Of all prompts, not of a batch: the batches of a bucket share one program.
        even = len({len(prompt.tokens) for prompt in prompts}) == 1
        batches = [
            _Batch(self, own, settings, size, even, shared) for own in self._batches(rows, size)
        ]
        if shared:
            with ThreadPoolExecutor(cores) as pool:
                written = list(pool.map(_Batch.write, batches))
        else:
            written = [own.write() for own in batches]
        for own, each in zip(batches, written, strict=True):
            for row, ones in zip(own.rows, each, strict=True):
                found[row.number] += ones
        return [sorted(ones, key=lambda one: -one.score)[: settings.n_best] for ones in found]

    def stream(
        self, prompt: Prompt, settings: DecodeSpec, chunk: int = CHUNK
    ) -> Iterator[Continuation]:
        """What is written so far, again and again, some tokens more each time."""
        if settings.beams > 1 or settings.n_best > 1:
            raise UserError("what is streamed is one sequence: beams=1 and n_best=1")
        for written in _Batch(self, [Row(prompt)], settings, 1, even=True).sampled(chunk):
            yield written[0]

    def next_logits(self, prompt: Prompt) -> np.ndarray:
        """V: the logits of the token that follows."""
        start, lengths = self.start([prompt], 1, 1, True)
        logits_BV, _ = _logits(self.module, self.variables, start, length=lengths[-1])
        return np.asarray(logits_BV[0])

    def room(self, prompt: Prompt) -> int | None:
        """How many tokens can follow a prompt; None: any number. A prompt that leaves no room, or a
        source that is too long, is an error."""
        most = longest(self.spec)
        for name, ids in (("prompt", prompt.tokens), ("source", prompt.source)):
            if ids is None:
                continue
            if not len(ids):
                raise UserError(f"the {name} is empty")
            if most is not None and len(ids) > most:
                raise UserError(
                    f"the {name} has {len(ids)} tokens, and the model was made for {most} "
                    f"(model.max_length); nothing is cut off: shorten it"
                )
        return None if most is None else most - len(prompt.tokens) + 1

    def _batches(self, rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
        """Prompts of one shape together, `size` at a time."""
        groups: dict[Any, list[Row]] = {}
        for row in rows:
            groups.setdefault(self._shape(row.prompt), []).append(row)
        for group in groups.values():
            for first in range(0, len(group), size):
                yield group[first : first + size]

    def _shape(self, prompt: Prompt) -> tuple[int, int]:
        """The lengths that the prompt and its source are padded to."""
        self.room(prompt)  # or it is refused
        sizes = len(prompt.tokens), len(prompt.source or ())
        if not pads(self.spec):
            return sizes
        most = longest(self.spec)
        if self.spec.family in READS_SOURCE:
            return sizes[0], bucket(sizes[1], most)
        return bucket(sizes[0], most), 0

    def start(
        self, prompts: Sequence[Prompt], size: int, new: int, even: bool
    ) -> tuple[Start, list[int]]:
        """The arrays of a batch, filled up to `size` rows; and the lengths that the cache needs.
        `even`: all prompts are as long, which is faster."""
        shape = self._shape(prompts[0])
        for prompt in prompts:
            room = self.room(prompt)
            if room is not None and new > room:
                raise UserError(
                    f"max_new={new}: the prompt has {len(prompt.tokens)} tokens, and the model "
                    f"was made for {longest(self.spec)} (model.max_length), so at most {room} can "
                    "follow"
                )
        filled = [*prompts, *[prompts[0]] * (size - len(prompts))]
        prompt_BT, valid_BT = padded([one.tokens for one in filled], shape[0])
        inputs: dict[str, Any] = {}
        if self.spec.family in READS_SOURCE:
            if any(one.source is None for one in filled):
                raise UserError(f"model.family={self.spec.family!r} writes from a source: give one")
            source_BS, source_valid_BS = padded([one.source or () for one in filled], shape[1])
            inputs = {"source_BS": source_BS}
            if pads(self.spec):
                inputs["source_valid_BS"] = source_valid_BS
        if prompts[0].vector is not None:
            inputs["vector_BD"] = np.asarray([one.vector for one in filled], np.float32)
        wanted_B = np.arange(size) < len(prompts)
        # Whether padding is told follows from the family alone, or a batch would compile anew.
        gives_valid = pads(self.spec) and self.spec.family not in READS_SOURCE
        start = Start(
            jnp.asarray(prompt_BT),
            jnp.asarray(valid_BT) if gives_valid else None,
            jnp.asarray(wanted_B),
            jax.tree.map(jnp.asarray, inputs),
            self.prefix,
            even,
        )
        # The last token that is written is never read.
        return start, cache_lengths(shape[0] + new - 1, shape[0], longest(self.spec))

    def continuation(
        self, tokens_N: np.ndarray, logprobs_N: np.ndarray, count: int, score: float | None = None
    ) -> Continuation:
        tokens, logprobs = tokens_N[:count].tolist(), logprobs_N[:count].tolist()
        score = sum(logprobs) if score is None else score
        return Continuation(tokens, logprobs, score, bool(tokens) and tokens[-1] in self.ends)


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Rows that are written together, filled up to `size`."""

    writer: Writer
    rows: Sequence[Row]
    settings: DecodeSpec
    size: int
    even: bool
    one_core: bool = False

    def write(self) -> list[list[Continuation]]:
        """For each row what is written, the best first."""
        if self.settings.beams > 1:
            return self.searched()
        *_, last = self.sampled(self.settings.max_new)
        return [[one] for one in last]

    def sampled(self, chunk: int) -> Iterator[list[Continuation]]:
        """What is written of each row, again and again, `chunk` tokens more each time."""
        settings, new = self.settings, self.settings.max_new
        # A row's draws are its own: they follow from the seed, its number and its copy.
        names_B2 = np.zeros((self.size, 2), np.uint32)
        names_B2[: len(self.rows)] = [(row.number, row.copy) for row in self.rows]
        key_B = _keys(jax.random.key(settings.seed), names_B2)
        points = [*range(1, new, chunk), new]
        for state in self._states(
            *(loop.begin, loop.advance, points, (Filters.of(settings), key_B)), top_k=settings.top_k
        ):
            count_B, tokens_BN, logprobs_BN = jax.device_get(
                (state.count_B, state.tokens_BN, state.logprobs_BN)
            )
            yield [
                self.writer.continuation(tokens_BN[row], logprobs_BN[row], count_B[row])
                for row in range(len(self.rows))
            ]

    def searched(self) -> list[list[Continuation]]:
        """The best sequences of each row, by beam search."""
        settings = self.settings
        numbers = beam.Numbers(
            jnp.float32(settings.length_penalty), Filters.of(settings).repetition_penalty
        )
        begin = Programs(*(functools.partial(fn, beams=settings.beams) for fn in beam.begin))
        *_, state = self._states(
            *(begin, beam.advance, [settings.max_new], (numbers,)),
            stopping=str(settings.stopping),
        )
        finished = jax.device_get(state.finished)
        best = finished.best
        return [
            [
                self.writer.continuation(
                    best.tokens_BKN[row, k],
                    best.logprobs_BKN[row, k],
                    finished.length_BK[row, k],
                    float(best.score_BK[row, k]),
                )
                for k in range(settings.n_best)
                if finished.real_BK[row, k]
            ]
            for row in range(len(self.rows))
        ]

    def _states(
        self,
        begin: Programs,
        advance: Programs,
        points: Sequence[int],
        numbers: tuple[Any, ...],
        **options: Any,
    ) -> Iterator[Any]:
        """The state once so many tokens are written, for each of `points`, until every row has
        ended. A cache that is full is replaced by a larger one."""
        writer, new, prompts = self.writer, points[-1], [row.prompt for row in self.rows]
        start, lengths = writer.start(prompts, self.size, new, self.even)
        model, ends = (writer.module, writer.variables), jnp.asarray(writer.ends, jnp.int32)
        name = "one_core" if self.one_core else "all_cores"
        read, write = getattr(begin, name), getattr(advance, name)
        state = read(*model, start, ends, *numbers, length=lengths[0], new=new, **options)
        prompt, written = max(len(prompt.tokens) for prompt in prompts), 1
        for until in points:
            while written < until and not state.over:
                if prompt + written - 1 == lengths[0]:  # all that are read have their places
                    lengths = lengths[1:]
                    cache = enlarged(*model, start, state.cache, length=lengths[0])
                    state = state.replace(cache=cache)
                written = min(until, lengths[0] - prompt + 1)
                state = write(*model, state, ends, numbers[0], until=jnp.int32(written), **options)
            yield state
            if state.over:
                return


_logits = jax.jit(prefill, static_argnames=("module", "length"))


@jax.jit
def _keys(key: Any, names_B2: Any) -> Any:
    each = jax.vmap(
        lambda name_2: jax.random.fold_in(jax.random.fold_in(key, name_2[0]), name_2[1])
    )
    return each(names_B2)


def _cores() -> int:
    """Of the CPU that computes; 1 if it is no CPU."""
    if jax.default_backend() != "cpu":
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""One interface to every model that writes: prompts in, continuations out."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from tfm import runtime
from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.data.reader import Prompt
from tfm.decode import beam, loop
from tfm.decode.prompts import (
    Prompts,
    WithoutCache,
    advance,
    bucket,
    cache_lengths,
    check_length,
    compiled,
    enlarged,
    padded,
    pads,
    prefill,
    writing_model,
)
from tfm.decode.sample import Filters
from tfm.decode.spec import DecodeSpec
from tfm.models.spec import ModelSpec

CHUNK = 16  # tokens that are fetched at a time, when they are streamed
PER_CORE = 8  # rows, from which on each core of a CPU writes its own


class Continuation(NamedTuple):
    """What a model wrote after a prompt, its end included."""

    tokens: list[int]
    logprobs: list[float]  # of each token, by the model itself
    score: float  # of the whole: their sum; of beam search, normalised by length
    ended: bool  # by an end token; otherwise it was cut at `max_new` tokens


class Request(NamedTuple):
    """A prompt, its number among all, and which of its copies it is."""

    prompt: Prompt
    number: int = 0
    copy: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
    """A model with its parameters. Any id of `ends` ends a sequence; with `prefix`, the tokens of a
    prompt, or the first `Prompt.prefix` of them, see one another."""

    spec: ModelSpec
    module: Any
    variables: Any
    ends: tuple[int, ...] = ()
    prefix: bool = False

    @classmethod
    def of(
        cls, spec: ModelSpec, variables: Any, ends: Sequence[int] = (), prefix: bool = False
    ) -> "Writer":
        module, variables = writing_model(spec, variables)
        return cls(spec, module, variables, tuple(ends), prefix)

    def write(
        self, prompts: Sequence[Prompt], settings: DecodeSpec, batch: int = 32
    ) -> list[list[Continuation]]:
        """Returns the continuations of each prompt, the best first. All batches of a call have as
        many rows, and prompts are padded to a few lengths, so few programs are compiled."""
        out: list[list[Continuation]] = [[] for _ in prompts]
        copies = settings.n_best if settings.beams == 1 else 1
        requests = [
            Request(prompt, number, copy)
            for number, prompt in enumerate(prompts)
            for copy in range(copies)
        ]
        cores = len(runtime.cores()) if jax.default_backend() == "cpu" else 1
        size = min(batch, len(requests))
        shared = cores > 1 and size >= cores * PER_CORE  # each core writes other rows
        size = -(-size // cores) if shared else size
        # Of all prompts, not of a batch: the batches of a bucket share one program.
        even = len({len(prompt.tokens) for prompt in prompts}) == 1
        batches = [
            _Batch(self, group, settings, size, even, shared)
            for group in self._batches(requests, size)
        ]
        if shared:
            with ThreadPoolExecutor(cores) as pool:
                written = list(pool.map(_Batch.write, batches))
        else:
            written = [each.write() for each in batches]
        for each, results in zip(batches, written, strict=True):
            for request, continuations in zip(each.requests, results, strict=True):
                out[request.number] += continuations
        return [sorted(each, key=lambda x: -x.score)[: settings.n_best] for each in out]

    def settings(self, prompts: Sequence[Prompt], options: Mapping[str, Any]) -> DecodeSpec:
        """Returns the settings of decoding; `max_new`, if not set, is limited by the room there
        is."""
        rooms = [] if "max_new" in options else [self.room(prompt) for prompt in prompts]
        most = min([DecodeSpec().max_new, *(room for room in rooms if room is not None)])
        return to_spec(DecodeSpec, {"max_new": most, **options}, "--")

    def stream(
        self, prompt: Prompt, settings: DecodeSpec, chunk: int = CHUNK
    ) -> Iterator[Continuation]:
        """Yields what is written so far, with more tokens each time."""
        if settings.beams > 1 or settings.n_best > 1:
            raise UserError("only one sequence can be streamed: beams=1 and n_best=1")
        for written in _Batch(self, [Request(prompt)], settings, 1, even=True).sampled(chunk):
            yield written[0]

    def next_logits(self, prompt: Prompt) -> np.ndarray:
        """Returns the logits of the token that follows (V)."""
        arrays, lengths = self.prompts([prompt], 1, 1, True)
        logits_BV, _ = _logits(self.module, self.variables, arrays, length=lengths[-1])
        return np.asarray(logits_BV[0])

    def room(self, prompt: Prompt) -> int | None:
        """Returns how many tokens can follow a prompt; None: any number. Raises if the prompt or
        its source is too long."""
        most = self.spec.max_length
        for name, ids in (("prompt", prompt.tokens), ("source", prompt.source)):
            if ids is None:
                continue
            if not len(ids):
                raise UserError(f"the {name} is empty")
            check_length(name, ids, most)
        return None if most is None else most - len(prompt.tokens) + 1

    def _batches(self, requests: Sequence[Request], size: int) -> Iterator[list[Request]]:
        """Yields requests whose prompts have one shape, `size` at a time."""
        groups: dict[Any, list[Request]] = {}
        for request in requests:
            groups.setdefault(self._shape(request.prompt), []).append(request)
        for group in groups.values():
            for first in range(0, len(group), size):
                yield group[first : first + size]

    def _shape(self, prompt: Prompt) -> tuple[int, int]:
        """Returns the lengths that the prompt and its source are padded to."""
        self.room(prompt)  # raises if it is too long
        sizes = len(prompt.tokens), len(prompt.source or ())
        if not pads(self.spec):
            return sizes
        most = self.spec.max_length
        if self.spec.has_source:
            return sizes[0], bucket(sizes[1], most)
        return bucket(sizes[0], most), 0

    def prompts(
        self, prompts: Sequence[Prompt], size: int, new: int, even: bool
    ) -> tuple[Prompts, list[int]]:
        """Returns the arrays of a batch, filled up to `size` rows, and the lengths that the cache
        needs in turn. `even`: all prompts are as long, which is faster."""
        shape = self._shape(prompts[0])
        for prompt in prompts:
            room = self.room(prompt)
            if room is not None and new > room:
                raise UserError(
                    f"max_new={new}: the prompt has {len(prompt.tokens)} tokens, and the model "
                    f"was made for {self.spec.max_length} (model.max_length), so at most {room} "
                    "can follow"
                )
        filled = [*prompts, *[prompts[0]] * (size - len(prompts))]
        prompt_BT, valid_BT = padded([one.tokens for one in filled], shape[0])
        inputs: dict[str, Any] = {}
        if self.spec.has_source:
            if any(one.source is None for one in filled):
                raise UserError("this model writes from a source: give one")
            source_BS, source_valid_BS = padded([one.source or () for one in filled], shape[1])
            inputs = {"source_BS": source_BS}
            if pads(self.spec):
                inputs["source_valid_BS"] = source_valid_BS
        if prompts[0].vector is not None:
            inputs["vector_BD"] = np.asarray([one.vector for one in filled], np.float32)
        wanted_B = np.arange(size) < len(prompts)
        prefix = [len(one.tokens) if one.prefix is None else one.prefix for one in filled]
        # Whether `valid_BT` is given follows from the model alone, or batches would compile anew.
        gives_valid = pads(self.spec) and not self.spec.has_source
        arrays = Prompts(
            jnp.asarray(prompt_BT),
            jnp.asarray(valid_BT) if gives_valid else None,
            jnp.asarray(wanted_B),
            jax.tree.map(jnp.asarray, inputs),
            jnp.asarray(prefix, jnp.int32) if self.prefix else None,
            even,
        )
        # The last token that is written is never read.
        lengths = cache_lengths(shape[0] + new - 1, shape[0], self.spec.max_length)
        return arrays, lengths[-1:] if isinstance(self.module, WithoutCache) else lengths

    def continuation(
        self, tokens_N: np.ndarray, logprobs_N: np.ndarray, count: int, score: float | None = None
    ) -> Continuation:
        tokens, logprobs = tokens_N[:count].tolist(), logprobs_N[:count].tolist()
        score = sum(logprobs) if score is None else score
        return Continuation(tokens, logprobs, score, bool(tokens) and tokens[-1] in self.ends)


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Requests that are written together, filled up to `size` rows."""

    writer: Writer
    requests: Sequence[Request]
    settings: DecodeSpec
    size: int
    even: bool
    one_core: bool = False

    def write(self) -> list[list[Continuation]]:
        """Returns what is written for each request, the best first."""
        if self.settings.beams > 1:
            return self.searched()
        *_, last = self.sampled(self.settings.max_new)
        return [[one] for one in last]

    def sampled(self, chunk: int) -> Iterator[list[Continuation]]:
        """Yields what is written for each request, with `chunk` tokens more each time."""
        settings, new = self.settings, self.settings.max_new
        # The draws of a request follow from the seed, its number and its copy alone.
        names_B2 = np.zeros((self.size, 2), np.uint32)
        names_B2[: len(self.requests)] = [(one.number, one.copy) for one in self.requests]
        key_B = _keys(jax.random.key(settings.seed), names_B2)
        points = [*range(1, new, chunk), new]
        spec: Any = self.writer.spec
        vocab = getattr(spec, "decoder_vocab", None) or spec.vocab
        for state in self._states(loop.begin, points, (Filters.of(settings, vocab), key_B)):
            rows = jax.device_get((state.tokens_BN, state.logprobs_BN, state.count_B))
            yield [
                self.writer.continuation(*row)
                for _, *row in zip(self.requests, *rows, strict=False)
            ]

    def searched(self) -> list[list[Continuation]]:
        """Returns the best sequences for each request, by beam search."""
        settings = self.settings
        numbers = beam.Numbers(
            jnp.float32(settings.length_penalty),
            jnp.int32(settings.max_new),
            Filters.of(settings).repetition_penalty,
        )
        *_, state = self._states(
            beam.begin,
            [settings.max_new],
            (numbers,),
            {"beams": settings.beams},
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
            for row in range(len(self.requests))
        ]

    def _states(
        self,
        begin: Callable[..., Any],
        points: Sequence[int],
        numbers: tuple[Any, ...],
        sizes: Mapping[str, int] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Yields the state when the number of tokens reaches each of `points`, until every row has
        ended. A full cache is replaced by a larger one. `sizes` are for `begin` alone."""
        writer, new, prompts = self.writer, points[-1], [one.prompt for one in self.requests]
        arrays, lengths = writer.prompts(prompts, self.size, new, self.even)
        model, ends = (writer.module, writer.variables), jnp.asarray(writer.ends, jnp.int32)
        read, write = compiled(begin, self.one_core), compiled(advance, self.one_core)
        sizes = {"length": lengths[0], "new": bucket(new), **(sizes or {})}
        state = read(*model, arrays, ends, *numbers, **sizes, **options)
        prompt, written = max(len(prompt.tokens) for prompt in prompts), 1
        for until in points:
            while written < until and not state.stop:
                if prompt + written - 1 == lengths[0]:  # all that are read have their places
                    lengths = lengths[1:]
                    cache = enlarged(*model, arrays, state.cache, length=lengths[0])
                    state = state.replace(cache=cache)
                written = min(until, lengths[0] - prompt + 1)
                state = write(*model, state, ends, numbers[0], until=jnp.int32(written), **options)
            yield state
            if state.stop:
                return


_logits = jax.jit(prefill, static_argnames=("module", "length"))


@jax.jit
def _keys(key: Any, names_B2: Any) -> Any:
    each = jax.vmap(
        lambda name_2: jax.random.fold_in(jax.random.fold_in(key, name_2[0]), name_2[1])
    )
    return each(names_B2)

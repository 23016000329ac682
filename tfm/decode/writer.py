"""One interface to every model that writes: prompts in, continuations out."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from tfm.decode import beam, loop
from tfm.decode.sample import Filters
from tfm.decode.spec import DecodeSpec
from tfm.decode.start import (
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
from tfm.names import UserError

READS_SOURCE = ("encoder_decoder", "seq2seq")
CHUNK = 16  # tokens that are fetched at a time, when they are streamed


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
        asked = [(number, copy) for number in range(len(prompts)) for copy in range(copies)]
        size = min(batch, len(asked))
        # Of all prompts, not of a batch: the batches of a bucket share one program.
        even = len({len(prompt.tokens) for prompt in prompts}) == 1
        for rows in self._batches(
            [(prompts[number], number, copy) for number, copy in asked], size
        ):
            _, numbers, copy_B = zip(*rows, strict=True)
            own = [prompt for prompt, *_ in rows]
            if settings.beams > 1:
                written = self._beams(own, settings, size, even)
            else:
                new = settings.max_new
                *_, last = self._steps(own, settings, size, numbers, copy_B, new, even)
                written = [[one] for one in last]
            for number, ones in zip(numbers, written, strict=True):
                found[number] += ones
        return [sorted(ones, key=lambda one: -one.score)[: settings.n_best] for ones in found]

    def stream(
        self, prompt: Prompt, settings: DecodeSpec, chunk: int = CHUNK
    ) -> Iterator[Continuation]:
        """What is written so far, again and again, some tokens more each time."""
        if settings.beams > 1 or settings.n_best > 1:
            raise UserError("what is streamed is one sequence: beams=1 and n_best=1")
        for written in self._steps([prompt], settings, 1, (0,), (0,), chunk, True):
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

    def _batches(self, asked: list[Any], size: int) -> Iterator[list[Any]]:
        """Prompts of one shape together, `size` at a time."""
        groups: dict[Any, list[Any]] = {}
        for one in asked:
            groups.setdefault(self._shape(one[0]), []).append(one)
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
        told = pads(self.spec) and self.spec.family not in READS_SOURCE
        start = Start(
            jnp.asarray(prompt_BT),
            jnp.asarray(valid_BT) if told else None,
            jnp.asarray(wanted_B),
            jax.tree.map(jnp.asarray, inputs),
            self.prefix,
            even,
        )
        # The last token that is written is never read.
        return start, cache_lengths(shape[0] + new - 1, shape[0], longest(self.spec))

    @property
    def _ends(self) -> Any:
        return jnp.asarray(self.ends, jnp.int32)

    def _steps(
        self,
        prompts: Sequence[Prompt],
        settings: DecodeSpec,
        size: int,
        numbers: Sequence[int],
        copies: Sequence[int],
        chunk: int,
        even: bool,
    ) -> Iterator[list[Continuation]]:
        start, lengths = self.start(prompts, size, settings.max_new, even)
        filters, new = Filters.of(settings), settings.max_new
        # A row's draws are its own: they follow from the seed, its number and its copy.
        names_B2 = np.zeros((size, 2), np.uint32)
        names_B2[: len(prompts)] = np.stack([numbers, copies], 1)
        key_B = _keys(jax.random.key(settings.seed), names_B2)
        state = loop.begin(
            *(self.module, self.variables, start, filters, key_B, self._ends),
            length=(length := lengths.pop(0)), new=new, top_k=settings.top_k,
        )  # fmt: skip
        first = max(len(prompt.tokens) for prompt in prompts)
        written = 1
        for until in [*range(1, new, chunk), new]:
            while written < until and not np.all(state.done_B):
                if first + written - 1 == length:  # the cache is full
                    length = lengths.pop(0)
                    cache = enlarged(self.module, self.variables, start, state.cache, length=length)
                    state = state.replace(cache=cache)
                written = min(until, length - first + 1)
                state = loop.advance(
                    *(self.module, self.variables, state, filters, self._ends, jnp.int32(written)),
                    top_k=settings.top_k,
                )
            done_B, count_B, tokens_BN, logprobs_BN = jax.device_get(
                (state.done_B, state.count_B, state.tokens_BN, state.logprobs_BN)
            )
            yield [
                self._continuation(tokens_BN[row], logprobs_BN[row], count_B[row])
                for row in range(len(prompts))
            ]
            if done_B.all():
                return

    def _beams(
        self, prompts: Sequence[Prompt], settings: DecodeSpec, size: int, even: bool
    ) -> list[list[Continuation]]:
        start, lengths = self.start(prompts, size, settings.max_new, even)
        penalty = Filters.of(settings).repetition_penalty
        best, length_BK = jax.device_get(
            beam.search(
                self.module,
                self.variables,
                start,
                self._ends,
                jnp.float32(settings.length_penalty),
                penalty,
                length=lengths[-1],
                new=settings.max_new,
                beams=settings.beams,
                stopping=str(settings.stopping),
            )
        )
        return [
            [
                self._continuation(
                    best.tokens_BKN[row, k],
                    best.logprobs_BKN[row, k],
                    length_BK[row, k],
                    float(best.score_BK[row, k]),
                )
                for k in range(settings.n_best)
                if length_BK[row, k]
            ]
            for row in range(len(prompts))
        ]

    def _continuation(
        self, tokens_N: np.ndarray, logprobs_N: np.ndarray, count: int, score: float | None = None
    ) -> Continuation:
        tokens, logprobs = tokens_N[:count].tolist(), logprobs_N[:count].tolist()
        score = sum(logprobs) if score is None else score
        return Continuation(tokens, logprobs, score, bool(tokens) and tokens[-1] in self.ends)


_logits = jax.jit(prefill, static_argnames=("module", "length"))


@jax.jit
def _keys(key: Any, names_B2: Any) -> Any:
    each = jax.vmap(
        lambda name_2: jax.random.fold_in(jax.random.fold_in(key, name_2[0]), name_2[1])
    )
    return each(names_B2)

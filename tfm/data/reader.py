"""The reader of a run: text to ids and back, names for ids, special ids and labels.

Every run saves its reader in data.json, so a model can be used without its data files. `of_data`
builds it for a trained run, `of_huggingface` for an import.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.config.names import UserError
from tfm.data.dataset import Dataset, Special
from tfm.data.records import WordEncoder
from tfm.data.tokenizers.tokenizer import WRAPPED, Around, Tokenizer, tokenizer_of, vocabulary_of

MASK = "[MASK]"  # how people write a token, or a span, that is to be filled in
MASKS = (MASK, "<mask>")
Ids = Sequence[int] | np.ndarray


class Prompt(NamedTuple):
    """The input of a model for one text.

    A model with a source reads `source` and continues `tokens`, the beginning of its target;
    others read, and may continue, `tokens`, some after a `vector`.
    """

    tokens: Sequence[int]
    source: Sequence[int] | None = None
    vector: Sequence[float] | None = None
    types: Sequence[int] | None = None  # of tokens: 0 or 1, first or second sentence
    prefix: int | None = None  # the number of first tokens that see one another
    places: Sequence[int] | None = None  # where something is asked; None: everywhere
    labels: Sequence[int] | None = None  # the id that is right at each position; −1: unknown


class Task(NamedTuple):
    """One task of a mixture: its spelling, and the ids that stand before its rows."""

    name: str
    prefix: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reader:
    """Maps text to ids and back, and names ids for people."""

    kind: str  # "tokenizer", "bytes", "pieces" or "numbers": texts like "5 3 8"
    vocab: int  # number of ids of the data, special ones included
    form: str = "text"  # of the data, a key of FORMS
    vocabulary: str | None = None  # of a tokenizer: it and the labels, as JSON
    pieces: tuple[str, ...] = ()  # what each id stands for; "" for special ids
    separator: str = ""  # between pieces
    special: Special | None = None
    labels: tuple[str, ...] | None = None  # names of classes or tags
    before: tuple[int, ...] = ()  # ids around a text
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()  # ids between two sentences, and after the second
    closing: tuple[int, ...] = ()
    two: bool | None = None  # texts are two sentences; None: one or two
    start: int | None = None  # begins a text without a prompt
    decoder_start: int | None = None  # begins a target
    ends: tuple[int, ...] = ()  # any of them ends what a model writes
    added: tuple[str, ...] = ()  # names of the ids that the objective adds after the data's
    tasks: tuple[Task, ...] = ()  # of a mixture whose rows show their task
    published: bool = False  # decoding skips all special tokens of the tokenizer's own rules
    parses: bool = False  # names of special tokens in a text are read as these tokens; not saved

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        tokenizer = tokenizer_of(self.vocabulary)
        if not self.parses:
            return tokenizer
        if tokenizer is None:
            raise UserError("--special: the run has no tokenizer, so no text is a special token")
        return tokenizer.parsing

    @property
    def numbers(self) -> bool:
        """True if texts are written as numbers, because the data have no tokenizer."""
        return self.kind == "numbers"

    @property
    def mask(self) -> int | None:
        """The id of the mask token."""
        if self.special is not None and self.special.mask is not None:
            return self.special.mask
        return self.vocab + self.added.index(MASK) if MASK in self.added else None

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a text, without anything around them."""
        if self.kind == "tokenizer":
            assert self.tokenizer is not None
            return self.tokenizer.encode(text)
        if self.kind == "bytes":
            return list(text.encode())
        if self.kind == "pieces":
            parts = text.split() if self.separator == " " else list(text)
            unknown = next((part for part in parts if part not in self._id_of), None)
            if unknown is not None:
                raise UserError(f"{unknown!r} has no id: it is not in the training data")
            return [self._id_of[part] for part in parts]
        words = text.replace(",", " ").split()
        wrong = next((word for word in words if not word.isdecimal()), None)
        if wrong is not None:
            raise UserError(
                f"{wrong!r}: the model's data are ids without a tokenizer, so write numbers: "
                "'5 3 8'"
            )
        return [int(word) for word in words]

    @functools.cached_property
    def _id_of(self) -> dict[str, int]:
        return {piece: id_ for id_, piece in enumerate(self.pieces) if piece}

    def encode(self, text: str, task: int | None = None) -> list[int]:
        """Returns the ids that a model reads for a text, with those around it."""
        return self._checked(text, [*self.task_ids(task), *self._around(self.ids(text))])

    def unknown(self, text: str) -> list[str]:
        """Returns the words of a text that the vocabulary does not know, or not as a whole."""
        unk = None if self.special is None else self.special.unk
        known = unk is None or self.tokenizer is None
        return [] if known else [word for word in text.split() if unk in self.ids(word)]

    def sentences(
        self, text: str, second: str | None, task: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Returns the ids and types of two sentences, or of one."""
        if second is None:
            ids = self.encode(text, task)
            return ids, [0] * len(ids)
        if not self.between:
            raise UserError("this run reads one text: its data have no separator")
        first = [*self.task_ids(task), *self.before, *self.ids(text), *self.between]
        tail = [*self.ids(second), *self.closing]
        return [*first, *tail], [0] * len(first) + [1] * len(tail)

    def words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Returns the ids of words, and where the first piece of each stands."""
        if self.tokenizer is None:
            ids = self.encode(" ".join(words))
            return ids, list(range(len(ids)))
        if not words:
            return [], []
        encoder = WordEncoder(self.tokenizer)
        ids = encoder([words]).ids.tolist()
        places = np.cumsum(encoder.pieces) - encoder.pieces + len(self.before)
        return self._around(ids), places.tolist()

    def with_marks(
        self, text: str, mark: Callable[[int], int | None]
    ) -> tuple[list[int], list[int]]:
        """Returns the ids of a text and the places of its masks; `mark(n)` is the id of the nth."""
        for written in MASKS[1:]:
            text = text.replace(written, MASK)
        parts = text.split(MASK)
        # Where a word begins with its space, so does the token that the mask stands for.
        spaced = self.tokenizer is not None and self.tokenizer.spaced
        ids, places = list[int](), list[int]()
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            plain = part[:-1] if spaced and not last and part.endswith(" ") else part
            ids += self.ids(plain) if plain else []
            if not last:
                id_ = mark(number)
                if id_ is None:
                    raise UserError(f"{MASK}: the run's vocabulary has no mask token")
                places.append(len(ids) + len(self.before))
                ids.append(id_)
        return self._checked(text, self._around(ids)), places

    def _around(self, ids: Sequence[int]) -> list[int]:
        return [*self.before, *ids, *self.after] if ids else []

    def _checked(self, text: str, ids: list[int]) -> list[int]:
        if not ids:
            raise UserError(f"the text {text!r} has no token")
        return ids

    def task_ids(self, task: int | None) -> tuple[int, ...]:
        """Returns the ids before a text that name its task in a mixture."""
        names = "\n  ".join(f"{number}: {name}" for number, (name, _) in enumerate(self.tasks))
        if task is None:
            if not self.tasks:
                return ()
            raise UserError(f"which task? --part=N, one of\n  {names}")
        if not self.tasks:
            raise UserError(
                "--part: the run was trained on one task, not on a mixture that names its tasks"
            )
        if not 0 <= task < len(self.tasks):
            raise UserError(f"--part={task}: there are\n  {names}")
        return self.tasks[task].prefix

    def decode(self, ids: Ids) -> str:
        """Returns the text of ids, without special and added ones."""
        ids = [int(id_) for id_ in ids]
        if self.kind == "tokenizer":
            tokenizer = self.tokenizer
            assert tokenizer is not None
            ids = [id_ for id_ in ids if id_ < tokenizer.vocab]
            return tokenizer.rules.decode(ids) if self.published else tokenizer.decode(ids)
        ids = [id_ for id_ in ids if id_ < self.vocab]
        if self.kind == "bytes":
            return bytes(ids).decode(errors="replace")
        if self.kind == "pieces":
            return self.separator.join(self.pieces[id_] for id_ in ids if self.pieces[id_])
        return " ".join(map(str, ids))

    def names(self, ids: Ids) -> list[str]:
        """Returns each id as a person would write it, with the space that a word begins with."""
        return [self.name(int(id_)) for id_ in ids]

    def name(self, id_: int) -> str:
        """Returns one id as a person would write it. Special ids have the tokenizer's own names;
        they, and ids for a part of a character, stand in brackets."""
        if id_ >= self.vocab:
            place = id_ - self.vocab
            return self.added[place] if place < len(self.added) else f"<{id_}>"
        tokenizer, special = self.tokenizer, self.special or ()
        roles = [f"<{role}>" for role, x in zip(Special._fields, special, strict=False) if x == id_]
        if tokenizer is not None:
            if id_ >= tokenizer.vocab:
                return f"<task {id_ - tokenizer.vocab}>"
            token = tokenizer.rules.id_to_token(id_)
            if token is None:
                return roles[0] if roles else f"<{id_}>"
            if roles and re.fullmatch(r"<.+>|\[.+\]", token):
                return token.replace(" ", "")
            name = tokenizer.rules.decode([id_], skip_special_tokens=False)
            if "\ufffd" in name:
                return f"<{id_}>"
            return f" {name}" if token.startswith("▁") and not name.startswith(" ") else name
        if self.numbers:
            return roles[0] if roles else str(id_)
        piece = self.decode([id_])
        if self.kind == "bytes" and piece == "\ufffd":
            return f"<0x{id_:02X}>"
        return piece or (roles[0] if roles else f"<{id_}>")

    def to_tree(self) -> dict[str, Any]:
        """Returns the reader as JSON holds it, without the vocabulary, which stands beside it."""
        names = {field.name for field in dataclasses.fields(self)} - {"vocabulary", "parses"}
        return {name: getattr(self, name) for name in sorted(names)}


def of_tree(tree: Mapping[str, Any], vocabulary: str | None) -> Reader:
    """Returns the reader that `to_tree` saved."""
    fields: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in tree.items()}
    fields["special"] = None if tree["special"] is None else Special(*tree["special"])
    fields["tasks"] = tuple(Task(name, tuple(prefix)) for name, prefix in tree["tasks"])
    return Reader(**fields, vocabulary=vocabulary if tree["kind"] == "tokenizer" else None)


def of_data(dataset: Dataset, source: Any, added: Sequence[str] = ()) -> Reader:
    """Builds the reader of a data set, which `source` opened. `added` are the names of the ids
    that an objective adds after those of the data."""
    tokenizer = None if dataset.vocabulary is None else tokenizer_of(dataset.vocabulary)
    kind = getattr(source, "kind", "")
    special = None if kind in ("characters", "bytes") else dataset.special
    facts: dict[str, Any] = {"kind": "numbers"}
    if tokenizer is not None:
        facts = {"kind": "tokenizer", "vocabulary": dataset.vocabulary}
    elif kind == "bytes":
        facts = {"kind": "bytes"}
    elif dataset.pieces:
        facts = {"kind": "pieces", "pieces": dataset.pieces, "separator": dataset.separator}
    if special is not None:
        around = Around((), (), (special.sep,), (special.sep,))
        if tokenizer is not None:
            around = tokenizer.around(dataset.form)
        # A stream whose lines have no end is never ended; its start is that of the whole.
        lines = getattr(source, "eos", None)
        facts |= {
            **around._asdict(),
            "start": special.eos if lines else special.bos,
            "ends": () if lines is False else (special.eos,),
        }
    if dataset.form == "labels":
        facts["two"] = dataset.take(np.zeros(1, np.int64)).segments is not None
    return Reader(
        **facts,
        vocab=dataset.vocab,
        form=dataset.form,
        special=special,
        decoder_start=dataset.special.bos,
        labels=dataset.label_names,
        added=tuple(added),
        tasks=_tasks(dataset, source),
    )


def _tasks(dataset: Dataset, source: Any) -> tuple[Task, ...]:
    if not getattr(source, "tells", False):
        return ()
    vocab = dataset.vocab - len(source.tasks) * source.tokens
    read = source.with_vocabulary(dataset.vocabulary)
    return tuple(
        Task(str(task.text), tuple(read.prefix_ids(number, vocab)))
        for number, task in enumerate(source.tasks)
    )


def of_huggingface(
    tokenizer: Tokenizer | None, config: Mapping[str, Any], vocab: int, form: str
) -> Reader:
    """Builds the reader of an imported model from its tokenizer and `config`, which is its
    config.json with what generation_config.json adds."""
    names, labels = config.get("id2label"), None
    facts: dict[str, Any] = {"kind": "numbers"}
    if isinstance(names, Mapping) and form in WRAPPED:
        labels = tuple(str(names[key]) for key in sorted(names, key=int))
    ends = _ids(config.get("eos_token_id"), vocab)
    start = next(iter(_ids(config.get("bos_token_id"), vocab)), None)
    decoder_start = next(iter(_ids(config.get("decoder_start_token_id"), vocab)), 0)
    if tokenizer is not None:
        size = tokenizer.rules.get_vocab_size()
        if size > vocab:
            raise UserError(
                f"its tokenizer has {size} ids and its model {vocab}: they do not belong together; "
                "import the folder with its own tokenizer.json"
            )
        # Data for the model are read in the same way, so its tokenizer carries what it reads.
        begin = decoder_start if form == "pairs" else start
        ids = {name: _ids(config.get(f"{name}_token_id"), vocab)[:1] for name in ("pad", "sep")}
        ids |= {"bos": () if begin is None else (begin,), "eos": ends[:1]}
        special = tokenizer.special._replace(**{name: x[0] for name, x in ids.items() if x})
        usual = ends[0] if ends else 0  # instead of ids that the model does not have
        missing = {name: usual for name, id_ in special._asdict().items() if (id_ or 0) >= vocab}
        special = special._replace(**missing)
        around = _around(tokenizer)
        tokenizer = dataclasses.replace(tokenizer, special=special, vocab=0, published=around)
        facts = {"kind": "tokenizer", "vocabulary": vocabulary_of(tokenizer, labels)}
        facts |= {"special": special, **around._asdict()}
    return Reader(
        **facts,
        vocab=vocab,
        form=form,
        labels=labels,
        start=start,
        decoder_start=decoder_start,
        ends=ends,
        published=True,
    )


def _ids(value: Any, vocab: int) -> tuple[int, ...]:
    """Returns one id or several of config.json, without those that the model does not have."""
    values = value if isinstance(value, list) else [value]
    return tuple(id_ for id_ in values if type(id_) is int and 0 <= id_ < vocab)


def _around(tokenizer: Tokenizer) -> Around:
    """Returns the ids that a tokenizer's rules put around a text and around two."""
    rules = tokenizer.rules
    text = next((text for text in ("a", "1", *rules.get_vocab()) if tokenizer.encode(text)), "a")

    def special_ids(encoding: Any) -> list[tuple[int, ...]]:
        """Returns the special ids before, between and after the texts."""
        parts: list[tuple[int, ...]] = [()]
        marked = zip(encoding.special_tokens_mask, encoding.ids, strict=True)
        for special, group in itertools.groupby(marked, lambda pair: pair[0]):
            if special:
                parts[-1] = tuple(id_ for _, id_ in group)
            else:
                parts.append(())
        return parts

    alone, both = special_ids(rules.encode(text)), special_ids(rules.encode(text, text))
    around = Around(before=alone[0], after=alone[-1] if len(alone) > 1 else ())
    # Without ids in between, nothing tells two sentences apart.
    return around._replace(between=both[1], closing=both[2]) if len(both) == 3 else around

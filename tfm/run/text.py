"""How the model of a run reads a text and writes one: as it was trained to."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfm.config.names import UserError
from tfm.config.spec import to_spec
from tfm.data.corpus import Corpus
from tfm.data.dataset import Dataset, Generated, Special
from tfm.data.formats.characters import TextFile
from tfm.data.mixture import Mixture
from tfm.data.tokenizers import tokenizer as tokenizers
from tfm.data.tokenizers.tokenizer import Tokenizer
from tfm.decode.spec import DecodeSpec
from tfm.decode.writer import READS_SOURCE, Continuation, Prompt, Writer
from tfm.objectives.next_token import NextToken
from tfm.objectives.prefix_lm import PrefixLM
from tfm.objectives.seq2seq import Seq2Seq
from tfm.run.imported import read_tokenizer

IDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id")  # as Hugging Face calls them
Ids = Sequence[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Codec:
    """Text to ids and back, and which ids are special. None where there is none."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Ids], str]
    names: Callable[[Ids], list[str]]
    vocab: int
    special: Special | None

    def piece(self, id_: int) -> str:
        """One id, as a person would write it."""
        return self.names([id_])[0] if id_ < self.vocab else f"<{id_}>"


def token_names(tokenizer: Tokenizer, ids: Ids) -> list[str]:
    """Each id as a person would write it, with the space that a word begins with, where the
    library's sign for it is "▁"."""
    found = []
    for id_, name in zip(ids, tokenizer.tokens(ids), strict=True):
        spaced = (tokenizer.rules.id_to_token(int(id_)) or "").startswith("▁")
        found.append(f" {name}" if spaced and not name.startswith(" ") else name)
    return found


def id_name(data: Dataset, special: Special | None, id_: int) -> str:
    """An id of data without a tokenizer, as a person would write it."""
    for name, own in ({} if special is None else special._asdict()).items():
        if id_ == own:
            return f"<{name}>"
    return str(id_) if data.decode is None else data.decode([id_]) or f"<{id_}>"


def numbers(text: str) -> list[int]:
    """The ids in a text that is read without a tokenizer."""
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None:
        raise UserError(
            f"{wrong!r}: the model's data are ids without a tokenizer, so write numbers: '5 3 8'"
        )
    return [int(word) for word in words]


def codec_of(loaded: Any) -> Codec:
    """The tokenizer of a run. One that is not the model's own is an error. Of data that are ids,
    texts are numbers."""
    if loaded.run is not None and loaded.run.data.tokenizer is None:
        data = loaded.data["train"]
        if data.encode is None or data.decode is None:
            names = lambda ids: [id_name(data, data.special, id_) for id_ in ids]  # noqa: E731
            write = lambda ids: " ".join(map(str, ids))  # noqa: E731
            return Codec(numbers, write, names, data.vocab, data.special)
    own: Any = loaded.tokenizer
    if isinstance(own, Tokenizer):
        names = functools.partial(token_names, own)
        codec = Codec(own.encode, own.decode, names, own.vocab, own.special)
    elif isinstance(own, Dataset):
        assert own.encode is not None
        assert own.decode is not None
        plain = loaded.run is not None and isinstance(loaded.run.data.dataset.entry, TextFile)
        special = None if plain else own.special
        codec = Codec(
            own.encode,
            own.decode,
            lambda ids: [id_name(own, special, id_) for id_ in ids],
            own.vocab,
            special,
        )
    else:  # that of an import, which brings its special tokens
        names = functools.partial(token_names, read_tokenizer(loaded.folder))
        encode = lambda text: own.encode(text).ids  # noqa: E731
        codec = Codec(encode, own.decode, names, own.get_vocab_size(), None)
    vocab = loaded.spec.vocab
    if loaded.run is None and vocab is not None and codec.vocab > vocab:
        raise UserError(
            f"{loaded.folder}: its tokenizer has {codec.vocab} ids and its model {vocab}: they do "
            "not belong together; import the folder with its own tokenizer.json"
        )
    return codec


@dataclasses.dataclass(frozen=True, eq=False)
class TextWriter:
    """A run that writes. `before` and `after` are the ids around a text that is read; `first` is
    what a decoder begins with, if it has a source, and `alone` what it begins with if there is no
    prompt."""

    writer: Writer
    codec: Codec
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    first: int | None = None
    alone: int | None = None
    goes_on: bool = True  # it writes on from the prompt, which is part of the text

    def prompt(self, text: str | None) -> Prompt:
        """What the model begins from; without a text, from the token that begins one."""
        if text is None:
            if self.alone is None:
                raise UserError("this model needs a prompt: no token of it begins a text")
            return Prompt([self.alone])
        if not text:
            raise UserError(
                "the prompt is empty; --start, or generate() without a text, begins with the token "
                "that begins a text"
            )
        ids = self.codec.encode(text)
        if not ids:
            raise UserError(f"the prompt {text!r} has no token")
        ids = [*self.before, *ids, *self.after]
        vocab = self.writer.spec.vocab
        if vocab is not None and max(ids) >= vocab:
            raise UserError(
                f"the prompt has the id {max(ids)}, and the model has {vocab} ids: the tokenizer "
                "is not the model's"
            )
        return Prompt(ids) if self.first is None else Prompt([self.first], ids)

    def text(self, prompt: Prompt, tokens: Ids) -> str:
        """What was written: where it goes on from the prompt, with it."""
        tokens = [id_ for id_ in tokens if id_ not in self.writer.ends]
        if self.goes_on:
            tokens = [*(id_ for id_ in prompt.tokens if id_ != self.alone), *tokens]
        return self.codec.decode(tokens)

    def write(
        self, texts: Sequence[str | None], settings: DecodeSpec, batch: int = 32
    ) -> list[list[Continuation]]:
        return self.writer.write([self.prompt(text) for text in texts], settings, batch)

    def fitting(self, texts: Sequence[str | None], given: dict[str, Any]) -> DecodeSpec:
        """The settings that are given. `max_new`, if it is not, is as much as there is room for."""
        if "max_new" not in given:
            rooms = [self.writer.room(self.prompt(text)) for text in texts]
            usual = DecodeSpec().max_new
            given = {
                **given,
                "max_new": min([usual, *(room for room in rooms if room is not None)]),
            }
        return to_spec(DecodeSpec, given)


def text_writer(loaded: Any, part: int | None = None) -> TextWriter:
    """How a run writes. `part` is the number of a part of the mixture that it was trained on."""
    if loaded.run is None:
        if part is not None:
            raise UserError("--part: the model was imported, so there is no mixture")
        return _imported(loaded)
    codec, objective = codec_of(loaded), loaded.run.objective.entry
    name, source = loaded.run.objective, loaded.run.data.dataset.entry
    if not isinstance(objective, NextToken | Seq2Seq):
        raise UserError(
            f"{loaded.folder} was trained by objective={str(name)!r}, which does not teach it to "
            "write from a text; those that do: next_token, prefix_lm, seq2seq"
        )
    form = form_of(source)
    if form in ("labels", "tags"):
        raise UserError(f"{loaded.folder} writes {form}, not text; tfm eval measures it")
    before = _prefix(loaded, source, part)
    special, prefix = codec.special, isinstance(objective, PrefixLM)
    if form == "pairs":
        assert special is not None
        writer = Writer.of(loaded.spec, loaded.variables, (special.eos,), prefix)
        if loaded.spec.family in READS_SOURCE:
            return TextWriter(writer, codec, before, (), special.bos, goes_on=False)
        return TextWriter(writer, codec, before, (special.sep,), goes_on=False)
    ends: tuple[int, ...] = ()
    alone: int | None = None
    if special is not None:
        line = getattr(source, "eos", None)
        alone = special.eos if line else special.bos
        ends = () if line is False else (special.eos,)
    writer = Writer.of(loaded.spec, loaded.variables, ends, prefix)
    return TextWriter(writer, codec, before, alone=alone)


def form_of(source: Any) -> str:
    """The form of a data set, without opening it."""
    if isinstance(source, Generated):
        return source.facts["form"]
    if isinstance(source, Corpus):
        return source.layout().form
    return "text" if isinstance(source, TextFile) else source.form


def _prefix(loaded: Any, source: Any, part: int | None) -> tuple[int, ...]:
    """The ids that tell a task of a mixture."""
    if not isinstance(source, Mixture):
        if part is not None:
            raise UserError("--part: the run was trained on one data set, not on a mixture")
        return ()
    tasks = [f"{number}: {task.text}" for number, task in enumerate(source.tasks)]
    if part is None:
        if not source.tells:
            return ()
        raise UserError("which task? --part=N, one of\n  " + "\n  ".join(tasks))
    if not 0 <= part < len(tasks):
        raise UserError(f"--part={part}: there are\n  " + "\n  ".join(tasks))
    known = loaded.known
    read = source.with_reading(loaded.run.data.reading).with_vocabulary(known.get("vocabulary"))
    assert isinstance(read, Mixture)
    return tuple(read.prefix_ids(part, known["vocab"] - len(tasks) * source.tokens))


def _imported(loaded: Any) -> TextWriter:
    """As its own config says."""
    codec = codec_of(loaded)
    given = [_json(loaded.folder / "huggingface.json")]
    given.append(_json(loaded.folder / "tokenizer" / "generation_config.json"))
    ids: dict[str, Any] = {}
    for tree in given:
        ids |= {key: tree[key] for key in IDS if tree.get(key) is not None}
    end = ids.get("eos_token_id", [])
    ends = tuple(end) if isinstance(end, list) else (end,)
    writer = Writer.of(loaded.spec, loaded.variables, ends)
    if loaded.spec.family in READS_SOURCE:
        return TextWriter(writer, codec, first=ids.get("decoder_start_token_id", 0), goes_on=False)
    return TextWriter(writer, codec, alone=ids.get("bos_token_id"))


def _json(path: Any) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def whole_pieces(texts: Iterator[str]) -> Iterator[str]:
    """What is new in each of several texts, of which each goes on from the one before. Of a
    character whose bytes are not all there yet, nothing is shown."""
    shown = ""
    text = ""
    for text in texts:
        ready = text.rstrip("\ufffd")
        if ready.startswith(shown) and len(ready) > len(shown):
            yield ready[len(shown) :]
            shown = ready
    if text.startswith(shown) and len(text) > len(shown):
        yield text[len(shown) :]


def reads_two(loaded: Any) -> bool:
    """Whether a classifier reads two sentences. Of an import it is not known."""
    return loaded.run is None or _two_texts(loaded.run.data.dataset.entry)


def _two_texts(source: Any) -> bool:
    return isinstance(source, Corpus) and source.layout().two_texts


def labels_of(loaded: Any) -> tuple[str, ...] | None:
    """The names of the classes or tags of a run, by their number; None: they have none."""
    if loaded.run is not None:
        names = tokenizers.labels_of(loaded.known.get("vocabulary"))
        return names if names is not None else loaded.data["train"].label_names
    named = _json(loaded.folder / "huggingface.json").get("id2label")
    if not isinstance(named, dict) or len(named) != loaded.spec.classes:
        return None
    return tuple(str(named[key]) for key in sorted(named, key=int))

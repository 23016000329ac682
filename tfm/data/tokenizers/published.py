"""Published tokenizers, read from their files, and the tokenizer of a run."""

import base64
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Rules

from tfm.config.names import UserError
from tfm.data.dataset import Special
from tfm.data.files import digest, find
from tfm.data.tokenizers.tokenizer import Tokenizer, loads
from tfm.data.tokenizers.trained import Maker, bert_rules, byte_level, byte_signs
from tfm.run.folder import Folder

END = "<|endoftext|>"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENCODINGS = {  # of tiktoken: the pattern that splits text, and the ids of special tokens
    "r50k_base": (GPT2, {END: 50256}),
    "p50k_base": (GPT2, {END: 50256}),
    "cl100k_base": (
        CL100K,
        {END: 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259}
        | {"<|fim_suffix|>": 100260, "<|endofprompt|>": 100276},
    ),
    "o200k_base": (O200K, {END: 199999, "<|endofprompt|>": 200018}),
}
# The usual names of special tokens, the most specific first.
NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", END),
    "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", END),
    "sep": ("[SEP]", "</s>", "<sep>", END),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}


def _published(
    name: str,
    files: Callable[[], Sequence[pathlib.Path]],
    load: Callable[[Sequence[pathlib.Path]], Tokenizer],
) -> Maker:
    """Returns a maker that loads files; files that cannot be read are the user's error."""

    def make(_: Iterator[str]) -> Tokenizer:
        paths = files()
        try:
            tokenizer = load(paths)
            tokenizer.rules.encode("ꗃ")  # fails without the token for unknown words it may need
        except UserError:
            raise
        except Exception as e:  # the library raises `Exception` itself
            where = ", ".join(map(str, paths))
            raise UserError(f"{name}: its files cannot be read: {e} ({where})") from e
        return tokenizer

    return Maker(make, False, lambda: " ".join(map(digest, files())))


def gpt2(path: str = "gpt2") -> Maker:
    """GPT-2's files, in a folder: encoder.json and vocab.bpe, or vocab.json and merges.txt."""

    def files() -> list[pathlib.Path]:
        folder, paths = find("gpt2", path, folder=True), list[pathlib.Path]()
        for names in [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")]:
            tried = [folder / f"{prefix}{name}" for name in names for prefix in ("", "gpt2_")]
            existing = [file for file in tried if file.is_file()]
            if not existing:
                raise UserError(f"gpt2: {folder} holds no {' or '.join(names)}")
            paths.append(existing[0])
        return paths

    def load(paths: Sequence[pathlib.Path]) -> Tokenizer:
        vocab, merges = (path.read_text("utf-8") for path in paths)
        words = [line.split() for line in merges.split("\n")]
        pairs = [(line[0], line[1]) for line in words if len(line) == 2 and line[0] != "#version:"]
        rules = byte_level(Rules(models.BPE(json.loads(vocab), pairs)))
        rules.add_special_tokens([AddedToken(END, special=True)])
        return Tokenizer(rules, known_special(rules), spaced=True)

    return _published("gpt2", files, load)


def tiktoken(path: str, encoding: str | None = None) -> Maker:
    """A file of tiktoken: a token in base64 and its rank on each line. `encoding` is cl100k_base,
    o200k_base, p50k_base or r50k_base; by default it is the file's name."""
    name = encoding or pathlib.Path(path).name.partition(".")[0]
    if name not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise UserError(f"tiktoken: the pattern of {name!r} is not known; encoding= one of {known}")
    pattern, special = ENCODINGS[name]

    def load(paths: Sequence[pathlib.Path]) -> Tokenizer:
        lines = [line.split() for line in paths[0].read_bytes().splitlines()]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        vocab = {_signs(token): rank for token, rank in ranks.items()}
        rules = byte_level(Rules(models.BPE(vocab, _merges(ranks), ignore_merges=True)), True)
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        rules.pre_tokenizer = pre_tokenizers.Sequence([split, rules.pre_tokenizer])
        end, size = special[END], max(*special.values(), *ranks.values()) + 1
        ids = Special(pad=end, bos=end, eos=end, sep=end)
        return Tokenizer(rules, ids, spaced=True, vocab=size)

    return _published("tiktoken", lambda: [find("tiktoken", path)], load)


def _signs(token: bytes) -> str:
    return "".join(byte_signs()[byte] for byte in token)


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """Returns the pairs to merge, in the order of the ranks of the merged tokens."""
    merges = []
    for token, rank in ranks.items():
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(ranks[a], ranks[b], a, b) for a, b in splits if a in ranks and b in ranks]
        merges += [(rank, *pair) for pair in pairs]
    return [(_signs(a), _signs(b)) for *_, a, b in sorted(merges)]


def bert(path: str = "vocab.txt", lower: bool = True) -> Maker:
    """BERT's vocab.txt: a piece on each line. `lower` is for the uncased models."""

    def load(paths: Sequence[pathlib.Path]) -> Tokenizer:
        lines = paths[0].read_text("utf-8").split("\n")
        vocab = {line.rstrip("\r"): id_ for id_, line in enumerate(lines) if line}
        rules = bert_rules(models.WordPiece(vocab, unk_token="[UNK]"), lower)
        return Tokenizer(rules, known_special(rules), wraps=True)

    return _published("bert", lambda: [find("bert", path)], load)


def tokenizer_json(path: str) -> Maker:
    """Any tokenizer.json, as in Hugging Face's folders."""

    def load(paths: Sequence[pathlib.Path]) -> Tokenizer:
        return of_rules(Rules.from_file(str(paths[0])))

    return _published("tokenizer_json", lambda: [find("tokenizer_json", path)], load)


def of_rules(rules: Rules, tokens: Mapping[str, Any] = MappingProxyType({})) -> Tokenizer:
    """Returns a tokenizer with the special ids that `tokens` name, as in tokenizer_config.json
    ("mask_token": "<m>"), or else those with the usual names."""
    before = json.loads(rules.to_str())["pre_tokenizer"] or {}
    parts = before.get("pretokenizers", [before])
    spaced = any(p["type"] == "ByteLevel" and not p["add_prefix_space"] for p in parts if p)
    wraps = rules.token_to_id("[CLS]") is not None
    return Tokenizer(rules, known_special(rules, tokens), wraps=wraps, spaced=spaced)


def of_run(path: str) -> Maker:
    """The tokenizer of a run, by its folder: for fine-tuning a model that was trained with it."""

    def text() -> str:
        try:
            known = Folder(path).read("data.json")
        except UserError as e:
            raise UserError(f"of_run: {e}") from e
        if known is None:
            raise UserError(f"of_run: cannot read {pathlib.Path(path) / 'data.json'}: no such file")
        try:
            return json.dumps(json.loads(known["vocabulary"])["tokenizer"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"of_run: {path} has no tokenizer: its data are ids") from None

    return Maker(lambda _: loads(text()), False, text)


def known_special(rules: Rules, tokens: Mapping[str, Any] = MappingProxyType({})) -> Special:
    """Returns the special ids by the names in `tokens`, or else by their usual names. Without a
    name, `bos` and `eos` get new ids."""
    ids: dict[str, int | None] = {}
    for field, names in NAMES.items():
        token = tokens.get(f"{field}_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        stated = (token,) if isinstance(token, str) else ()
        named = (rules.token_to_id(name) for name in (*stated, *names))
        ids[field] = next((id_ for id_ in named if id_ is not None), None)
    new = itertools.count(max(rules.get_vocab().values()) + 1)
    for field in ("bos", "eos"):
        ids[field] = next(new) if ids[field] is None else ids[field]
    ids["sep"] = ids["bos"] if ids["sep"] is None else ids["sep"]
    ids["pad"] = ids["eos"] if ids["pad"] is None else ids["pad"]
    return Special(**ids)  # type: ignore[arg-type]


TOKENIZERS: dict[str, Callable[..., Maker]] = {
    "gpt2": gpt2,
    "tiktoken": tiktoken,
    "bert": bert,
    "tokenizer_json": tokenizer_json,
    "of_run": of_run,
}

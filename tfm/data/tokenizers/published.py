"""Tokenizers that others have published, read from their files; and that of a run."""

import base64
import json
import pathlib
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Rules

from tfm.config.names import UserError
from tfm.data.dataset import Special
from tfm.data.files import digest, find
from tfm.data.tokenizers.tokenizer import Tokenizer, loads
from tfm.data.tokenizers.trained import Maker, bert_rules, byte_signs

END = "<|endoftext|>"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
ENCODINGS = {  # of tiktoken: how text is split, and the ids of special tokens
    "r50k_base": (GPT2, {END: 50256}),
    "p50k_base": (GPT2, {END: 50256}),
    "cl100k_base": (
        CL100K,
        {
            END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (O200K, {END: 199999, "<|endofprompt|>": 200018}),
}
# The names under which others know our special ids, the most specific first.
NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", END),
    "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", END),
    "sep": ("[SEP]", "</s>", "<sep>", END),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}


def gpt2(path: str = "gpt2") -> Maker:
    """GPT-2's files, in a folder: encoder.json and vocab.bpe, or vocab.json and merges.txt."""
    names = [("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")]

    def files() -> list[pathlib.Path]:
        folder, found = find("gpt2", path, folder=True), list[pathlib.Path]()
        for own in names:
            tried = [folder / f"{prefix}{name}" for name in own for prefix in ("", "gpt2_")]
            there = [file for file in tried if file.is_file()]
            if not there:
                raise UserError(f"gpt2: {folder} holds no {' or '.join(own)}")
            found.append(there[0])
        return found

    def make(_: Any) -> Tokenizer:
        vocab, merges = files()
        lines = [line.split() for line in merges.read_text("utf-8").split("\n")]
        pairs = [(a, b) for a, b in (row for row in lines if len(row) == 2) if a != "#version:"]
        rules = Rules(models.BPE(json.loads(vocab.read_text("utf-8")), pairs))
        rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        rules.decoder = decoders.ByteLevel()
        rules.add_special_tokens([AddedToken(END, special=True)])
        return Tokenizer(rules, known_special(rules), spaced=True)

    return Maker(_reads("gpt2", make), False, lambda: " ".join(map(digest, files())))


def tiktoken(path: str, encoding: str | None = None) -> Maker:
    """A file of tiktoken: a token in base64 and its rank on each line. `encoding` is cl100k_base,
    o200k_base, p50k_base or r50k_base; without it, the file's name says which."""
    name = encoding or pathlib.Path(path).name.partition(".")[0]
    if name not in ENCODINGS:
        raise UserError(
            f"tiktoken: of {name!r} the pattern is not known; encoding= one of "
            f"{', '.join(ENCODINGS)}"
        )
    pattern, special = ENCODINGS[name]

    def make(_: Any) -> Tokenizer:
        ranks = {}
        for line in find("tiktoken", path).read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        vocab = {"".join(byte_signs()[b] for b in token): rank for token, rank in ranks.items()}
        rules = Rules(models.BPE(vocab, _merges(ranks), ignore_merges=True))
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        rules.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
        rules.decoder = decoders.ByteLevel()
        end, vocab_size = special[END], max(*special.values(), *ranks.values()) + 1
        own = Special(pad=end, bos=end, eos=end, sep=end)
        return Tokenizer(rules, own, spaced=True, vocab=vocab_size)

    return Maker(_reads("tiktoken", make), False, lambda: digest(find("tiktoken", path)))


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """The pairs that are merged, in order: those of the token with the least rank come first."""
    found = []
    for token, rank in ranks.items():
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(ranks[a], ranks[b], a, b) for a, b in splits if a in ranks and b in ranks]
        found += [(rank, *pair) for pair in pairs]
    text = lambda token: "".join(byte_signs()[b] for b in token)  # noqa: E731
    return [(text(a), text(b)) for *_, a, b in sorted(found)]


def bert(path: str = "vocab.txt", lower: bool = True) -> Maker:
    """BERT's vocab.txt: a piece on each line. `lower` for the uncased models."""

    def make(_: Any) -> Tokenizer:
        lines = find("bert", path).read_text("utf-8").split("\n")
        vocab = {line.rstrip("\r"): id_ for id_, line in enumerate(lines) if line}
        rules = bert_rules(models.WordPiece(vocab, unk_token="[UNK]"), lower)
        return Tokenizer(rules, known_special(rules), wraps=True)

    return Maker(_reads("bert", make), False, lambda: digest(find("bert", path)))


def tokenizer_json(path: str) -> Maker:
    """Any tokenizer.json, as Hugging Face's folders hold it."""

    def make(_: Any) -> Tokenizer:
        return of_rules(Rules.from_file(str(find("tokenizer_json", path))))

    return Maker(
        _reads("tokenizer_json", make), False, lambda: digest(find("tokenizer_json", path))
    )


def of_rules(rules: Rules) -> Tokenizer:
    """A tokenizer with the special ids that the library's own names tell."""
    before = json.loads(rules.to_str())["pre_tokenizer"] or {}
    parts = before.get("pretokenizers", [before])
    spaced = any(p["type"] == "ByteLevel" and not p["add_prefix_space"] for p in parts if p)
    wraps = rules.token_to_id("[CLS]") is not None
    return Tokenizer(rules, known_special(rules), wraps=wraps, spaced=spaced)


def of_run(path: str) -> Maker:
    """The tokenizer of a run, by its folder: for fine-tuning what was trained with it."""
    file = pathlib.Path(path) / "data.json"

    def text() -> str:
        try:
            vocabulary = json.loads(file.read_text())["vocabulary"]
            return json.dumps(json.loads(vocabulary)["tokenizer"])
        except OSError as e:
            raise UserError(f"of_run: cannot read {file}: {e.strerror}") from e
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"of_run: the run in {path} has no tokenizer: its data are ids"
            ) from None

    return Maker(lambda _: loads(text()), False, text)


def known_special(rules: Rules) -> Special:
    """The special ids, by their usual names. What has none gets an id after all others."""
    found: dict[str, int | None] = {}
    for field, names in NAMES.items():
        ids = [rules.token_to_id(name) for name in names]
        found[field] = next((id_ for id_ in ids if id_ is not None), None)
    after = max(rules.get_vocab().values()) + 1
    found["bos"], after = (after, after + 1) if found["bos"] is None else (found["bos"], after)
    found["eos"], after = (after, after + 1) if found["eos"] is None else (found["eos"], after)
    found["sep"] = found["bos"] if found["sep"] is None else found["sep"]
    found["pad"] = found["eos"] if found["pad"] is None else found["pad"]
    return Special(**found)  # type: ignore[arg-type]


def _reads(name: str, make: Callable[[Any], Tokenizer]) -> Callable[[Any], Tokenizer]:
    """Files that cannot be read are the user's error."""

    def safe(texts: Any) -> Tokenizer:
        try:
            return make(texts)
        except UserError:
            raise
        except Exception as e:  # the library raises `Exception` itself
            raise UserError(f"{name}: its files cannot be read: {e}") from e

    return safe


TOKENIZERS: dict[str, Callable[..., Maker]] = {
    "gpt2": gpt2,
    "tiktoken": tiktoken,
    "bert": bert,
    "tokenizer_json": tokenizer_json,
    "of_run": of_run,
}

"""What an exported model is told about text: tokenizer files, special ids, names of labels."""

import json
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from tfm.config.names import UserError
from tfm.data.reader import MASK, Reader
from tfm.data.tokenizers.tokenizer import Around
from tfm.data.tokenizers.trained import byte_level, byte_signs
from tfm.objectives.base import Objective
from tfm.objectives.classify import Classify, Regress

FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def text_settings(reader: Reader, objective: Objective, spec: Any) -> dict[str, Any]:
    """Returns the keys of config.json about special ids and labels. Ids that a run does not have
    are null, since transformers would assume others."""
    ends = list(reader.ends)
    settings: dict[str, Any] = {
        "pad_token_id": None if reader.special is None else reader.special.pad,
        "bos_token_id": reader.start,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    if spec.has_source:
        settings["decoder_start_token_id"] = reader.decoder_start
    if {"classify", "tag"} & set(getattr(spec, "outputs", ())):
        known = reader.labels or ()
        names = [known[n] if n < len(known) else f"LABEL_{n}" for n in range(spec.classes or 2)]
        settings["id2label"] = {str(n): name for n, name in enumerate(names)}
        settings["label2id"] = {name: n for n, name in enumerate(names)}
        if isinstance(objective, Classify):
            kind = "regression" if isinstance(objective, Regress) else "single_label_classification"
            settings["problem_type"] = kind
    return settings


def tokenizer_files(reader: Reader, objective: Objective, spec: Any) -> dict[str, bytes]:
    """Returns the files from which transformers reads a run's tokenizer; none if it has no
    tokenizer, or one that needs a segmenter."""
    rules = _rules(reader)
    if rules is None:
        return {}
    special = {} if reader.special is None else reader.special._asdict() | {"mask": reader.mask}
    names = dict[str, str]()
    for name, id_ in sorted(special.items(), key=lambda item: item[1] or 0):
        if id_ is None or name == "unk":  # which is shown as a word when it is written
            continue
        if rules.id_to_token(id_) is None and id_ == rules.get_vocab_size():
            rules.add_special_tokens([AddedToken(MASK if name == "mask" else f"<{name}>")])
        if token := rules.id_to_token(id_):
            rules.add_special_tokens([AddedToken(token, special=True, normalized=False)])
            names[f"{name}_token"] = token
    tree = json.loads(rules.to_str())
    tree["post_processor"] = _template(rules, _around(reader, objective), bool(_types(objective)))
    inputs = ["input_ids", "attention_mask"]
    inputs += ["token_type_ids"] if spec.family == "encoder" else []
    config = {**FAST, "model_input_names": inputs, "model_max_length": spec.max_length, **names}
    files = {"tokenizer.json": tree, "tokenizer_config.json": config}
    return {
        name: json.dumps(tree, ensure_ascii=False, indent=1).encode()
        for name, tree in files.items()
    }


def _rules(reader: Reader) -> tokenizers.Tokenizer | None:
    """Returns a copy of the rules of a tokenizer, or rules for data with ids of their own."""
    if reader.tokenizer is not None:
        if reader.tokenizer.segmenter is not None:
            return None
        return tokenizers.Tokenizer.from_str(reader.tokenizer.rules.to_str())
    if reader.kind == "bytes":
        vocab = {sign: byte for byte, sign in enumerate(byte_signs())}
        return byte_level(tokenizers.Tokenizer(models.BPE(vocab, [])), whole_text=True)
    if reader.kind == "pieces" and all(len(piece) < 2 for piece in reader.pieces):
        vocab = {piece: id_ for id_, piece in enumerate(reader.pieces) if piece}
        rules = tokenizers.Tokenizer(models.BPE(vocab, []))
        rules.decoder = decoders.Fuse()
        return rules
    return None


def _types(objective: Objective) -> bool:
    return bool(getattr(objective, "types", False))


def _around(reader: Reader, objective: Objective) -> Around:
    """Returns the ids around a text in the objective's prompt, and the reader's around two."""
    around = Around(reader.before, reader.after, reader.between, reader.closing)
    try:
        text = reader.decode(range(reader.vocab))[:20].split()[0]
        ids = list(reader.ids(text))
        prompt = objective.prompt(reader, text)
    except (UserError, IndexError):  # no prompt without a mask, a task or a second text
        return around
    tokens = list(prompt.tokens if prompt.source is None else prompt.source)
    for start in range(len(tokens) - len(ids) + 1):
        if ids and tokens[start : start + len(ids)] == ids:
            before, after = tokens[:start], tokens[start + len(ids) :]
            return around._replace(before=tuple(before), after=tuple(after))
    return around


def _template(rules: tokenizers.Tokenizer, around: Around, types: bool) -> dict[str, Any] | None:
    """Returns the post-processor that puts ids around texts."""
    if not any(around):
        return None
    second = int(types)  # the type of the second text

    def special(ids: tuple[int, ...], kind: int = 0) -> list[Any]:
        return [{"SpecialToken": {"id": rules.id_to_token(i), "type_id": kind}} for i in ids]

    def text(name: str, kind: int = 0) -> list[Any]:
        return [{"Sequence": {"id": name, "type_id": kind}}]

    before, after, between, closing = around
    tokens = {rules.id_to_token(id_): id_ for ids in around for id_ in ids}
    if None in tokens:
        raise UserError("a special token of the run is not in its tokenizer, so texts would differ")
    return {
        "type": "TemplateProcessing",
        "single": [*special(before), *text("A"), *special(after)],
        "pair": [
            *(*special(before), *text("A"), *special(between)),
            *(*text("B", second), *special(closing, second)),
        ],
        "special_tokens": {
            token: {"id": token, "ids": [id_], "tokens": [token]} for token, id_ in tokens.items()
        },
    }

"""Text files: predict what comes next, by character or by byte."""

import difflib
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tfm.data.batch import Examples, Marks, Task
from tfm.data.options import number, whole
from tfm.names import UserError

Ids = Sequence[int] | np.ndarray


def characters(path: str, length: int, valid: float = 0.1) -> Task:
    """The characters of a UTF-8 file; the vocabulary is all that the file holds, sorted.

    The first 1 − `valid` of it is for training, in windows of `length` at every offset; the rest
    for validation, in windows side by side, so that each token but the first is scored once.
    """
    raw = _read("characters", path)
    try:
        text = raw.tobytes().decode()
    except UnicodeDecodeError as e:
        raise UserError(
            f"characters: {path} is not UTF-8 text: byte {e.start} is 0x{raw[e.start]:02x}; "
            "write bytes(path=…), which reads any file"
        ) from None
    code_N = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known = np.zeros(0x110000, bool)
    known[code_N] = True
    code_V = np.flatnonzero(known)
    id_of = (np.cumsum(known) - 1).astype(np.min_scalar_type(len(code_V)))

    def decode(ids: Ids) -> str:
        return "".join(chr(code_V[i]) for i in ids)

    def size(part: slice) -> int:
        return len(text[part].encode())

    return _text("characters", path, raw, id_of[code_N], len(code_V), size, decode, length, valid)


def raw_bytes(path: str, length: int, valid: float = 0.1) -> Task:
    """The bytes of any file, 256 of them; split as `characters` are.  Xue et al. 2022 (ByT5)."""
    raw = _read("bytes", path)

    def decode(ids: Ids) -> str:
        return bytes(np.asarray(ids, np.uint8)).decode(errors="replace")

    def size(part: slice) -> int:
        return len(raw[part])

    return _text("bytes", path, raw, raw, 256, size, decode, length, valid)


def _read(name: str, path: str) -> np.ndarray:
    if not path:
        raise UserError(f"{name}: path={path!r} must be the name of a file")
    folder = os.environ.get("TFM_DATA")
    places = dict.fromkeys([pathlib.Path(path), pathlib.Path(folder or "", path)])
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        beside = [file.name for p in places if p.parent.is_dir() for file in p.parent.iterdir()]
        near = difflib.get_close_matches(pathlib.Path(path).name, beside, n=1)
        raise UserError(
            f"{name}: no file {' or '.join(str(place.absolute()) for place in places)}"
            + (f"; did you mean {near[0]!r}?" if near else "")
            + (f" (TFM_DATA={folder})" if folder else "; set TFM_DATA to the folder that holds it")
        )
    if not found.stat().st_size:
        raise UserError(f"{name}: {found} is empty")
    return np.asarray(np.memmap(found, np.uint8, "r"))


def _text(
    name: str,
    path: str,
    raw: np.ndarray,
    ids: np.ndarray,
    vocab: int,
    size: Callable[[slice], int],  # in bytes, of a part of the tokens
    decode: Callable[[Ids], str],
    length: int,
    valid: float,
) -> Task:
    whole(name, "length", length, 1)
    number(name, "valid", valid, 0, 1)
    held = math.ceil(round(len(ids) * valid, 6))
    train = len(ids) - held
    if train <= length:
        raise UserError(
            f"{name}: length={length} is too much for {path}: of its {len(ids)} tokens {train} "
            "are for training, and a window has one more than its length"
        )
    if held < 2:
        raise UserError(f"{name}: valid={valid} leaves {held} of {len(ids)} tokens of {path}")
    sizes = {"train": train - length, "valid": math.ceil((held - 1) / length)}
    scored = {"train": slice(1, train), "valid": slice(train + 1, None)}

    def make(rng: np.random.Generator, count: int, split: str) -> Examples:
        if split == "train":
            window_NT = sliding_window_view(ids[:train], length + 1)[:count]
            tokens_NT, target_NT = window_NT[:, :-1], window_NT[:, 1:]
            real_NT = np.broadcast_to(True, tokens_NT.shape)
        else:
            cells = sizes["valid"] * length
            padded = np.pad(ids[train:], (0, cells + 1 - held))
            tokens_NT = padded[:-1].reshape(-1, length)[:count]
            target_NT = padded[1:].reshape(-1, length)[:count]
            real_NT = (np.arange(cells) < held - 1).reshape(-1, length)[:count]
        return Marks(tokens_NT, real_NT, target_NT, real_NT, vocab, follows=True)

    return Task(
        make,
        sizes=sizes,
        stands_for={"path": hashlib.sha256(raw.data).hexdigest()},
        bytes_per_token={s: size(part) / len(ids[part]) for s, part in scored.items()},
        decode=decode,
    )


TASKS: dict[str, Callable[..., Task]] = {"characters": characters, "bytes": raw_bytes}

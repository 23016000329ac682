"""Checks the entries of a user's file before they run, once for each version of their source.

A score that depends on other keys of the row would leak through the mask and change with the length
of the sequence; a mixer that sees later tokens would win every comparison. A loss shows neither.
"""

import contextlib
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from tfm.check import attention, layers
from tfm.check.attention import Attention
from tfm.check.layers import Layer, block
from tfm.check.results import TOLERANCE, Result
from tfm.config.files import run_file, user_code, user_entries
from tfm.config.names import UserError, read
from tfm.config.registries import TABLES
from tfm.config.spec import Named, Spec, named
from tfm.layers.block import FeedForwardSpec
from tfm.layers.context import Mixer
from tfm.layers.embed import PositionSpec
from tfm.layers.norm import NormSpec
from tfm.run import library_code
from tfm.runtime import cache_folder

START = ("tfm.check.entries", "results")  # where the code of a check begins
_passed: set[str] = set()  # in this process
MAY_SEE = {
    "SCORES": "a score may see one query, one key and their positions, never the rest of the row; "
    "a function of the whole row is Normalizer(row=…)",
    "NORMALIZERS": "each= may see one logit, total= the log-sum-exp of a row, row= the visible "
    "logits of a row",
    "MASKS": "a mask may see the positions of a query and of a key; hides() and shows() must agree "
    "with visible()",
    "POSITIONS": "a bias may see a pair of positions, a rotation one vector and its position, a "
    "table the positions; one that depends on later tokens declares causal=False",
    "JOINS": "a join may see one token's vector and the vector of its position",
    "NORMS": "a norm may see a token and those before it; otherwise it declares causal=False",
    "MIXERS": "a mixer may see what context.mask and dims.causal show; it declares what it cannot "
    "do: causal=False, padding=False, cacheable=False",
    "FEEDFORWARDS": "a feed-forward may see one token",
}


def _attention(field: str, text: Named) -> Iterator[Result]:
    return attention.checks(Attention(**{field: text.entry}))


def _layer(*capabilities: bool, **parts: Any) -> Iterator[Result]:
    return layers.checks(Layer(block(**parts), *capabilities))


def _position(text: Named) -> Iterator[Result]:
    if text.entry.table is None:
        return _attention("position", text)
    return _layer(text.entry.causal, position=PositionSpec(scheme=text))


def _mixer(text: Named) -> Iterator[Result]:
    mixer: Mixer = text.entry
    return _layer(mixer.causal, mixer.padding, mixer.causal and mixer.cacheable, mixer=text)


CHECKS: dict[str, Callable[[Named], Iterator[Result]]] = {
    "SCORES": functools.partial(_attention, "score"),
    "MASKS": functools.partial(_attention, "mask"),
    "NORMALIZERS": functools.partial(_attention, "normalizer"),
    "POSITIONS": _position,
    "JOINS": lambda text: _layer(position=PositionSpec(scheme=Named("sinusoidal"), join=text)),
    "NORMS": lambda text: _layer(text.entry.causal, norm=NormSpec(kind=text)),
    "MIXERS": _mixer,
    "FEEDFORWARDS": lambda text: _layer(feedforward=FeedForwardSpec(width=8, kind=text)),
}


def results(table: str, text: Named) -> Iterator[Result]:
    """Yields the results of every check of an entry, named with its options as in a config."""
    with user_code(f"the check of {table}[{str(text)!r}]"):
        yield from CHECKS[table](text)


def check_file(path: str) -> Iterator[tuple[str, str, Result]]:
    """Yields (table, name, result) for every check of every entry that a file defines."""
    module = run_file(pathlib.Path(path))
    entries = [(table, name) for table in TABLES for name in getattr(module, table, {})]
    if not entries:
        raise UserError(f"{path} brings no entries: none of {', '.join(TABLES)}")
    for table, name in entries:
        if table not in CHECKS:
            reason = "it is tried with the data when a run is planned"
            yield table, name, Result("none", None, None, reason)
            continue
        try:
            yield from ((table, name, result) for result in results(table, _default(table, name)))
        except UserError as e:
            yield table, name, Result("runs", False, None, str(e))


def _default(table: str, name: str) -> Named:
    """Returns an entry with its default options."""
    if table in ("MASKS", "NORMALIZERS", "POSITIONS", "MIXERS"):
        return Named.of(name, read(name, TABLES[table], table))
    return Named.of(name, TABLES[table][name])


def check_entries(spec: Spec) -> None:
    """Raises if an entry that a user's file defines and a spec names fails a check."""
    entries = user_entries(spec)
    names = {id(table): name for name, table in TABLES.items()}
    for table, text in named(spec):
        name = names.get(id(table), "")
        keys = [f"{name}.{entry}" for entry in text.names]
        users = [entries[key] for key in keys if key in entries]
        if users and name in CHECKS:
            _check(name, text, users[0].file, [entry.digest for entry in users])


def _check(table: str, text: Named, file: str, digests: Iterable[str]) -> None:
    parts = table, str(text), *digests, _code()
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    mark = cache_folder() / "checks" / key
    if key in _passed or mark.exists():
        return
    for result in results(table, text):
        if not result.passed:
            raise UserError(f"{file}: {failure(table, text, result)}")
    _passed.add(key)
    with contextlib.suppress(OSError):  # the next process checks it again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def failure(table: str, text: str, result: Result) -> str:
    by = f" (off by {result.difference:.3g}, not {TOLERANCE:g})" if result.difference else ""
    return (
        f"{table}[{text!r}] fails the check {result.check!r}: {result.says}{by}; {MAY_SEE[table]}. "
        "`tfm check FILE.py` shows every check"
    )


def _code() -> str:
    """Returns what a result depends on besides the entry: the code of the check, and JAX."""
    return f"{library_code.digest('{}', START)} {metadata.version('jax')}"

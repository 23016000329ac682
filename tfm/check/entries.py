"""Checks the entries of a user's file before they run, once for each version of their source.

A score that depends on other keys of the row would leak through the mask and change with the length
of the sequence; a mixer that sees later tokens would win every comparison. A loss shows neither.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import pathlib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from tfm.check import attention, layers, parts
from tfm.check.attention import Attention
from tfm.check.layers import Layer, block
from tfm.check.results import TOLERANCE, Result, holds
from tfm.config.files import run_file, user_code, user_entries
from tfm.config.names import UserError, read
from tfm.config.registries import TABLES
from tfm.config.spec import Named, Spec, named
from tfm.evaluate.evaluator import evaluation
from tfm.layers.block import FeedForwardSpec
from tfm.layers.context import Mixer
from tfm.layers.embed import PositionSpec
from tfm.layers.norm import NormSpec
from tfm.layers.recurrent import recurrent
from tfm.run import library_code
from tfm.run.evaluation import rehearse
from tfm.run.spec import open_data
from tfm.run.spec import read as read_run
from tfm.runtime import cache_folder

START = ("tfm.check.entries", "results")  # where the code of a check begins
_passed: set[str] = set()  # in this process
CONTRACTS = {
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
    "CELLS": "a cell's step(x, h, carry) returns the next carry, whose last part is the state, "
    "from one token; x and h hold its gates side by side",
    "FAMILIES": "the module is called as module(tokens_BT, valid_BT=…, dropouts=…, train=…, "
    "capture=…) with the inputs of spec.example(); Family describes what it returns",
    "OPTIMIZERS": "an optimizer is a function of the OptimizerSpec, and of options with defaults, "
    "that returns an optax.GradientTransformation",
    "SCHEDULES": "a schedule is a function of its options; it returns a function of (step, steps) "
    "whose value, at least 0, multiplies the learning rate",
    "EVALUATORS": "an evaluator is a subclass of Evaluator; evaluate(self, context, dataset) "
    "returns Result({name: number}) with the metrics that it declares, and refuses() says which "
    "models and data it cannot measure",
}
CALLED = ("MASKS", "NORMALIZERS", "POSITIONS", "MIXERS", "SCHEDULES", "EVALUATORS")  # or constants
SMALL = {  # the run that an evaluator is tried with
    "objective": "next_token",
    "model": {
        "family": "decoder",
        "width": 8,
        "layers": 1,
        "max_length": 16,
        "attention": {"heads": 2},
        "feedforward": {"width": 8},
    },
    "data": {"dataset": "copy(length=3, vocab=8)", "examples": 16, "valid_examples": 16},
    "train": {"steps": 1},
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


def _cell(text: Named) -> Iterator[Result]:
    name = f"recurrent(cell={str(text)!r})"
    return _layer(True, True, True, mixer=Named.of(name, recurrent(str(text))))


CHECKS: dict[str, Callable[[Named], Iterator[Result]]] = {
    "SCORES": functools.partial(_attention, "score"),
    "MASKS": functools.partial(_attention, "mask"),
    "NORMALIZERS": functools.partial(_attention, "normalizer"),
    "POSITIONS": _position,
    "JOINS": lambda text: _layer(position=PositionSpec(scheme=Named("sinusoidal"), join=text)),
    "NORMS": lambda text: _layer(text.entry.causal, norm=NormSpec(kind=text)),
    "MIXERS": _mixer,
    "FEEDFORWARDS": lambda text: _layer(feedforward=FeedForwardSpec(width=8, kind=text)),
    "CELLS": _cell,
    "FAMILIES": parts.family,
    "OPTIMIZERS": parts.optimizer,
    "SCHEDULES": parts.schedule,
}


def results(table: str, text: Named) -> Iterator[Result]:
    """Yields the results of every check of an entry, named with its options as in a config.

    The text of a family has the spec of a model as its entry.
    """
    with user_code(f"the check of {table}[{str(text)!r}]"):
        yield from CHECKS[table](text)


def _evaluator(text: Named) -> Iterator[Result]:
    """Yields the results of the checks of an evaluator, on a small model."""
    run, data = open_data(read_run(SMALL))
    each = evaluation("the evaluator", text, (getattr(text.entry, "split", ""),))
    on_valid = dataclasses.replace(each.evaluator, split="valid")
    each = dataclasses.replace(each, split="valid", evaluator=on_valid)
    subject = run.model, run.objective.entry, data["valid"]
    reason = on_valid.refuses(*subject)
    if reason is not None:
        says = f"it refuses the small decoder that it is tried with: {reason}"
        yield Result("none", None, None, says)
        return
    (result,) = rehearse(run, data, [each])
    declared, computed = sorted(x.name for x in each.declares(*subject)), sorted(result.metrics)
    says = f"it computes what it declares, {declared}"
    yield holds("metrics", says, declared == computed, computed)


def check_file(path: str) -> Iterator[tuple[str, str, Result]]:
    """Yields (table, name, result) for every check of every entry that a file defines."""
    module = run_file(pathlib.Path(path))
    entries = [(table, name) for table in TABLES for name in getattr(module, table, {})]
    if not entries:
        raise UserError(f"{path} brings no entries: none of {', '.join(TABLES)}")
    for table, name in entries:
        missing = _missing(table, name)
        if table not in CONTRACTS or missing:
            reason = f"it has no default for {missing}" if missing else "it needs data"
            says = f"{reason}: it is tried when a run is planned"
            yield table, name, Result("none", None, None, says)
            continue
        try:
            with user_code(f"the check of {table}[{name!r}]"):
                check = _evaluator if table == "EVALUATORS" else CHECKS[table]
                yield from ((table, name, result) for result in check(_default(table, name)))
        except UserError as e:
            yield table, name, Result("runs", False, None, str(e))


def _missing(table: str, name: str) -> str:
    """Returns the options of an entry, or the fields of a family, that a config must set."""
    entry = TABLES[table][name]
    if table == "FAMILIES":
        fields = [f for f in dataclasses.fields(entry.spec) if f.type not in (int, "int")]
        return ", ".join(f.name for f in fields if f.default is f.default_factory)
    if table not in CALLED or not callable(entry):
        return ""
    options = inspect.signature(entry).parameters.values()
    return ", ".join(x.name for x in options if x.default is x.empty)


def _default(table: str, name: str) -> Named:
    """Returns an entry with its default options."""
    entry = TABLES[table][name]
    if table == "FAMILIES":
        fields = dataclasses.fields(entry.spec)
        sizes = {f.name: parts.SIZE for f in fields if f.default is f.default_factory}
        return Named.of(name, entry.spec(**sizes | {"family": name}))
    return Named.of(name, read(name, TABLES[table], table) if table in CALLED else entry)


def check_entries(spec: Spec) -> None:
    """Raises if an entry that a user's file defines and a spec names fails a check."""
    entries = user_entries(spec)
    names = {id(table): name for name, table in TABLES.items()}
    for table, text in named(spec):
        name = names.get(id(table), "")
        keys = [f"{name}.{entry}" for entry in text.names]
        users = [entries[key] for key in keys if key in entries]
        if users and name in CHECKS:
            subject = Named.of(text, getattr(spec, "model", None)) if name == "FAMILIES" else text
            _check(name, subject, users[0].file, [entry.digest for entry in users])


def _check(table: str, text: Named, file: str, digests: Iterable[str]) -> None:
    model = repr(text.entry) if isinstance(text.entry, Spec) else ""
    content = "\n".join((table, str(text), *digests, model, _code()))
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    mark = cache_folder() / "checks" / key
    if key in _passed or mark.exists():
        return
    try:
        failed = next((x for x in results(table, text) if not x.passed), None)
    except UserError as e:
        raise UserError(f"{file}: {e}; {CONTRACTS[table]}") from e
    if failed is not None:
        raise UserError(f"{file}: {failure(table, text, failed)}")
    _passed.add(key)
    with contextlib.suppress(OSError):  # the next process checks it again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def failure(table: str, text: str, result: Result) -> str:
    by = f" (off by {result.difference:.3g}, not {TOLERANCE:g})" if result.difference else ""
    return (
        f"{table}[{text!r}] fails the check {result.check!r}: {result.says}{by}; "
        f"{CONTRACTS[table]}. `tfm check FILE.py` shows every check"
    )


def _code() -> str:
    """Returns what a result depends on besides the entry: the code of the check, and JAX."""
    return f"{library_code.digest('{}', START)} {metadata.version('jax')}"

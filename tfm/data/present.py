"""How an objective shows examples to a model: the model's own arguments, what is wanted, and how
much it counts (`weights…`, 0 where nothing is scored)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfm.data.batch import BOS, EOS, FIRST, Examples, Labels, Marks, Pairs, once
from tfm.names import UserError, pick

Arrays = dict[str, np.ndarray]


def present(examples: Examples, objective: str) -> Arrays:
    """Arrays by the names of the model's arguments, with `targets…` and `weights…`; N first."""
    refusal = _refusal(examples, objective)
    if refusal:
        raise UserError(
            f"objective {objective!r} {refusal}; this task allows: {', '.join(allowed(examples))}"
        )
    return OBJECTIVES[objective][type(examples)](examples)


def allowed(examples: Examples) -> list[str]:
    """The objectives by which these examples can be shown."""
    return [objective for objective in OBJECTIVES if _refusal(examples, objective) is None]


def vocab_needed(examples: Examples, objective: str) -> dict[str, int]:
    """What the model's `vocab`, and its `classes` if it needs any, must at least be."""
    pick(OBJECTIVES, objective, "objective")
    vocab, classes = examples.vocab, getattr(examples, "classes", examples.vocab)
    if objective in ("tag", "classify"):
        return {"vocab": vocab, "classes": classes}
    return {"vocab": max(vocab, FIRST + classes) if isinstance(examples, Labels) else vocab}


def _refusal(examples: Examples, objective: str) -> str | None:
    forms = pick(OBJECTIVES, objective, "objective")
    match examples:
        case _ if type(examples) not in forms:
            wanted = " or ".join(form.__name__.lower() for form in forms)
            return f"needs {wanted}, but the task gives {type(examples).__name__.lower()}"
        case Pairs() if objective == "tag" and not np.array_equal(
            examples.source_valid_NS, examples.target_valid_NT
        ):
            return "needs a target for each position of the source, but their lengths differ"
        case Marks(follows=True) if objective == "tag":
            return "would show the wanted tokens: they are the next ones"
    return None


def _floats(x: np.ndarray) -> np.ndarray:
    """As float32; what was broadcast stays so."""
    return np.broadcast_to(once(x).astype(np.float32), x.shape)


def _translate(x: Pairs) -> Arrays:
    """Teacher forcing: the target shifted right is read, the target and EOS are wanted."""
    count = len(x)
    target_NT = np.where(x.target_valid_NT, x.target_NT, 0).astype(np.int32)
    first_N1, last_N1 = np.full((count, 1), BOS, np.int32), np.zeros((count, 1), np.int32)
    targets_NT = np.concatenate([target_NT, last_N1], 1)
    targets_NT[np.arange(count), x.target_valid_NT.sum(1)] = EOS
    valid_NT = np.concatenate([np.ones((count, 1), bool), x.target_valid_NT], 1)
    return {
        "source_BS": x.source_NS,
        "source_valid_BS": x.source_valid_NS,
        "target_BT": np.concatenate([first_N1, target_NT], 1),
        "target_valid_BT": valid_NT,
        "targets_BT": targets_NT,
        "weights_BT": _floats(valid_NT),
    }


def _name(x: Labels) -> Arrays:
    """A target of one token, the label's."""
    one_N1 = np.ones((len(x), 1), bool)
    return {
        "source_BS": x.tokens_NT,
        "source_valid_BS": x.valid_NT,
        "target_BT": np.full(one_N1.shape, BOS, np.int32),
        "target_valid_BT": one_N1,
        "targets_BT": (x.label_N[:, None] + FIRST).astype(np.int32),
        "weights_BT": _floats(one_N1),
    }


def _joined(parts: Arrays) -> Arrays:
    """One sequence: the source, then at once what the decoder reads, which begins with SEP."""
    source_NS, valid_NS = parts["source_BS"], parts["source_valid_BS"]
    begin_N1 = valid_NS.sum(1, keepdims=True)
    place_NT = begin_N1 + np.arange(parts["target_BT"].shape[1])

    def after(x_NS: np.ndarray, x_NT: np.ndarray) -> np.ndarray:
        x_NL = np.zeros((len(x_NT), x_NS.shape[1] + x_NT.shape[1]), x_NT.dtype)
        x_NL[:, : x_NS.shape[1]] = x_NS
        np.put_along_axis(x_NL, place_NT, x_NT, 1)
        return x_NL

    nothing_NS = np.zeros_like(valid_NS)
    return {
        "tokens_BT": after(np.where(valid_NS, source_NS, 0), parts["target_BT"]),
        "valid_BT": after(valid_NS, parts["target_valid_BT"]),
        "targets_BT": after(nothing_NS, parts["targets_BT"]),
        "weights_BT": after(nothing_NS, parts["weights_BT"]),
    }


def _as_they_are(x: Marks) -> Arrays:
    return {
        "tokens_BT": x.tokens_NT,
        "valid_BT": x.valid_NT,
        "targets_BT": x.target_NT,
        "weights_BT": _floats(x.marked_NT),
    }


def _side_by_side(x: Pairs) -> Arrays:
    return {
        "tokens_BT": x.source_NS,
        "valid_BT": x.source_valid_NS,
        "targets_BT": x.target_NT,
        "weights_BT": _floats(x.source_valid_NS),
    }


def _classified(x: Labels) -> Arrays:
    return {
        "tokens_BT": x.tokens_NT,
        "valid_BT": x.valid_NT,
        "targets_B": x.label_N,
        "weights_B": np.ones(len(x), np.float32),
    }


OBJECTIVES: dict[str, Mapping[type, Callable[[Any], Arrays]]] = {
    "next_token": {
        Pairs: lambda x: _joined(_translate(x)),
        Labels: lambda x: _joined(_name(x)),
        Marks: _as_they_are,
    },
    "seq2seq": {Pairs: _translate, Labels: _name},
    "tag": {Pairs: _side_by_side, Marks: _as_they_are},
    "classify": {Labels: _classified},
}

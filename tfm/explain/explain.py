"""Explains what a model does with one text: all that the page shows, as arrays and plain data."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from tfm.config.names import UserError
from tfm.explain import formulas, heads
from tfm.explain.forward import Arrays, Forward, Site, forward
from tfm.explain.passage import Continuation, Passage, class_names, continuations, follows, passage
from tfm.explain.terms import Term, bias_by_distance, terms
from tfm.explain.walk import Picture, Walk, walks
from tfm.models.spec import TransformerSpec
from tfm.run.load import LoadedRun

HELD_LOGITS = 200_000  # numbers: positions beyond that are left out, but never the last one
NAMED = 100  # candidates whose names are held, of a large vocabulary


@dataclasses.dataclass
class Look:
    """A site with the statistics of its heads."""

    site: Site
    heads: list[list[dict[str, Any]]]  # by layer and head
    value_norms: np.ndarray | None  # NHS
    terms: dict[str, Term]  # of the first layer's score
    formulas: dict[str, str]  # by map
    muted: str  # how a head was silenced


@dataclasses.dataclass
class Next:
    """Logits at some positions, the names of their classes or tokens, and continuations."""

    rows: list[int]  # positions of `written`; empty: the logits are of the whole
    start: int | None  # the one of them that is shown first
    follows: bool  # the logits are of the token after each position
    logits: np.ndarray  # as many as rows, or one
    names: dict[int, str]
    written: str
    classes: bool
    continuations: list[Continuation]


@dataclasses.dataclass
class Explanation:
    name: str  # of the run
    text: str
    facts: dict[str, str]
    notes: list[str]
    sequences: dict[str, list[tuple[str, int]]]  # pieces and ids
    forward: Forward
    looks: list[Look]
    walks: list[Walk]
    pictures: list[tuple[str, str, Picture]]  # title, text: tables and biases of positions
    next: Next | None
    loss: float | None
    loss_of: str


def explain(
    loaded: LoadedRun,
    text: str,
    target: str | None = None,
    second: str | None = None,
    layers: list[int] | None = None,
) -> Explanation:
    """Runs one forward pass over a text, and measures what each head is worth."""
    spec = loaded.spec
    read, notes = passage(loaded, text, target, second)
    notes = [*loaded.messages, *notes]
    if layers is not None:
        notes.append(f"Shown are the layers {', '.join(map(str, layers))} (--layers).")
    captured = forward(loaded, read, layers)
    if captured.logits is not None and not np.all(np.isfinite(captured.logits)):
        raise UserError(
            f"{loaded.folder}: the model gives numbers that are not finite: it diverged"
        )
    if getattr(spec, "outputs", None) == ():
        captured.logits = None
        notes.append("The model gives states and no prediction, so there is no loss.")
    loss, worth = None, {}
    if captured.logits is not None:
        if read.labels is None or np.all(read.labels < 0):
            read.labels = np.argmax(captured.logits, -1)
            read.loss_of = "what the model itself chooses"
        loss = heads.loss_of(captured.logits, read.labels)
        worth = heads.silenced(loaded, read, captured.sites) if captured.sites else {}
    looks = [_look(loaded, read, captured, site, worth.get(site.name)) for site in captured.sites]
    notes += _mixer_notes(spec, captured)
    return Explanation(
        name=loaded.folder.name or str(loaded.folder),
        text=" → ".join(filter(None, [text, second, target])),
        facts=_facts(loaded, captured),
        notes=notes,
        sequences={
            name: list(zip(loaded.reader.names(ids), ids, strict=True))
            for name, ids in read.sequences.items()
        },
        forward=captured,
        looks=looks,
        walks=walks(loaded, captured, _embedded(loaded, read)),
        pictures=_positions(captured, looks),
        next=_next(loaded, read, captured),
        loss=loss,
        loss_of=read.loss_of,
    )


def _mixer_notes(spec: Any, captured: Forward) -> list[str]:
    if not isinstance(spec, TransformerSpec):
        return []
    mixer = f"The mixer {str(spec.mixer)!r}"
    if all(site.name == "cross" for site in captured.sites):
        return [f"{mixer} has no weights between tokens to look at."]
    if all(site.builtin for site in captured.sites):
        return []
    return [
        f"{mixer} is not one of the library's, so the page does not know how it joins its heads: "
        "its weights are shown as it captures them, without the size of their values and without "
        "the loss when a head is silenced."
    ]


def _look(
    loaded: LoadedRun, read: Passage, captured: Forward, site: Site, worth: np.ndarray | None
) -> Look:
    measured = heads.statistics(site, read.sequences)
    for n, h in np.ndindex(len(measured), site.heads):
        measured[n][h]["silenced"] = None if worth is None else float(worth[n, h])
    parts = {}
    if site.stack and isinstance(loaded.spec, TransformerSpec):
        parts = terms(loaded.spec, loaded.params, captured.sides[site.stack], site)
    biased = "bias_NHTS" in site.arrays
    by_map = {"weights": "w_ts"} if site.spec is None else {
        "score": formulas.score(site.spec),
        "bias": "b_ts, added to the score" + formulas.cap(site.spec),
        "logits": ("s_ts + b_ts" if biased else "s_ts") + formulas.cap(site.spec),
        "mask": "1 where t may see s",
        "weights": formulas.normalizer(site.spec),
    }  # fmt: skip
    by_map["value"] = "w_ts · ‖v_s W_o‖: what is moved.  Kobayashi et al. 2020, eq. 5"
    norms, muted = heads.value_norms(site, loaded.params), heads.how_silenced(loaded.params, site)
    return Look(site, measured, norms, parts, by_map, muted)


def _embedded(loaded: LoadedRun, read: Passage) -> dict[str, np.ndarray]:
    """Returns the embeddings of recurrent models, which do not capture them."""
    if getattr(loaded.spec, "cell", None) is None:
        return {}
    names, embedded = {"tokens": "embed", "source": "source_embed", "target": "target_embed"}, {}
    for sequence, ids in read.sequences.items():
        embed = loaded.model.bind(loaded.variables)
        x_BTD = getattr(embed, names[sequence])(np.array([ids], np.int32))
        embedded[sequence] = np.asarray(x_BTD, np.float32)[0]
    return embedded


def _positions(captured: Forward, looks: list[Look]) -> list[tuple[str, str, Picture]]:
    out = []
    tables = {side: x["table_TD"] for side, x in captured.sides.items() if "table_TD" in x}
    for side, table_TD in tables.items():
        unit = table_TD / np.maximum(np.linalg.norm(table_TD, axis=-1, keepdims=True), 1e-9)
        out += [
            (f"Position table ({side})", "The vector of each position, P[t].",
             Picture("P", "TD", table_TD)),
            (f"How alike are two positions? ({side})", "cos(P[t], P[s])",
             Picture("cos", "TT", unit @ unit.T)),
        ]  # fmt: skip
    for look in looks:
        if (by_distance := bias_by_distance(look.site)) is not None:
            bias_NHR, reach = by_distance
            # Layers that share their bias are shown once.
            same = np.allclose(bias_NHR, bias_NHR[:1])
            out.append(
                (f"Bias by distance ({look.site.title.lower()})",
                 f"b(s − t) of each head (row), for s − t from {reach[0]} to {reach[-1]}"
                 + ("" if same else "; of the first layer shown"),
                 Picture("b", "HR", bias_NHR[0]))
            )  # fmt: skip
    return out


def _next(loaded: LoadedRun, read: Passage, captured: Forward) -> Next | None:
    if captured.logits is None or captured.logits.shape[1] < 2:
        return None
    logits = captured.logits
    rows, start, ids = [], None, list(range(logits.shape[1]))
    names = class_names(loaded, len(ids))
    if len(logits) == len(read.sequences[read.written]):
        order = _asked(loaded, read)[: max(1, HELD_LOGITS // len(ids))]
        rows, start = sorted(order), order[0]
        logits = logits[np.array(rows)]
    if len(ids) > 2000:
        ids = np.unique(np.argsort(-logits, 1)[:, :NAMED]).tolist()
    goes_on = continuations(loaded, read, captured.logits[-1]) if follows(loaded) else []
    ids = [*ids, *sorted({id_ for row in goes_on for id_ in row.ids} - set(ids))]
    texts = loaded.reader.names(ids) if names is None else [names[id_] for id_ in ids]
    named = dict(zip(ids, texts, strict=True))
    return Next(
        rows, start, follows(loaded), logits, named, read.written, names is not None, goes_on
    )


def _asked(loaded: LoadedRun, read: Passage) -> list[int]:
    """Returns the positions at which something is predicted, the one to be shown first in front:
    the last of a text that is continued, a mask, or the first word."""
    rows = range(len(read.sequences[read.written]))
    if follows(loaded):
        return [*reversed(rows)]
    asked = read.asked or []
    return [*asked, *(t for t in rows if t not in asked and not loaded.objective.tags)]


def _facts(loaded: LoadedRun, captured: Forward) -> dict[str, str]:
    spec: Any = loaded.spec
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(loaded.params))
    facts = {"family": spec.family.replace("_", "–"), "parameters": f"{count:,}"}
    for name in ("layers", "width", "hidden", "cell"):
        if getattr(spec, name, None):
            facts[name] = str(getattr(spec, name))
    attention = getattr(spec, "attention", None)
    if attention is not None and any(site.spec is not None for site in captured.sites):
        values = attention.heads, attention.score, attention.normalizer
        facts |= zip(("heads", "score", "normaliser"), map(str, values), strict=True)
    if hasattr(spec, "position"):
        facts["position"] = str(spec.position.scheme)
    if hasattr(spec, "mixer") and spec.mixer != "attention":
        facts["mixer"] = str(spec.mixer)
    facts["step"] = "imported" if loaded.run.data.dataset == "none" else f"{loaded.step:,}"
    return facts


def numbers(explanation: Explanation) -> Arrays:
    """Returns all that was computed, by name, for an .npz file."""
    out: Arrays = {}
    for side, arrays in explanation.forward.sides.items():
        out |= {f"{side}.{name}": x for name, x in arrays.items()}
    for look in explanation.looks:
        for kind in look.heads[0][0]:
            if kind != "tag":
                each = [[head[kind] for head in row] for row in look.heads]
                out[f"{look.site.name}.head_{kind}_NH"] = np.array(each, float)
        if look.value_norms is not None:
            out[f"{look.site.name}.value_norm_NHS"] = look.value_norms
        out |= {f"{look.site.name}.{name}_HTS": term.pairs_HTS for name, term in look.terms.items()}
    for name, pieces in explanation.sequences.items():
        out[f"{name}.ids"] = np.array([id_ for _, id_ in pieces])
    if explanation.forward.logits is not None:
        out["logits"] = explanation.forward.logits
    return out

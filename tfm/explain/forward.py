"""One forward pass with all intermediates of its layers, as NumPy arrays of one example."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.explain.passage import Passage
from tfm.layers.attention import AttentionSpec
from tfm.layers.recurrent import CELLS
from tfm.layers.stack import SCANNED
from tfm.models.spec import SeqToSeqSpec, TransformerSpec
from tfm.run.load import LoadedRun

Arrays = dict[str, np.ndarray]
PARTS = (  # arrays that a site may have
    "weights_NHTS", "q_NTHK", "k_NSGK", "v_NSGE", "heads_NTHE",
    "score_NHTS", "bias_NHTS", "logits_NHTS", "visible_NHTS",
)  # fmt: skip
WEIGHING = ("attention", "linear_attention", "token_mlp")  # built-in mixers with weights


@dataclasses.dataclass
class Site:
    """A place where tokens look at tokens, in each of some layers.

    `arrays` has weights_NHTS and, for attention, the other `PARTS`. The computation between the
    weights and the output of a mixer from a user's file is unknown, so only its weights are shown.
    """

    name: str  # "encoder", "decoder", "cross"
    title: str
    rows: str  # the sequence of the queries
    cols: str  # the sequence of the keys
    layers: list[int]
    arrays: Arrays
    stack: str  # the parameters of its layers; "" if it is beside an RNN
    branch: str  # its parameters within a layer
    spec: AttentionSpec | None
    builtin: bool = True

    @property
    def heads(self) -> int:
        return self.arrays["weights_NHTS"].shape[1]


@dataclasses.dataclass
class Forward:
    """The intermediates of each stack of layers, by its name; layers are the first axis (N)."""

    logits: np.ndarray | None  # TV, or 1V of the whole
    sides: dict[str, Arrays]
    sites: list[Site]


def captured(spec: Any) -> tuple[str, ...]:
    """Returns the names of all intermediates that a model has."""
    if isinstance(spec, TransformerSpec):
        return "states", "details"
    gates = ("gates",) if getattr(spec, "cell", None) and CELLS[spec.cell].gates else ()
    details = ("details",) if isinstance(spec, SeqToSeqSpec) and spec.attends else ()
    return ("states", *gates, *details)


def forward(loaded: LoadedRun, passage: Passage, layers: list[int] | None = None) -> Forward:
    """Runs the model over a passage. With `layers`, keeps only those of each stack."""
    spec = loaded.spec
    run = jax.jit(functools.partial(loaded.model.apply, capture=captured(spec)))
    out, intermediates = run(loaded.variables, **passage.inputs)
    intermediates.pop("losses", None)
    sides = {spec.family: intermediates}
    if spec.has_source:  # which jax.jit returns in the order of the alphabet
        sides = {side: intermediates[side] for side in ("encoder", "decoder")}
    kept = {side: _kept(arrays, side, layers) for side, arrays in sides.items()}
    sites = []
    if isinstance(spec, SeqToSeqSpec):
        sites = _alignment(spec, kept["decoder"])
    elif isinstance(spec, TransformerSpec):
        sites = _sites(spec, kept, passage, layers)
    return Forward(_logits(out, loaded.objective.output), kept, sites)


def _kept(arrays: Mapping[str, Any], side: str, layers: list[int] | None) -> Arrays:
    """Returns the arrays of the one example as float32, of the chosen layers. Leaves out those of a
    mixer that do not have the axes in their names."""
    kept = {}
    for name, array in arrays.items():
        stem, _, axes = name.rpartition("_")
        if np.ndim(array) != len(axes):
            continue
        real = jnp.issubdtype(array.dtype, jnp.floating)
        x = np.asarray(array.astype(jnp.float32) if real else array)
        if axes.startswith("N"):
            if beyond := [n for n in layers or () if n >= len(x)]:
                known = f"in the {side}: they are 0 to {len(x) - 1}"
                raise UserError(f"--layers: there is no layer {beyond[0]} {known}")
            x = x if layers is None else x[np.array(layers)]
        place = axes.find("B")
        kept[f"{stem}_{axes.replace('B', '')}"] = x if place < 0 else np.take(x, 0, place)
    return kept


def _logits(out: Any, output: str | None) -> np.ndarray:
    if isinstance(out, Mapping):  # of several outputs
        out = out[output]
    x = np.asarray(out, np.float32)[0]
    return x if x.ndim == 2 else x[None]


def _sites(
    spec: Any, sides: dict[str, Arrays], passage: Passage, layers: list[int] | None
) -> list[Site]:
    mixer = spec.mixer.names[0]
    builtin = mixer in WEIGHING
    attention = spec.attention if mixer == "attention" else None
    cross = getattr(spec, "cross", None) or spec.attention
    sites = []
    for side, arrays in sides.items():
        rows, title = "tokens", "self-attention" if attention else mixer.replace("_", " ")
        if spec.has_source:
            rows = {"encoder": "source", "decoder": "target"}[side]
            title = f"{side}: {title}"
        for name, site_title, cols, prefix, branch, site_spec, known in (
            (side, title[0].upper() + title[1:], rows, "", mixer, attention, builtin),
            ("cross", "Cross-attention, target → source", "source", "cross_", "cross", cross, True),
        ):
            part = _part(arrays, prefix, PARTS if known else ("weights_NHTS", "visible_NHTS"))
            weights_NHTS = part.get("weights_NHTS")
            if weights_NHTS is None or not np.all(np.isfinite(weights_NHTS)):
                continue
            visible = part.get("visible_NHTS", weights_NHTS > 0)
            if visible.shape != weights_NHTS.shape or visible.dtype != bool:
                del part["visible_NHTS"]
            if [*weights_NHTS.shape[2:]] == [len(passage.sequences[x]) for x in (rows, cols)]:
                shown = layers or list(range(len(weights_NHTS)))
                kind = name, site_title, rows, cols
                sites.append(Site(*kind, shown, part, side, branch, site_spec, known))
    return sites


def _part(arrays: Arrays, prefix: str, names: Sequence[str] = PARTS) -> Arrays:
    return {name: arrays[prefix + name] for name in names if prefix + name in arrays}


def _alignment(spec: SeqToSeqSpec, decoder: Arrays) -> list[Site]:
    """Returns the attention of a recurrent decoder, as that of one layer."""
    layer = {name: x for name, x in decoder.items() if not name.rpartition("_")[2].startswith("N")}
    part = _part({name.replace("_", "_N"): x[None] for name, x in layer.items()}, "")
    if "weights_NHTS" not in part:
        return []
    title = f"Alignment, target → source ({spec.decoder})"
    return [Site("cross", title, "target", "source", [0], part, "", "attention", spec.attention)]


def layer_params(params: Any, stack: str, layer: int) -> Any:
    """Returns the parameters of one layer, whether layers are scanned or not."""
    layers = params[stack]
    if SCANNED in layers:
        return jax.tree.map(lambda leaf: leaf[layer], layers[SCANNED])
    return layers[f"layer_{layer}"]


def site_params(params: Any, site: Site, layer: int) -> Any:
    """Returns the parameters of an attention."""
    if not site.stack:
        return params[site.branch]
    return layer_params(params, site.stack, layer)[site.branch]

"""The walk: every stage from the text to the next token, with its formula and numbers."""

import dataclasses
import re
from typing import Any

import numpy as np

from tfm.explain import formulas
from tfm.explain.forward import Arrays, Forward, Site
from tfm.explain.passage import class_names
from tfm.models.spec import BagSpec, TransformerSpec
from tfm.run.load import LoadedRun

WHOLE, ENDS = 256, 24  # logits that are all drawn; else so many of the largest and of the smallest
DROPPED = {  # where dropout acts: what it sets to 0
    "embedding": "the numbers of x",
    "attention": "the weights",
    "residual": "the numbers of y",
    "feedforward": "the hidden numbers",
    "output": "the numbers of x",
    "head": "the numbers that the head reads",
}


@dataclasses.dataclass
class Picture:
    """A matrix of the walk. `axes` are those of `data` in our suffixes; leading N and H are the
    layer and the head that the reader chooses."""

    label: str
    axes: str
    data: np.ndarray
    rows: str = ""  # the sequence that its rows are; "": none
    names: list[str] | None = None  # of its columns
    total: int = 0  # number of columns, if some are left out


@dataclasses.dataclass
class Stage:
    """`shows` is besides the pictures: "pieces", "bars", or a map of `site`."""

    name: str
    title: str
    formula: str
    text: str = ""
    pictures: list[Picture] = dataclasses.field(default_factory=list)
    shows: str = ""
    site: str = ""


@dataclasses.dataclass
class Walk:
    name: str
    title: str
    stages: list[Stage]


def walks(loaded: LoadedRun, captured: Forward, embedded: dict[str, np.ndarray]) -> list[Walk]:
    """Returns a walk for each side. `embedded` are embeddings that a model does not capture."""
    spec: Any = loaded.spec
    out = []
    for side, arrays in captured.sides.items():
        rows = {"encoder": "source", "decoder": "target"}[side] if spec.has_source else "tokens"
        last = side == "decoder" or not spec.has_source
        stages = [
            Stage("pieces", "Text → pieces → ids", "text = piece₁ piece₂ …,  id = its number",
                  "The tokenizer cuts the text into pieces. To the model each is a number.",
                  shows="pieces"),
        ]  # fmt: skip
        sites = {site.name: site for site in captured.sites if site.stack in (side, "")}
        if isinstance(spec, TransformerSpec):
            stages += _transformer(spec, side, rows, arrays, sites)
        else:
            stages += _plain(spec, rows, arrays, embedded.get(rows), sites if last else {})
        if captured.logits is not None and last:
            stages += _end(loaded, rows, captured.logits)
        out.append(Walk(side, side.capitalize(), stages))
    return out


def _dropped(spec: Any, *places: str) -> str:
    """Returns what dropout does at these places in training, or ""."""
    shares = [f"{spec.rates[place]:.3g} of {DROPPED[place]}" for place in places
              if spec.rates.get(place)]  # fmt: skip
    if not shares:
        return ""
    return f" In training, dropout sets a share of {' and '.join(shares)} to 0; here, none."


def _end(loaded: LoadedRun, rows: str, logits: np.ndarray) -> list[Stage]:
    spec: Any = loaded.spec
    of = rows if len(logits) > 1 or not hasattr(spec, "classes") else ""
    title = "What comes next"
    outputs: tuple[str, ...] = getattr(spec, "outputs", ())
    output = outputs[0] if len(outputs) == 1 else loaded.objective.output
    if getattr(spec, "classes", None):
        title = "Which class?"
    if "masked_lm" in outputs and output == "masked_lm":
        title = "Which token stands here?"
    text, total = "One number for each entry of the vocabulary, or for each class.", logits.shape[1]
    ids, known = np.arange(total), class_names(loaded, total)
    if total > WHOLE:
        ends = np.argsort(-logits.max(0), kind="stable"), np.argsort(logits.min(0), kind="stable")
        ids = np.unique(np.concatenate([order[:ENDS] for order in ends]))
        ids = ids[np.argsort(-logits.max(0)[ids], kind="stable")]
        text += f" Drawn are the {ENDS} with the largest and the {ENDS} with the smallest number."
    names = loaded.reader.names(ids) if known is None else [known[id_] for id_ in ids]
    data, whole = logits[:, ids], len(logits) == 1 and not of
    picture = Picture("logits", "V" if whole else "TV", data[0] if whole else data, of, names)
    picture.total = total if total > WHOLE else 0
    return [
        Stage("logits", "Logits", formulas.head(spec, output),
              text + _dropped(spec, "output", "head"), [picture]),
        Stage("bars", title, "p_i = exp(logit_i / T) / Σ_j exp(logit_j / T)",
              "A low temperature T favours the most probable. Top-k keeps the k most probable, "
              "top-p the fewest whose probabilities sum to p. The kept ones are renormalised.",
              shows="bars"),
    ]  # fmt: skip


def _transformer(
    spec: Any, side: str, rows: str, arrays: Arrays, sites: dict[str, Site]
) -> list[Stage]:
    scheme = spec.position.scheme
    if side == "decoder":
        scheme = getattr(spec, "decoder_scheme", None) or scheme
    table, dropped = "table_TD" in arrays, _dropped(spec, "embedding")
    early_norm = spec.norm.embedding and spec.norm.kind != "none"
    pictures = [Picture("token", "TD", arrays["token_TD"], rows)]
    if table:
        pictures.append(Picture("position", "TD", arrays["table_TD"], rows))
    x = [Picture("x", "TD", arrays["embedding_TD"], rows)]
    formula, text = formulas.embedding(spec, table), formulas.position(scheme)
    if early_norm:
        stages = [
            Stage("embedding", "Embedding and position", formula, text, pictures),
            Stage("embed_norm", "Norm of the embeddings", formulas.norm(spec.norm),
                  dropped.strip(), x),
        ]  # fmt: skip
    else:
        pictures += x if table else []
        stages = [Stage("embedding", "Embedding and position", formula, text + dropped, pictures)]
    mixer = spec.mixer.names[0]
    parts = [
        (mixer, sites.get(side), "attention" if mixer == "attention" else "the mixer"),
        ("cross", sites.get("cross"), "cross-attention"),
        ("feedforward", None, "the feed-forward"),
    ]
    parts = [part for part in parts if f"{part[0]}_in_NTD" in arrays]
    for branch, site, what in parts:
        if spec.norm.placement != "post" and not (spec.parallel and branch != parts[0][0]):
            name = {mixer: "norm"}.get(branch, f"{branch}_norm")
            before = f"before {'all parts' if spec.parallel else what}"
            stages += _norm(spec, arrays, f"{branch}_in", rows, name, before)
        if branch == "feedforward":
            stages.append(_feedforward(spec, arrays, rows))
        elif site is not None and site.spec is not None:
            rotated = scheme.entry.rotate is not None and branch != "cross"
            stages += _attention(spec, site, rotated)
            prefix, of = ("cross_", "Cross-attention: ") if branch == "cross" else ("", "")
            outputs = _one(arrays, f"{branch}_out", rows, "y")
            joined = formulas.joined(site.spec)
            stages.append(Stage(f"{prefix}joined", f"{of}Heads joined", joined, "", outputs))
        elif branch == mixer:
            stages += _mixer(spec, site, arrays, rows)
        stages += _residual(spec, arrays, branch, rows, what)
    stages += _residual(spec, arrays, "all", rows, "all parts")
    if spec.norm.has_final:
        stages += _norm(spec, arrays, "final", rows, "final", "after the last layer", "TD")
    return stages


def _one(
    arrays: Arrays, name: str, rows: str, label: str = "norm(x)", axes: str = "NTD"
) -> list[Picture]:
    key = f"{name}_{axes}"
    return [Picture(label, axes, arrays[key], rows)] if key in arrays else []


def _norm(
    spec: Any, arrays: Arrays, key: str, rows: str, name: str, where: str, axes: str = "NTD"
) -> list[Stage]:
    """Returns the stage of a norm, whose result is `arrays[key]`."""
    if spec.norm.kind == "none":
        return []
    pictures = _one(arrays, key, rows, axes=axes)
    return [Stage(name, f"Norm {where}", formulas.norm(spec.norm), "", pictures)]


def _feedforward(spec: Any, arrays: Arrays, rows: str) -> Stage:
    pictures = _one(arrays, "hidden", rows, "hidden", "NTF")
    pictures += _one(arrays, "feedforward_out", rows, "y")
    text = "Each token by itself." + _dropped(spec, "feedforward")
    return Stage(
        "feedforward", "Feed-forward", formulas.feedforward(spec.feedforward), text, pictures
    )


def _residual(spec: Any, arrays: Arrays, branch: str, rows: str, what: str) -> list[Stage]:
    """Returns the stages from the output of a part to the input of the next one."""
    if f"{branch}_sum_NTD" not in arrays:
        return []
    text = "y is added to what was there." if spec.residual else "There is no residual path."
    stages, placement = [], spec.norm.placement
    if placement == "sandwich":
        key = f"{branch}_out_norm"
        stages += _norm(spec, arrays, key, rows, key, f"of the output of {what}")
    pictures = _one(arrays, f"{branch}_sum", rows, "x′")
    stages.append(
        Stage(f"{branch}_sum", "Residual" if spec.residual else "No residual",
              formulas.residual(spec, branch == "all"), text + _dropped(spec, "residual"), pictures)
    )  # fmt: skip
    if placement == "post":
        key = f"{branch}_norm"
        stages += _norm(spec, arrays, key, rows, key, f"after {what}")
    return stages


def _mixer(spec: Any, site: Site | None, arrays: Arrays, rows: str) -> list[Stage]:
    """Returns the stages of a mixer other than attention."""
    name = spec.mixer.names[0]
    gates = "".join(gate for gate in formulas.GATE_NAMES if f"gate_{gate}_NTH" in arrays)
    pictures = _gates(arrays, rows)
    if name not in formulas.BUILTIN:
        pictures += _captured(arrays, name, rows)
    pictures += _one(arrays, f"{name}_out", rows, "y")
    formula = formulas.mixer(spec.mixer, gates, site is not None)
    stage = Stage("mixer", f"Mixer: {name.replace('_', ' ')}", formula,
                  formulas.mixer_text(spec.mixer), pictures)  # fmt: skip
    return [*(_attention(spec, site) if site else []), stage]


def _captured(arrays: Arrays, mixer: str, rows: str) -> list[Picture]:
    """Returns the arrays of tokens, or of tokens and heads, that a user's mixer captures."""
    block = rf"cross_.*|hidden|states|({mixer}|feedforward|all)_(in|out|sum|norm|out_norm)"
    pictures = []
    for key, x in arrays.items():
        label, _, axes = key.rpartition("_")
        if re.fullmatch(block, label) or not re.fullmatch("N[TS]..?", axes):
            continue
        if x.shape[1] == len(arrays["token_TD"]) and np.isrealobj(x) and np.all(np.isfinite(x)):
            by_head = np.moveaxis(x, 1, -2)
            axes = axes if x.ndim == 3 else f"NH{axes[1]}{axes[-1]}"
            pictures.append(Picture(label, axes, by_head, rows))
    return pictures


def _attention(model: Any, site: Site, rotated: bool = False) -> list[Stage]:
    """Returns the stages from queries, keys and values to the output of each head."""
    a, spec = site.arrays, site.spec
    prefix, of = ("cross_", "Cross-attention: ") if site.name == "cross" else ("", "")
    stages = []
    if "q_NTHK" in a:
        pictures = [
            Picture("q", "NHTK", a["q_NTHK"].swapaxes(1, 2), site.rows),
            Picture("k", "NHSK", _by_head(a["k_NSGK"], site.heads), site.cols),
            Picture("v", "NHSE", _by_head(a["v_NSGE"], site.heads), site.cols),
        ]
        text, formula = "q asks, k answers, v is what is handed over.", ""
        if spec is None:
            formula = "q = φ(x W_q),  k = φ(x W_k),  v = x W_v,  φ(x) = elu(x) + 1"
        elif not prefix:
            formula = formulas.projections(spec, rotated)
        elif site.stack:
            formula = formulas.projections(spec, key="y") + ",  y: what the encoder gives"
        else:
            formula = formulas.projections(spec, query="h", key="y")
            formula += ",  h: the decoder's state,  y: the encoder's states"
        if rotated:
            text += " R_t rotates to position t."
        if spec is not None and spec.qk_norm:
            text += " rms(x) = x / √(mean x² + 1e-06) · scale."
        if spec is not None and spec.groups < spec.heads:
            text += f" {spec.heads} query heads share {spec.groups} heads of keys and values."
        stages.append(Stage(f"{prefix}qkv", f"{of}Q, K, V of a head", formula, text, pictures))

    def add_map(name: str, title: str, formula: str, text: str, shows: str = "") -> None:
        at = (f"{prefix}{name}", f"{of}{title}")
        stages.append(Stage(*at, formula, text, shows=shows or name, site=site.name))

    if "score_NHTS" in a and spec is not None:
        add_map("score", "Scores", formulas.score(spec),
                "How similar are the query of row t and the key of column s? "
                "Pairs that the mask hides are grey.")  # fmt: skip
        cap = formulas.cap(spec)
        if "bias_NHTS" in a:
            text = "What the distance adds, whatever the content is."
            add_map("bias", "Bias", f"s_ts ← s_ts + b_ts{cap}", text)
        elif cap:
            add_map("cap", "Cap", f"s_ts ← s_ts{cap}", "", "logits")
        add_map("mask", "Mask", "s_ts ← −∞ where t must not see s", "Who may look at whom.")
    formula = "w_ts: what position s weighs in row t" if spec is None else formulas.normalizer(spec)
    dropped = _dropped(model, "attention") if spec is not None else ""
    add_map("weights", "Weights", formula, "What each row looks at." + dropped)
    if "heads_NTHE" in a:
        pictures = [Picture("z", "NHTE", a["heads_NTHE"].swapaxes(1, 2), site.rows)]
        title = f"{of}Weighted values"
        stages.append(Stage(f"{prefix}values", title, "z_t = Σ_s w_ts v_s", "", pictures))
    return stages


def _by_head(x_NSGK: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(x_NSGK, heads // x_NSGK.shape[2], 2).swapaxes(1, 2)


def _gates(arrays: Arrays, rows: str) -> list[Picture]:
    labels = {f"gate_{gate}_NTH": label for gate, label in formulas.GATE_NAMES.items()}
    labels |= {"cells_NTH": "c: the cell", "cell_states_NTH": "h: the state"}
    return [Picture(labels[x], "NTH", arrays[x], rows) for x in labels if x in arrays]


def _plain(
    spec: Any, rows: str, arrays: Arrays, embedded: np.ndarray | None, sites: dict[str, Site]
) -> list[Stage]:
    """Returns the stages of families without a residual path."""
    stages = []
    if embedded is not None:
        pictures = [Picture("x", "TD", embedded, rows)]
        formula = f"x = {formulas.CODED.get(spec.coding, 'E[id]')}"
        dropped = _dropped(spec, "embedding").strip()
        stages.append(Stage("embedding", "Embedding", formula, dropped, pictures))
    if "states_NTH" in arrays:
        formula = formulas.GATES.get(spec.cell, "h′ = f(x, h)")
        text = (
            "One step for each token. A gate is between 0 (shut) and 1 (open), feature by feature."
        )
        if len(arrays["states_NTH"][0, 0]) > spec.hidden:
            text += " The left half reads forwards, the right half backwards."
        if gates := _gates(arrays, rows):
            stages.append(Stage("gates", "Gates over time", formula, text, gates))
        pictures = [Picture("h", "NTH", arrays["states_NTH"], rows)]
        dropped = _dropped(spec, "residual").replace("numbers of y", "numbers between layers")
        stages.append(Stage("states", "States", formula, dropped.strip(), pictures))
    for site in sites.values():
        stages += _attention(spec, site)
    for name, x in arrays.items():
        stem, _, axes = name.rpartition("_")
        if stem == "pooled" or stem.removeprefix("states_").isdecimal():
            x_TD = x if axes == "TD" else x[None]
            of = rows if axes == "TD" and embedded is not None and len(x) == len(embedded) else ""
            title, formula = f"Layer {stem[7:]}", formulas.layer(spec)
            dropped = _dropped(spec, "feedforward").strip()
            if stem == "pooled":
                title, formula, dropped = "The greatest of each channel", "x′ = max_t x_t", ""
            elif isinstance(spec, BagSpec) and stem == "states_0":
                title, formula, dropped = "The mean of the embeddings", "x = mean_t E[id_t]", ""
            stages.append(Stage(stem, title, formula, dropped, [Picture("x", axes, x_TD, of)]))
    return stages

"""The walk: every stage from the text to the next token, with its formula and numbers."""

import dataclasses
from typing import Any

import numpy as np

from tfm.explain import formulas
from tfm.explain.forward import Arrays, Forward, Site
from tfm.models.spec import BagSpec, SeqToSeqSpec, TransformerSpec


@dataclasses.dataclass
class Picture:
    """A matrix of the walk. `axes` are those of `data` in our suffixes; leading N and H are the
    layer and the head that the reader chooses."""

    label: str
    axes: str
    data: np.ndarray
    rows: str = ""  # the sequence that its rows are; "": none


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


def walks(spec: Any, captured: Forward, embedded: dict[str, np.ndarray]) -> list[Walk]:
    """Returns a walk for each side. `embedded` are embeddings that a model does not capture."""
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
            stages += _end(spec, rows, captured.logits)
        out.append(Walk(side, side.capitalize(), stages))
    return out


def _end(spec: Any, rows: str, logits: np.ndarray) -> list[Stage]:
    of = rows if len(logits) > 1 or not hasattr(spec, "classes") else ""
    title, formula = "What comes next", "logits = x W_head"
    if getattr(spec, "tied", False):
        formula += ",  W_head = Eᵀ, the embedding"
    if getattr(spec, "classes", None):
        title = "Which class?"
    outputs = getattr(spec, "outputs", ())
    if "masked_lm" in outputs:
        title = "Which token stands here?"
        formula = "logits = norm(f(x W + b)) Eᵀ + c,  E: the embedding,  f: an activation"
    elif outputs and "tag" not in outputs:
        pooled = "tanh(x_0 W_p + b_p)" if spec.pooler else "x_0"
        formula = f"logits = {pooled} W + b,  x_0: the state of the first token"
    if isinstance(spec, SeqToSeqSpec):
        formula = "logits = V tanh(W [c_t; h_t]) + b,  c_t: what the attention found"
    pictures = []
    if logits.size <= 1 << 16:
        whole = len(logits) == 1 and not of
        pictures = [Picture("logits", "V" if whole else "TV", logits[0] if whole else logits, of)]
    return [
        Stage("logits", "Logits", formula,
              "One number for each entry of the vocabulary, or for each class.", pictures),
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
    pictures = [Picture("token", "TD", arrays["token_TD"], rows)]
    formula = "x = (E[id] + S[type])" if getattr(spec, "types", 0) else "x = E[id]"
    if "table_TD" in arrays:
        pictures.append(Picture("position", "TD", arrays["table_TD"], rows))
        sign = {"add": "+", "multiply": "⊙", "concatenate": "beside"}[spec.position.join]
        formula += f" {sign} P[t]"
        pictures.append(Picture("x", "TD", arrays["embedding_TD"], rows))
    stages = [
        Stage("embedding", "Embedding and position", formula, formulas.position(scheme), pictures)
    ]
    norm, mixer = f"norm(x) = {formulas.norm(spec.norm)}", spec.mixer.names[0]
    for prefix, branch, site, title in (
        ("", mixer, sites.get(side), "Norm"),
        ("cross_", "cross", sites.get("cross"), "Norm before cross-attention"),
    ):
        if f"{branch}_in_NTD" not in arrays or (prefix and site is None):
            continue
        if spec.norm.placement != "post":
            inputs = _one(arrays, f"{branch}_in", rows)
            stages.append(Stage(f"{prefix}norm", title, norm, "", inputs))
        stages += _attention(prefix, site) if site else []
        outputs = _one(arrays, f"{branch}_out", rows, "y")
        if site is None or site.spec is None:
            stages.append(Stage("mixer", f"Mixer: {mixer.replace('_', ' ')}", "y = mixer(x)",
                                formulas.mixer(spec.mixer), _gates(arrays, rows) + outputs,
                                ))  # fmt: skip
        else:
            formula = "y = concat(z₁ … z_H)" + " W_o" * ("out" in site.spec.projections)
            heads = "Cross-attention: Heads joined" if prefix else "Heads joined"
            stages.append(Stage(f"{prefix}joined", heads, formula, "", outputs))
        stages += _residual(spec, arrays, branch, rows)
    if "feedforward_in_NTD" in arrays:
        pictures = _one(arrays, "feedforward_in", rows, "x")
        if "hidden_NTF" in arrays:
            pictures.append(Picture("hidden", "NTF", arrays["hidden_NTF"], rows))
        pictures += _one(arrays, "feedforward_out", rows, "y")
        stages.append(
            Stage("feedforward", "Feed-forward", formulas.feedforward(spec.feedforward),
                  "Each token by itself. x is what the norm before it leaves.", pictures)
        )  # fmt: skip
        stages += _residual(spec, arrays, "feedforward", rows)
    stages += _residual(spec, arrays, "all", rows)
    if spec.norm.has_final:
        pictures = [Picture("x", "TD", arrays["final_TD"], rows)]
        stages.append(Stage("final", "Norm after the last layer", norm, "", pictures))
    return stages


def _one(arrays: Arrays, name: str, rows: str, label: str = "norm(x)") -> list[Picture]:
    key = f"{name}_NTD"
    return [Picture(label, "NTD", arrays[key], rows)] if key in arrays else []


def _residual(spec: Any, arrays: Arrays, branch: str, rows: str) -> list[Stage]:
    if f"{branch}_sum_NTD" not in arrays:
        return []
    placement = str(spec.norm.placement)
    after = " and norm" if placement == "post" else ""
    return [Stage(f"{branch}_sum", f"Residual{after}", formulas.residual(placement, spec.residual),
                  "What the part found is added to what was there.",
                  _one(arrays, f"{branch}_sum", rows, "x′"))]  # fmt: skip


def _attention(prefix: str, site: Site) -> list[Stage]:
    """Returns the stages from queries, keys and values to the output of each head."""
    a, spec = site.arrays, site.spec
    of = "Cross-attention: " if prefix else ""
    stages = []
    if "q_NTHK" in a:
        pictures = [
            Picture("q", "NHTK", a["q_NTHK"].swapaxes(1, 2), site.rows),
            Picture("k", "NHSK", _by_head(a["k_NSGK"], site.heads), site.cols),
            Picture("v", "NHSE", _by_head(a["v_NSGE"], site.heads), site.cols),
        ]
        text = "q asks, k answers, v is what is handed over; here after rotation, if there is any."
        if spec is None:
            text = "φ(q) and φ(k), φ(x) = elu(x) + 1, and v."
        elif spec.groups < spec.heads:
            text += f" {spec.heads} query heads share {spec.groups} heads of keys and values."
        formula = "q = x W_q,  k = x W_k,  v = x W_v"
        if prefix:
            formula = "q = x W_q,  k = y W_k,  v = y W_v,  y: what the encoder gives"
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
    add_map("weights", "Weights", formula, "What each row looks at.")
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
        stages.append(Stage("embedding", "Embedding", "x = E[id]", "", pictures))
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
        stages.append(Stage("states", "States", formula, "", pictures))
    for site in sites.values():
        stages += _attention("cross_", site)
    for name, x in arrays.items():
        stem, _, axes = name.rpartition("_")
        if stem == "pooled" or stem.removeprefix("states_").isdecimal():
            x_TD = x if axes == "TD" else x[None]
            of = rows if axes == "TD" and embedded is not None and len(x) == len(embedded) else ""
            title = "The greatest of each channel" if stem == "pooled" else f"Layer {stem[7:]}"
            if isinstance(spec, BagSpec) and stem == "states_0":
                title = "The mean of the embeddings"
            stages.append(Stage(stem, title, "", "", [Picture("x", axes, x_TD, of)]))
    return stages

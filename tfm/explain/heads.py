"""Statistics of attention heads: where their weights lie, a tag, and the loss without them."""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from tfm.explain.forward import Site, site_params
from tfm.explain.passage import Passage
from tfm.layers.stack import SCANNED, UNROLLED
from tfm.run.load import LoadedRun

REPEATS = 3  # rows with an earlier place of the same token, that a mass is the mean of
FIRST_ROW = 2  # before it, the first token, the previous one and itself are hardly apart
TAGGED, SPREAD = 0.4, 0.85
TAGS = {  # the mass that decides, and what is said of the head
    "diagonal": ("itself", "a token looks at itself"),
    "previous-token": ("previous", "a token looks at the one before it"),
    "next-token": ("next", "a token looks at the one after it"),
    "first-token": ("first", "a token looks at the first one, which often means: at nothing"),
    "induction": ("induction", "a token looks at what came after the same token before"),
    "same-token": ("same", "a token looks at earlier places of the same token"),
    "monotone": ("monotone", "the key moves along with the query"),
    "last-token": ("last", "all look at the last token"),
}
RULE = (
    "Weights of a row are divided by their sum. Each mass is the mean, over rows t ≥ 2, of the "
    "weight on one kind of key: itself s = t, previous s = t − 1, next s = t + 1, first s = 0, "
    "induction: keys s < t whose token before is the token at t, same: keys s < t with the token "
    f"at t (both over rows where there are such keys, at least {REPEATS}). Entropy is the mean of "
    "−Σ w log₂ w, and its share is that of log₂ of the number of visible keys. The tag is "
    f"“spread” if the entropy's share is at least {SPREAD}; else the kind with the greatest mass, "
    f"if that is at least {TAGGED}; else “mixed”. In cross-attention the kinds are first, last and "
    "monotone: keys within one place of t (S − 1) / (T − 1)."
)


def statistics(site: Site, ids: dict[str, list[int]]) -> list[list[dict[str, Any]]]:
    """Returns the statistics of each layer and head."""
    weights_NHTS = np.abs(site.arrays["weights_NHTS"])
    total = weights_NHTS.sum(-1, keepdims=True)
    share_NHTS = weights_NHTS / np.where(total > 0, total, 1)
    visible_NHTS = site.arrays.get("visible_NHTS", np.ones(share_NHTS.shape, bool))
    if site.rows == site.cols:
        kinds = _kinds(np.array(ids[site.rows]))
    else:
        kinds = _crossing(*share_NHTS.shape[2:])
    return [
        [_of_head(*head, kinds) for head in zip(*layer, strict=True)]
        for layer in zip(share_NHTS, visible_NHTS, strict=True)
    ]


def _kinds(ids_T: np.ndarray) -> dict[str, np.ndarray]:
    """Returns which pairs of positions are of each kind (TS)."""
    t, s = np.indices((len(ids_T), len(ids_T)))
    same_TS = ids_T[:, None] == ids_T[None]
    after_TS = np.pad(same_TS[:, :-1], ((0, 0), (1, 0)))  # the token before the key is the same
    return {
        "itself": s == t,
        "previous": s == t - 1,
        "next": s == t + 1,
        "first": s == 0,
        "induction": after_TS & (s < t) & (s > 0),
        "same": same_TS & (s < t),
    }


def _crossing(rows: int, cols: int) -> dict[str, np.ndarray]:
    t, s = np.indices((rows, cols))
    along = t * (cols - 1) / max(rows - 1, 1)
    return {"first": s == 0, "last": s == cols - 1, "monotone": np.abs(s - along) <= 1}


def _of_head(
    share_TS: np.ndarray, visible_TS: np.ndarray, kinds: dict[str, np.ndarray]
) -> dict[str, Any]:
    rows = len(share_TS)
    counted = (np.arange(rows) >= min(FIRST_ROW, rows - 1)) & (share_TS.sum(1) > 0)
    bits_T = -np.sum(share_TS * np.log2(np.where(share_TS > 0, share_TS, 1)), 1)
    most_T = np.log2(np.maximum(visible_TS.sum(1), 2))
    measures: dict[str, Any] = {
        "entropy": _mean(bits_T, counted),
        "entropy_share": _mean(bits_T / most_T, counted),
    }
    for kind, pairs_TS in kinds.items():
        has = counted
        if kind in ("induction", "same", "next"):  # not every row has such a key
            has = counted & np.any(pairs_TS & visible_TS, 1)
        few = kind in ("induction", "same") and has.sum() < REPEATS
        measures[kind] = None if few else _mean(np.sum(share_TS * pairs_TS, 1), has)
    measures["tag"] = tag(measures)
    return measures


def _mean(x_T: np.ndarray, where_T: np.ndarray) -> float | None:
    return float(np.mean(x_T[where_T])) if np.any(where_T) else None


def tag(measures: dict[str, Any]) -> str:
    if (measures["entropy_share"] or 0.0) >= SPREAD:
        return "spread"
    masses = {name: measures.get(kind) for name, (kind, _) in TAGS.items()}
    best = max(masses, key=lambda name: masses[name] or 0.0)
    return best if (masses[best] or 0.0) >= TAGGED else "mixed"


def value_norms(site: Site, params: Any) -> np.ndarray | None:
    """Computes ‖v_s W_o‖ (NHS): what a weight of 1 adds.  Kobayashi et al. 2020, eq. 5."""
    v_NSGE = site.arrays.get("v_NSGE")
    if v_NSGE is None:
        return None
    norms = []
    for layer, v_SGE in zip(site.layers, v_NSGE, strict=True):
        moved = np.repeat(v_SGE, site.heads // v_SGE.shape[1], 1)
        weights = site_params(params, site, layer)
        if "out" in weights:
            moved = np.einsum("SHE,HED->SHD", moved, np.asarray(weights["out"]["kernel"]))
        norms.append(np.linalg.norm(moved, axis=-1).T)
    return np.stack(norms)


def silenced(loaded: LoadedRun, passage: Passage, sites: list[Site]) -> dict[str, np.ndarray]:
    """Computes by how much the loss grows without each head (NH), for each site whose heads can be
    silenced.

    Zeroes a head's rows of the output projection or, without a projection, its values.
    """
    ones = {
        site.name: np.ones((_count(loaded.params, site), site.heads), np.float32)
        for site in sites
        if _rows(loaded.params, site)
    }

    @jax.jit
    def loss(variables: Any, inputs: Any, labels_T: Any, keep: dict[str, Any]) -> Any:
        params = variables["params"]
        for site in sites:
            if site.name in keep:
                params = _without(params, site, keep[site.name])
        out = loaded.model.apply({**variables, "params": params}, **inputs)
        return _loss(out[loaded.objective.output] if isinstance(out, dict) else out, labels_T)

    def measured(keep: dict[str, np.ndarray]) -> float:
        return float(loss(loaded.variables, passage.inputs, passage.labels, keep))

    whole, growth = measured(ones), {}
    for site in sites:
        if site.name in ones:
            growth[site.name] = np.zeros((len(site.layers), site.heads))
            for n, h in np.ndindex(growth[site.name].shape):
                keep_NH = ones[site.name].copy()
                keep_NH[site.layers[n], h] = 0
                growth[site.name][n, h] = measured({**ones, site.name: keep_NH}) - whole
    return growth


def loss_of(logits: np.ndarray, labels_T: np.ndarray) -> float:
    """Computes the mean −log p of the labels, where there are any."""
    return float(_loss(jnp.asarray(logits), labels_T))


def _loss(out: Any, labels_T: Any) -> Any:
    logits = out[0] if out.ndim == 3 else out
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    picked_T = jnp.take_along_axis(log_p, jnp.maximum(labels_T, 0)[:, None], 1)[:, 0]
    return -jnp.sum(picked_T * (labels_T >= 0)) / jnp.maximum(jnp.sum(labels_T >= 0), 1)


def _rows(params: Any, site: Site) -> list[tuple[str, str, int]]:
    """Returns the arrays with rows for each head: part, name and axis of heads."""
    if not site.builtin:
        return []
    weights = site_params(params, site, site.layers[0])
    if "out" in weights:
        return [("out", "kernel", 0)]
    value = weights.get("value")
    if value is None or value["kernel"].shape[1] != site.heads:
        return []
    return [("value", "kernel", 1)] + ([("value", "bias", 0)] if "bias" in value else [])


def how_silenced(params: Any, site: Site) -> str:
    names = {part for part, _, _ in _rows(params, site)}
    if "out" in names:
        return "the head's rows of W_o are zero"
    return "the head's values are zero" if names else "it was not measured"


def _count(params: Any, site: Site) -> int:
    """Counts the layers, shown or not."""
    if not site.stack:
        return 1
    stack = params[site.stack]
    if SCANNED in stack:
        return int(jax.tree.leaves(stack[SCANNED])[0].shape[0])
    return sum(UNROLLED.fullmatch(name) is not None for name in stack)


def _without(params: Any, site: Site, keep_NH: Any) -> Any:
    """Returns the parameters with each head's rows scaled by `keep_NH`."""
    params = jax.tree.map(lambda leaf: leaf, params)  # new dicts
    stack = params[site.stack] if site.stack else {"layer_0": params}
    scanned = SCANNED in stack
    names = [SCANNED] if scanned else [f"layer_{n}" for n in range(len(keep_NH))]
    for part, name, axis in _rows(params, site):
        for n, layer in enumerate(names):
            weights, keep = stack[layer][site.branch][part], keep_NH if scanned else keep_NH[n]
            after = weights[name].ndim - axis - 1 - scanned
            shape = keep.shape[:-1] + (1,) * axis + keep.shape[-1:] + (1,) * after
            weights[name] = weights[name] * keep.reshape(shape).astype(weights[name].dtype)
    return params

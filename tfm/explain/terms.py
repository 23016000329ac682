"""How positions enter: the four terms of the first layer's score, and biases by distance.

With x = c + p, a score that is linear in q and in k is the sum of four: content with content,
content with position, position with content, position with position.
"""

from typing import Any, NamedTuple

import numpy as np

from tfm.explain.forward import Arrays, Site, layer_params, site_params
from tfm.layers.attention import AttentionSpec

LINEAR = ("dot", "scaled_dot", "bilinear")  # in the query and in the key
TERMS = ("content_content", "content_position", "position_content", "position_position")
REACH = 32  # distances of a bias that are shown, on each side


class Term(NamedTuple):
    """A part of the score, left · right: the query's side THK and the key's side SHK."""

    left: np.ndarray
    right: np.ndarray

    @property
    def pairs_HTS(self) -> np.ndarray:
        return np.einsum("THK,SHK->HTS", self.left, self.right)


def terms(spec: Any, params: Any, side: Arrays, site: Site) -> dict[str, Term]:
    """Returns the four terms of the first layer's score, or {} if it is not their sum.

    A norm is linear at the scale that it has for each token, which is used here.
    """
    attention, norm = site.spec, spec.norm
    added = "table_TD" in side and spec.position.join == "add" and not norm.embedding
    if not added or site.layers[0] != 0 or site.rows != site.cols:
        return {}  # the attention does not read the sum of embeddings and positions
    if attention is None or attention.score not in LINEAR or attention.qk_norm:
        return {}
    p_TD = side["table_TD"]
    if norm.placement == "post" or norm.kind == "none":
        p_TD = p_TD.astype(np.float64)
    elif norm.kind not in ("layer", "rms"):
        return {}  # not linear, at any scale
    else:
        name = "norm" if spec.parallel else f"{site.branch}_norm"
        scale = layer_params(params, site.stack, 0)[name].get("scale", 1.0)
        if norm.kind == "layer":
            p_TD = p_TD - p_TD.mean(-1, keepdims=True)
        p_TD = p_TD / _deviation(side["embedding_TD"], norm.kind, norm.eps) * np.asarray(scale)
    weights = site_params(params, site, 0)
    q_THK, k_SGK = site.arrays["q_NTHK"][0], site.arrays["k_NSGK"][0]
    q_p = _projected(weights, "query", p_TD, q_THK)
    k_p = _projected(weights, "query" if attention.share_qk else "key", p_TD, k_SGK)
    products = [
        Term(_left(attention, weights, q), np.repeat(k, attention.heads // attention.groups, 1))
        for q in (q_THK - q_p, q_p)
        for k in (k_SGK - k_p, k_p)
    ]
    return dict(zip(TERMS, products, strict=True))


def _left(attention: AttentionSpec, weights: Any, q_THK: np.ndarray) -> np.ndarray:
    """Returns what the score multiplies keys with."""
    if attention.score == "bilinear":
        return np.einsum("THK,HKJ->THJ", q_THK, np.asarray(weights["score_w_HKJ"]))
    return q_THK * q_THK.shape[-1] ** (-0.5 if attention.score == "scaled_dot" else 0)


def _deviation(x_TD: np.ndarray, kind: str, eps: float) -> np.ndarray:
    spread = np.var(x_TD, -1) if kind == "layer" else np.mean(x_TD**2, -1)
    return np.sqrt(spread + eps)[:, None]


def _projected(weights: Any, name: str, p_TD: np.ndarray, like: np.ndarray) -> np.ndarray:
    if name not in weights:
        return p_TD.reshape(like.shape)
    return np.einsum("TD,DHK->THK", p_TD, np.asarray(weights[name]["kernel"]))


def bias_by_distance(site: Site) -> tuple[np.ndarray, list[int]] | None:
    """Returns a relative bias as a row for each head (NHR), and the distance s − t of each column.

    Reads the bias itself, so it is right for any scheme that depends on the distance alone.
    """
    bias_NHTS = site.arrays.get("bias_NHTS")
    if bias_NHTS is None:
        return None
    rows, cols = bias_NHTS.shape[2:]
    reach = list(range(-min(REACH, rows - 1), min(REACH, cols - 1) + 1))
    each = [np.diagonal(bias_NHTS, d, 2, 3) for d in reach]
    if any(np.ptp(x, axis=-1).max() > 1e-6 for x in each):
        return None  # it depends on more than the distance
    return np.stack([x[..., 0] for x in each], -1), reach

"""Linear attention: φ(q)·φ(k) instead of exp(q·k), so that sums over keys form a state."""

import jax
from flax import linen as nn
from jax import Array, lax
from jax import numpy as jnp

from tfm.config.names import UserError
from tfm.layers.context import Auxiliary, Cache, Context, Mixer, check_size
from tfm.layers.dims import Dims

CHUNK = 64  # tokens between two updates of the state
TINY = 1e-6


class LinearAttention(nn.Module):
    """Σ φ(q)·φ(k) v / Σ φ(q)·φ(k), φ(x) = elu(x) + 1.  Katharopoulos et al. 2020, eq. 7–12."""

    dims: Dims
    heads: int

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        dims, heads, width = self.dims, self.heads, self._head_width()

        def project(name: str) -> Array:
            dense = dims.dense((heads, width), use_bias=False, name=name)
            return dense(x_BTD).astype(jnp.float32)

        q_BTHK, k_BTHK = (jax.nn.elu(project(name)) + 1 for name in ("query", "key"))
        v_BTHE = project("value")
        if context.valid_BT is not None:
            k_BTHK = jnp.where(context.valid_BT[..., None, None], k_BTHK, 0)
        state = self.init_cache(x_BTD.shape[0], 0) if cache is None else cache
        if dims.causal:
            out_BTHE, state = _causal(q_BTHK, k_BTHK, v_BTHE, state)
        else:
            state = _added(state, k_BTHK, v_BTHE)
            out_BTHE = _read(q_BTHK, state)
        out = dims.dense(
            dims.width, axes=2, use_bias=False, kernel_init=dims.residual_init, name="out"
        )
        y_BTD = out(out_BTHE.astype(x_BTD.dtype))
        intermediates = {}
        if "details" in context.capture and cache is None:
            intermediates = {
                "q_BTHK": q_BTHK,
                "k_BSGK": k_BTHK,
                "v_BSGE": v_BTHE,
                "heads_BTHE": out_BTHE,
                "weights_BHTS": _weights(q_BTHK, k_BTHK, dims.causal),
            }
        return y_BTD, None if cache is None else state, Auxiliary(intermediates=intermediates)

    def _head_width(self) -> int:
        if self.dims.width % self.heads:
            raise UserError(
                f"mixer 'linear_attention': heads={self.heads} must divide width={self.dims.width}"
            )
        return self.dims.width // self.heads

    def init_cache(self, batch: int, length: int) -> Cache:
        """Returns Σ φ(k) vᵀ and Σ φ(k), whose size does not depend on the length."""
        width = self._head_width()
        return {
            "kv_BHKE": jnp.zeros((batch, self.heads, width, width)),
            "k_BHK": jnp.zeros((batch, self.heads, width)),
        }


def _weights(q_BTHK: Array, k_BSHK: Array, causal: bool) -> Array:
    """Computes the weights φ(q)·φ(k) / Σ φ(q)·φ(k), for display only."""
    pairs_BHTS = jnp.einsum("BTHK,BSHK->BHTS", q_BTHK, k_BSHK)
    pairs_BHTS = jnp.tril(pairs_BHTS) if causal else pairs_BHTS
    return pairs_BHTS / (jnp.sum(pairs_BHTS, -1, keepdims=True) + TINY)


def _added(state: Cache, k_BTHK: Array, v_BTHE: Array) -> Cache:
    return {
        "kv_BHKE": state["kv_BHKE"] + jnp.einsum("BTHK,BTHE->BHKE", k_BTHK, v_BTHE),
        "k_BHK": state["k_BHK"] + jnp.sum(k_BTHK, 1),
    }


def _read(q_BTHK: Array, state: Cache) -> Array:
    total_BTH = jnp.einsum("BTHK,BHK->BTH", q_BTHK, state["k_BHK"])
    out_BTHE = jnp.einsum("BTHK,BHKE->BTHE", q_BTHK, state["kv_BHKE"])
    return out_BTHE / (total_BTH + TINY)[..., None]


def _causal(q_BTHK: Array, k_BTHK: Array, v_BTHE: Array, state: Cache) -> tuple[Array, Cache]:
    """Attends within a chunk by masked products, and to earlier chunks through the state."""
    batch, length, heads, _ = q_BTHK.shape
    size = min(CHUNK, length)

    def cut(x_BTHK: Array) -> Array:
        x = jnp.pad(x_BTHK, [(0, 0), (0, -length % size), (0, 0), (0, 0)])
        return x.reshape(batch, -1, size, heads, x.shape[-1]).swapaxes(0, 1)

    def step(state: Cache, chunk: tuple[Array, Array, Array]) -> tuple[Cache, Array]:
        q, k, v = chunk
        pairs_BHTS = jnp.tril(jnp.einsum("BTHK,BSHK->BHTS", q, k))
        total_BTH = jnp.einsum("BHTS->BTH", pairs_BHTS)
        total_BTH += jnp.einsum("BTHK,BHK->BTH", q, state["k_BHK"])
        out_BTHE = jnp.einsum("BHTS,BSHE->BTHE", pairs_BHTS, v)
        out_BTHE += jnp.einsum("BTHK,BHKE->BTHE", q, state["kv_BHKE"])
        return _added(state, k, v), out_BTHE / (total_BTH + TINY)[..., None]

    state, out = lax.scan(step, state, (cut(q_BTHK), cut(k_BTHK), cut(v_BTHE)))
    out_BTHE = out.swapaxes(0, 1).reshape(batch, -1, heads, out.shape[-1])
    return out_BTHE[:, :length], state


def linear_attention(heads: int | None = None) -> Mixer:
    """Attends through a state of sums over keys.  Katharopoulos et al. 2020.

    `heads` defaults to that of `model.attention`, or to 1.
    """
    check_size("linear_attention: heads", heads)

    def make(spec, dims, position, **options):
        default = 1 if spec.attention is None else spec.attention.heads
        return LinearAttention(dims, heads or default, **options)

    return Mixer(make)

"""Fused kernels of each platform, for the combinations that they support.

cuDNN on GPU and XLA on CPU are called through `jax.nn.dot_product_attention`; the TPU kernel is
Pallas splash attention.
"""

import functools
import operator

import jax
from jax import Array
from jax import numpy as jnp

from tfm.ops import scores
from tfm.ops.mask import And, Everything, Mask
from tfm.ops.masks import Band, Padding, Segments
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.reference import Inputs

LANES = 128  # width of a TPU tile: lengths and head widths are padded to a multiple of it
SCALES = {scores.dot: lambda width: 1.0, scores.scaled_dot: lambda width: width**-0.5}


def why_not(platform: str, inputs: Inputs, norm: Normalizer) -> str | None:
    """Returns the part of this combination that the kernel of `platform` lacks, or None."""
    q_BTHK, k_BSGK, v_BSGE, logits, plane = inputs
    width, dtype = q_BTHK.shape[-1], q_BTHK.dtype
    if plane.offset_B is not None:
        return "a cache"
    if v_BSGE.shape[-1] != width:
        return f"values of width {v_BSGE.shape[-1]} with keys of width {width}"
    if logits.score.func not in SCALES:
        return "scores other than dot and scaled_dot"
    if norm is not NORMALIZERS["softmax"]:
        return "normalizers other than softmax"
    if plane.dropped is not None:
        return "dropout"
    band, others = _conjunction(plane.mask)
    if platform == "tpu":
        if jax.device_count() > 1:
            return "a computation on several devices"  # XLA does not partition Pallas kernels
        x64 = jnp.result_type(float) == jnp.float64
        if dtype not in (jnp.bfloat16, jnp.float32) or x64:
            return f"{dtype} with x64 {'on' if x64 else 'off'}"
        if logits.bias is not None:
            return "a bias"
        if isinstance(logits.cap, jax.core.Tracer):
            return "a cap that is traced"
        if not all(isinstance(m, Padding | Segments) for m in others):
            return "masks other than causal, window, padding and segments joined with &"
        if sum(isinstance(m, Segments) for m in others) > 1:
            return "two segment masks"
        return None
    if logits.cap is not None:
        return "a cap"
    if platform == "cuda":
        if logits.bias is not None:
            return "a bias"
        capabilities = [str(getattr(d, "compute_capability", "")) for d in jax.devices()]
        if any(c[:1].isdigit() and float(c) < 8 for c in capabilities):
            return "attention on GPUs before compute capability 8.0"
        if dtype not in (jnp.bfloat16, jnp.float16):
            return f"{dtype} (only bfloat16 and float16)"
        if width % 8 or width > 128:
            return f"head width {width} (only multiples of 8 up to 128)"
        if _as_array(band, others) is not None and (q_BTHK.shape[1] % 2 or k_BSGK.shape[1] % 2):
            return "this mask at odd lengths"
    return None


def fused(platform: str, cap: float | None, inputs: Inputs) -> Array:
    """Computes attention by the kernel of "cpu", "cuda" or "tpu", which must support it."""
    q_BTHK, k_BSGK, v_BSGK, logits, plane = inputs
    _, rows, heads, width = q_BTHK.shape
    cols = k_BSGK.shape[1]
    scale = SCALES[logits.score.func](width)
    band, others = _conjunction(plane.mask)
    at = plane.at(jnp.arange(rows), jnp.arange(cols))
    if platform == "tpu":
        out = _splash(q_BTHK * scale, k_BSGK, v_BSGK, band, others, cap)
    else:
        mask = None
        if (array := _as_array(band, others)) is not None:
            mask = array.visible(at)
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], rows, cols))
        out = jax.nn.dot_product_attention(
            q_BTHK,
            k_BSGK,
            v_BSGK,
            bias=None if logits.bias is None else logits.bias(at.q_pos_BT, at.k_pos_BS, heads),
            mask=mask,
            scale=scale,
            is_causal=band.right == 0,
            local_window_size=None if band.right != 0 or band.left is None else (band.left, 0),
            implementation="cudnn" if platform == "cuda" else "xla",
        )
    if not others and (band.left is None or rows <= cols):
        return out  # every row sees itself
    seen_BHT = jnp.any(plane.mask.visible(at), axis=-1)
    return jnp.where(seen_BHT.swapaxes(1, 2)[..., None], out, 0)


def _conjunction(mask: Mask) -> tuple[Band, list[Mask]]:
    """Splits a mask into one band and the other masks that `&` joins to it."""
    match mask:
        case And(a=a, b=b):
            (band_a, others_a), (band_b, others_b) = _conjunction(a), _conjunction(b)
            left = [b.left for b in (band_a, band_b) if b.left is not None]
            right = [b.right for b in (band_a, band_b) if b.right is not None]
            return Band(min(left, default=None), min(right, default=None)), others_a + others_b
        case Band():
            return mask, []
        case Everything():
            return Band(None, None), []
    return Band(None, None), [mask]


def _as_array(band: Band, others: list[Mask]) -> Mask | None:
    """Returns the part of a mask that the flags of `jax.nn.dot_product_attention` cannot express.

    cuDNN's window looks back only, and only together with a causal mask.
    """
    flags_suffice = band.right == 0 or band == Band(None, None)
    parts = others if flags_suffice else [band, *others]
    return functools.reduce(operator.and_, parts) if parts else None


def _splash(
    q_BTHK: Array, k_BSGK: Array, v_BSGK: Array, band: Band, others: list[Mask], cap: float | None
) -> Array:
    # Imported here, because importing the TPU kernels takes time on every platform.
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernels,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    batch, rows, heads, width = q_BTHK.shape
    cols = k_BSGK.shape[1]
    q_length = rows + -rows % LANES
    k_length = max(cols + -cols % LANES, q_length)  # so that no row's tiles are all skipped

    # Padding is a segment without queries.
    q_segment_BT = jnp.zeros((batch, rows), jnp.int32)
    k_segment_BS = jnp.zeros((batch, cols), jnp.int32)
    for mask in others:
        if isinstance(mask, Segments):
            q_segment_BT = jnp.broadcast_to(mask.q_segment_BT, q_segment_BT.shape)
            k_segment_BS = jnp.broadcast_to(mask.k_segment_BS, k_segment_BS.shape)
    nowhere = jnp.min(q_segment_BT) - 1
    for mask in others:
        if isinstance(mask, Padding):
            k_segment_BS = jnp.where(mask.valid_BS, k_segment_BS, nowhere)
    q_segment_BT = jnp.pad(q_segment_BT, [(0, 0), (0, q_length - rows)], mode="edge")
    k_segment_BS = jnp.concatenate(
        [k_segment_BS, jnp.full((batch, k_length - cols), nowhere)], axis=1
    )

    plane = q_length, k_length
    unlimited = band == Band(None, None)
    head_mask = (
        masks.FullMask(plane) if unlimited else masks.LocalMask(plane, (band.left, band.right), 0)
    )
    q_block, k_block = (
        next(b for b in (512, 256, 128) if n % b == 0) for n in (q_length, k_length)
    )
    over_k = ("kv", "kv_compute", "kv_dkv", "kv_dkv_compute", "kv_dq")
    blocks = {f"block_{name}": q_block for name in ("q", "q_dkv", "q_dq")}
    blocks |= {f"block_{name}": k_block for name in over_k}
    kernel = kernels.make_splash_mha_single_device(
        masks.MultiHeadMask([head_mask] * heads),
        block_sizes=kernels.BlockSizes(**blocks),
        attn_logits_soft_cap=cap,
    )

    def heads_first(x_BTHK: Array, length: int) -> Array:
        _, rows, _, width = x_BTHK.shape
        x = jnp.pad(x_BTHK, [(0, 0), (0, length - rows), (0, 0), (0, -width % LANES)])
        return x.swapaxes(1, 2)

    out = jax.vmap(lambda q, k, v, q_ids, k_ids: kernel(q, k, v, kernels.SegmentIds(q_ids, k_ids)))(
        heads_first(q_BTHK, q_length),
        heads_first(k_BSGK, k_length),
        heads_first(v_BSGK, k_length),
        q_segment_BT,
        k_segment_BS,
    )
    return out.swapaxes(1, 2)[:, :rows, :, :width]

"""Multi-head attention: projections around `tfm.ops.attend`."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.tree_util import Partial

from tfm.config.names import UserError
from tfm.config.spec import Named, Spec, SpecError, call, choice, field, size
from tfm.layers.cache import Seen, empty, extended
from tfm.layers.context import Auxiliary, Cache, Context, Intermediates, Mixer
from tfm.layers.dims import Affine, Dims, create_params, positions, scaled
from tfm.layers.norm import TokenNorm
from tfm.ops.attend import IMPLEMENTATIONS, attend
from tfm.ops.fast import add_last, flat_product
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import Position
from tfm.ops.scores import SCORES
from tfm.ops.shapes import check

PROJECTIONS = {name: name for name in ("query", "key", "value", "out")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec(Spec):
    """An attention layer. With the score "none" there is no attention."""

    heads: int = size()
    head_width: int | None = size(None)  # of queries and keys; None: the model's width / heads
    value_width: int | None = size(None)  # None: head_width
    kv_heads: int | None = size(None)  # fewer than heads: grouped queries (Ainslie et al. 2023)
    score: Named = choice(lambda: SCORES, "scaled_dot", none=True)
    normalizer: Named = call(lambda: NORMALIZERS, "softmax")
    cap: float | None = field(None, above=0)  # bound of the logits
    projections: tuple[Named, ...] = choice(lambda: PROJECTIONS, tuple(PROJECTIONS))
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMS-normalizes each query and key (Dehghani et al. 2023)
    share_qk: bool = False  # one projection for both (Kitaev et al. 2020)
    implementation: Named = choice(lambda: IMPLEMENTATIONS, "auto")

    def check(self) -> None:
        if self.heads % self.groups:
            raise SpecError("kv_heads", f"{{key}}={self.groups} must divide heads={self.heads}")
        if self.share_qk and (self.groups != self.heads or "query" not in self.projections):
            raise SpecError("share_qk", "{key} needs a projection of queries, and kv_heads=None")
        if self.value_width is not None and "value" not in self.projections:
            raise SpecError(
                "value_width", "{key}: values are not projected, so their width is fixed"
            )
        for bias, names in {"qkv_bias": ("query", "key", "value"), "out_bias": ("out",)}.items():
            if getattr(self, bias) and not set(names) & set(self.projections):
                raise SpecError(bias, f"{{key}}: {', '.join(names)} is not in projections")

    @property
    def attends(self) -> bool:
        return self.score != "none"

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads

    def key_width(self, width: int) -> int:
        """Returns the width of queries and keys in a model of this width."""
        return width // self.heads if self.head_width is None else self.head_width

    def check_width(self, width: int, key: str, of: str = "width") -> None:
        """Raises if a model of this width cannot have these heads."""
        if self.head_width is None and width % self.heads:
            divisors = [n for n in range(1, width + 1) if width % n == 0]
            near = min(divisors, key=lambda n: (abs(n - self.heads), n))
            raise SpecError(
                f"{key}.heads",
                f"{{key}}={self.heads} does not divide {of}={width}; did you mean heads={near}? "
                "Or give head_width",
            )

    def check_out(self, width: int, key: str) -> None:
        """Raises if the heads without `out` do not add up to the width of the residual path."""
        values = self.value_width or self.key_width(width)
        if "value" not in self.projections:
            values = width // self.groups
        if "out" not in self.projections and self.heads * values != width:
            raise SpecError(
                f"{key}.projections",
                f"{{key}}: without 'out', {self.heads} heads of {values} must be width={width}",
            )


class MultiHeadAttention(nn.Module):
    """W_o · concat(heads), each head with its own W_q, W_k, W_v.  Vaswani et al. 2017, §3.2.2.

    As a mixer it is self-attention. `keys_values` and `attend` are its two halves, for keys and
    values that are computed once and queries from elsewhere. It creates the parameters of the score
    and of the position scheme, with the shapes in their names, and passes them in float32.
    """

    spec: AttentionSpec
    dims: Dims
    position: Position = Position()
    share_position: bool = False  # its parameters come with each call

    def setup(self) -> None:
        spec, dims, width = self.spec, self.dims, self.key_width
        if self.position.table is not None:
            raise UserError("this position scheme joins the embeddings: use it in PositionTable")

        def project(name: str, heads: int, features: int) -> Affine | None:
            if name not in spec.projections:
                return None
            init = dims.kernel_init
            if name == "query" and dims.init.small_query:
                init = scaled(init, width**-0.5)
            return Affine((heads, features), spec.qkv_bias, init)

        self.query = project("query", spec.heads, width)
        self.key = None if spec.share_qk else project("key", spec.groups, width)
        self.value = project("value", spec.groups, spec.value_width or width)
        if spec.qk_norm:
            self.query_norm, self.key_norm = (
                TokenNorm(1e-6, dims.dtype, False, False) for _ in range(2)
            )
        if "out" in spec.projections:
            self.out = dims.dense(
                dims.width, axes=2, use_bias=spec.out_bias, kernel_init=dims.residual_init
            )
        create = functools.partial(create_params, self, sizes=self.sizes)
        self.score_params = create("score", spec.score.entry)
        self.position_params = {} if self.share_position else create("position", self.position)

    @property
    def key_width(self) -> int:
        return self.spec.key_width(self.dims.width)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that the parameters of a score or a position scheme may have."""
        sizes = {"H": self.spec.heads, "K": self.key_width}
        if self.dims.max_length is not None:
            sizes |= {"L": self.dims.max_length, "M": self.dims.max_length}
        return sizes

    def _position_params(self, shared: Mapping[str, Array] | None) -> Mapping[str, Array]:
        """Returns the parameters of this layer, or those that all layers share."""
        return self.position_params if shared is None or not self.share_position else shared

    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        check("x_BTD", x_BTD, {})
        shared = context.position_params
        q_BTHK, k_BSGK, v_BSGE = self._project(x_BTD, "query", "key", "value")
        k_BSGK = self._place("key", k_BSGK, context.pos_BT, shared)
        seen = Seen(k_BSGK, v_BSGE, context.pos_BT, context.mask, context.offset_B)
        if cache is not None:
            cache, seen = extended(cache, k_BSGK, v_BSGE, context)
        dropouts = context.dropouts
        out_BTD, intermediates = self._attend(
            q_BTHK,
            **seen._asdict(),
            position_params=shared,
            dropout=None if dropouts is None else dropouts.at("attention", "weights_BHTS"),
            q_pos_BT=context.pos_BT,
            capture=context.capture,
        )
        return out_BTD, cache, Auxiliary(intermediates=intermediates)

    def init_cache(self, batch: int, length: int) -> Cache:
        """Returns an empty cache for the keys and values of `length` tokens."""
        groups, dtype = self.spec.groups, self.dims.dtype
        value_width = self.spec.value_width or self.key_width
        if "value" not in self.spec.projections:
            value_width = self.dims.width // groups
        return empty(batch, length, groups, self.key_width, value_width, dtype)

    def keys_values(
        self,
        source_BSD: Array,
        k_pos_BS: Array | None = None,
        position_params: Mapping[str, Array] | None = None,
    ) -> tuple[Array, Array]:
        """Returns keys (BSGK) and values (BSGE) of a sequence."""
        check("source_BSD", source_BSD, {})
        k_BSGK, v_BSGE = self._project(source_BSD, "key", "value")
        return self._place("key", k_BSGK, k_pos_BS, position_params), v_BSGE

    def attend(
        self, x_BTD: Array, k_BSGK: Array, v_BSGE: Array, **options: Any
    ) -> tuple[Array, Intermediates]:
        """Returns the outputs (BTD) and the intermediates that `capture` requests: "weights", or
        with "details" every stage from queries, keys and values to the outputs of the heads. The
        other `options` are those of `ops.attend`."""
        (q_BTHK,) = self._project(x_BTD, "query")
        return self._attend(q_BTHK, k_BSGK, v_BSGE, **options)

    def _attend(
        self,
        q_BTHK: Array,
        k_BSGK: Array,
        v_BSGE: Array,
        *,
        position_params: Mapping[str, Array] | None = None,
        q_pos_BT: Array | None = None,
        capture: tuple[str, ...] = (),
        **options: Any,
    ) -> tuple[Array, Intermediates]:
        q_BTHK = self._place("query", q_BTHK, q_pos_BT, position_params)
        position, bias_params = self.position, self._position_params(position_params)
        details = "details" in capture
        return_weights = "weights" in capture and not details
        # Only the reference holds the whole matrix, which is captured.
        implementation = "reference" if details else self.spec.implementation
        outputs = attend(
            q_BTHK,
            k_BSGK,
            v_BSGE,
            score=Partial(self.spec.score.entry.fn, **self.score_params),
            bias=None if position.bias is None else Partial(position.bias, **bias_params),
            normalizer=self.spec.normalizer.entry,
            cap=self.spec.cap,
            q_pos_BT=q_pos_BT,
            implementation=implementation,
            return_weights=return_weights,
            return_stages=details,
            **options,
        )
        intermediates: Intermediates = {}
        if details:
            out_BTHE, steps = outputs
            intermediates = {"q_BTHK": q_BTHK, "k_BSGK": k_BSGK, "v_BSGE": v_BSGE, **steps}
            intermediates["heads_BTHE"] = out_BTHE
        elif return_weights:
            out_BTHE, intermediates["weights_BHTS"] = outputs
        else:
            out_BTHE = outputs
        if "out" in self.spec.projections:
            return self.out(out_BTHE), intermediates
        return out_BTHE.reshape(*out_BTHE.shape[:2], -1), intermediates

    def _place(
        self, name: str, x_BTHK: Array, pos_BT: Array | None, shared: Mapping[str, Array] | None
    ) -> Array:
        """Normalizes queries or keys and rotates them to their positions, if configured."""
        if self.spec.qk_norm:
            x_BTHK = (self.query_norm if name == "query" else self.key_norm)(x_BTHK)
        if self.position.rotate is None:
            return x_BTHK
        pos_BT = positions(x_BTHK, pos_BT)
        return self.position.rotate(x_BTHK, pos_BT, **self._position_params(shared))

    def _project(self, x_BTD: Array, *names: str) -> list[Array]:
        """Projects x to the heads of each name, in one product.

        Without a projection, the features of x are cut into heads.
        """
        key = self.query if self.spec.share_qk else self.key
        known = {"query": self.query, "key": key, "value": self.value}
        weights = {id(kernel): kernel for name in names if (kernel := known[name]) is not None}
        projected = dict(zip(weights, self._products(x_BTD, list(weights.values())), strict=True))
        return [
            self._cut(x_BTD, name) if known[name] is None else projected[id(known[name])]
            for name in names
        ]

    def _products(self, x_BTD: Array, projections: list[Any]) -> list[Array]:
        if not projections:
            return []
        kernels, biases = zip(*(weights(x_BTD.shape[-1]) for weights in projections), strict=True)
        dtype = self.dims.dtype
        kernel_DN = jnp.concatenate([x.reshape(len(x), -1) for x in kernels], 1)
        y_BTN = flat_product(x_BTD.astype(dtype), kernel_DN.astype(dtype))
        if self.spec.qkv_bias:
            bias_N = jnp.concatenate([x.ravel() for x in biases])
            y_BTN = add_last(y_BTN.astype(jnp.float32), bias_N)
        ends = np.cumsum([math.prod(x.shape[1:]) for x in kernels])[:-1]
        parts = jnp.split(y_BTN.astype(dtype), ends, -1)
        return [y.reshape(*y.shape[:2], *x.shape[1:]) for x, y in zip(kernels, parts, strict=True)]

    def _cut(self, x_BTD: Array, name: str) -> Array:
        heads = self.spec.heads if name == "query" else self.spec.groups
        width = None if name == "value" else self.key_width
        features = x_BTD.shape[-1]
        if features % heads or (width is not None and features != heads * width):
            raise UserError(
                f"attention.projections leaves out {name!r}, so its {features} features must be "
                f"{heads} heads of {width or 'equal width'}"
            )
        return x_BTD.reshape(*x_BTD.shape[:2], heads, -1)


def attention() -> Mixer:
    """Lets every token attend to the tokens that the mask shows.  Vaswani et al. 2017."""

    def make(spec, dims, position, **options):
        share = spec.position.share
        return MultiHeadAttention(spec.attention, dims, position, share, **options)

    return Mixer(make, masked=True, needs_attention=True)

"""Multi-head attention: projections around `tfm.ops.attend`."""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from jax import Array
from jax.tree_util import Partial
from jax.typing import DTypeLike

from tfm.layers import params
from tfm.layers.initial import Initial
from tfm.names import UserError
from tfm.ops.attend import attend
from tfm.ops.dropout import Dropout
from tfm.ops.masks import Mask
from tfm.ops.normalizers import NORMALIZERS, Normalizer
from tfm.ops.positions import Position
from tfm.ops.scores import SCORES, Score
from tfm.ops.shapes import check


class MultiHeadAttention(nn.Module):
    """W_o · concat(heads), each head with its own W_q, W_k, W_v.  Vaswani et al. 2017, §3.2.2.

    Self-attention when called with one sequence, cross-attention with two. The parameters of the
    score and of the position scheme are created here, in the shapes that their names ask for.
    """

    heads: int
    head_width: int
    kv_heads: int | None = None  # fewer than heads: grouped queries (Ainslie et al. 2023)
    score: Score = SCORES["scaled_dot"]
    normalizer: Normalizer = NORMALIZERS["softmax"]
    cap: float | None = None  # of the logits
    position: Position = Position()
    max_length: int | None = None  # for scores with a weight for each position
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMS-normalise each query and key (Dehghani et al. 2023)
    share_qk: bool = False  # one projection for both (Kitaev et al. 2020)
    implementation: str = "auto"
    initial: Initial = Initial()
    dtype: DTypeLike | None = None  # of the computation; parameters are float32

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        source_BSD: Array | None = None,
        *,
        mask: Mask | None = None,
        q_pos_BT: Array | None = None,
        k_pos_BS: Array | None = None,
        dropout: Dropout | None = None,
        position_params: Mapping[str, Array] | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Outputs BTD; with `return_weights` a pair, the outputs and the weights BHTS.

        Layers that share the parameters of their position scheme are given them.
        """
        check("x_BTD", x_BTD, {})
        if self.heads < 1 or self.head_width < 1:
            raise UserError(f"heads={self.heads}, head_width={self.head_width}: at least 1 each")
        if self.position.table is not None:
            raise UserError("this position scheme joins the embeddings: give it to PositionTable")
        groups = self.heads if self.kv_heads is None else self.kv_heads
        if groups < 1 or self.heads % groups:
            raise UserError(f"kv_heads={groups} must divide heads={self.heads}")
        if self.share_qk and groups != self.heads:
            raise UserError(f"share_qk needs kv_heads={groups} to equal heads={self.heads}")
        if source_BSD is None:
            source_BSD = x_BTD
            k_pos_BS = q_pos_BT if k_pos_BS is None else k_pos_BS
        check("source_BSD", source_BSD, {"B": x_BTD.shape[0]})

        def project(name: str, heads: int) -> nn.Module:
            features = (heads, self.head_width)
            init = self.initial.query(self.head_width) if name == "query" else self.initial.kernel
            return nn.DenseGeneral(
                features, use_bias=self.qkv_bias, kernel_init=init, dtype=self.dtype, name=name
            )

        query = project("query", self.heads)
        key = query if self.share_qk else project("key", groups)
        q_BTHK, k_BSGK = query(x_BTD), key(source_BSD)
        v_BSGK = project("value", groups)(source_BSD)
        if self.qk_norm:
            q_BTHK = nn.RMSNorm(dtype=self.dtype, name="query_norm")(q_BTHK)
            k_BSGK = nn.RMSNorm(dtype=self.dtype, name="key_norm")(k_BSGK)

        position, held = self.position, {}
        if position.rotate is not None or position.bias is not None:
            created = position_params or self._create("position", position)
            held = {name: value.astype(q_BTHK.dtype) for name, value in created.items()}
        if position.rotate is not None:
            q_BTHK = position.rotate(q_BTHK, params.positions(x_BTD, q_pos_BT), **held)
            k_BSGK = position.rotate(k_BSGK, params.positions(source_BSD, k_pos_BS), **held)
        out = attend(
            q_BTHK,
            k_BSGK,
            v_BSGK,
            score=Partial(
                self.score.fn,
                **{
                    name: value.astype(q_BTHK.dtype)
                    for name, value in self._create("score", self.score).items()
                },
            ),
            bias=None if position.bias is None else Partial(position.bias, **held),
            mask=mask,
            normalizer=self.normalizer,
            cap=self.cap,
            dropout=dropout,
            q_pos_BT=q_pos_BT,
            k_pos_BS=k_pos_BS,
            implementation=self.implementation,
            return_weights=return_weights,
        )
        out_BTHK, *weights = out if return_weights else (out,)
        out_BTD = nn.DenseGeneral(
            x_BTD.shape[-1],
            axis=(-2, -1),
            use_bias=self.out_bias,
            kernel_init=self.initial.residual,
            dtype=self.dtype,
            name="out",
        )(out_BTHK)
        return (out_BTD, *weights) if return_weights else out_BTD

    def _create(self, prefix: str, entry: Score | Position) -> dict[str, Array]:
        return params.create(self, prefix, entry, self.sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """Of what the parameters of a score or a position scheme may ask for."""
        sizes = {"H": self.heads, "K": self.head_width, "J": self.head_width}
        if self.max_length is not None:
            sizes |= {"L": self.max_length, "M": self.max_length}
        return sizes

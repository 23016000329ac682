"""Word2Vec: word vectors that predict nearby words.  Mikolov et al. 2013a, 2013b."""

from typing import TYPE_CHECKING, Any

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.config.names import UserError
from tfm.layers.dims import uniform
from tfm.models.common import check_capture, check_valid, known, outputs
from tfm.ops.dropout import Dropouts
from tfm.ops.masks import near
from tfm.ops.shapes import check

if TYPE_CHECKING:
    from tfm.models.spec import Word2VecSpec


class Word2Vec(nn.Module):
    """Predicts a missing word with two matrices (one if tied), no bias and no activation."""

    spec: "Word2VecSpec"

    @nn.compact
    def __call__(
        self,
        words_BC: Array,
        valid_BC: Array | None = None,
        candidates_BN: Array | None = None,
        reach_BC: Array | None = None,
        *,
        dropouts: Dropouts | None = None,
        train: bool = False,
        capture: tuple[str, ...] = (),
    ) -> Any:
        """Returns logits of the vocabulary (BV) or of the candidates (BN). Words are the context of
        CBOW, or the one word (C = 1) of skip-gram.

        With `reach_BC` the words are a row of text, each word is the center once, with the words
        within its reach as context, and logits are BCN. `capture` may name "states", the vectors
        that predict.
        """
        check_capture(capture, "states")
        spec, sizes = self.spec, dict[str, int]()
        check("words_BC", words_BC, sizes)
        check_valid("valid_BC", valid_BC, sizes)
        if spec.kind == "skip_gram" and sizes["C"] != 1 and reach_BC is None:
            raise UserError(f"skip-gram reads one word, but words_BC has shape {words_BC.shape}")
        shape = known(spec.vocab), spec.width
        input_VD = self.param("input", uniform(0.5 / spec.width), shape)  # like word2vec.c
        output_VD = input_VD
        if not spec.tied:
            output_VD = self.param("output", initializers.zeros, shape)
        x_BCD = jnp.take(input_VD, words_BC, axis=0)
        if reach_BC is not None:
            return self._every(x_BCD, valid_BC, candidates_BN, reach_BC, output_VD, capture)
        where = None if valid_BC is None else valid_BC[..., None]
        x_BD = jnp.sum(x_BCD, axis=1, where=where)
        if spec.average:
            count_B = sizes["C"] if valid_BC is None else jnp.maximum(jnp.sum(valid_BC, 1), 1)
            x_BD = x_BD / jnp.reshape(count_B, (-1, 1))
        states = {"states_BD": x_BD} if "states" in capture else {}
        if candidates_BN is None:
            return outputs(jnp.einsum("BD,VD->BV", x_BD, output_VD), capture, states)
        check("candidates_BN", candidates_BN, sizes)
        candidates_BND = jnp.take(output_VD, candidates_BN, axis=0)
        return outputs(jnp.einsum("BD,BND->BN", x_BD, candidates_BND), capture, states)

    def _every(
        self,
        x_BCD: Array,
        valid_BC: Array | None,
        candidates_BN: Array | None,
        reach_BC: Array,
        output_VD: Array,
        capture: tuple[str, ...],
    ) -> Any:
        sizes = {"B": x_BCD.shape[0], "C": x_BCD.shape[1]}
        check("reach_BC", reach_BC, sizes)
        if candidates_BN is None:
            raise UserError("reach_BC needs candidates_BN, because every word is the center once")
        check("candidates_BN", candidates_BN, sizes)
        if self.spec.kind == "cbow":
            near_BCC = near(reach_BC, valid_BC).astype(x_BCD.dtype)
            if self.spec.average:
                near_BCC = near_BCC / jnp.maximum(jnp.sum(near_BCC, 2, keepdims=True), 1)
            x_BCD = jnp.einsum("BCS,BSD->BCD", near_BCC, x_BCD)
        states = {"states_BCD": x_BCD} if "states" in capture else {}
        candidates_BND = jnp.take(output_VD, candidates_BN, axis=0)
        return outputs(jnp.einsum("BCD,BND->BCN", x_BCD, candidates_BND), capture, states)

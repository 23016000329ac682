"""Word2Vec: word vectors that predict nearby words.  Mikolov et al. 2013a, 2013b."""

from typing import TYPE_CHECKING, Any, Unpack

from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.config.names import UserError
from tfm.layers.dims import uniform
from tfm.models.common import CallOptions, captured, check_valid, known, outputs
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
        **options: Unpack[CallOptions],
    ) -> Any:
        """Returns logits of the vocabulary (BV) or of the candidates (BN). Words are the context of
        CBOW, or the one word (C = 1) of skip-gram.

        With `reach_BC` the words are a row of text, each word is the center once, with the words
        within its reach as context, and logits are BCN. `capture` may name "states", the vectors
        that predict.
        """
        capture = captured(options, "states")
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
        if candidates_BN is not None:
            check("candidates_BN", candidates_BN, sizes)
        if reach_BC is None:
            x, name = self._sum(x_BCD, valid_BC), "states_BD"
        else:
            check("reach_BC", reach_BC, sizes)
            if candidates_BN is None:
                raise UserError("reach_BC needs candidates_BN, because every word is a center")
            x, name = self._contexts(x_BCD, reach_BC, valid_BC), "states_BCD"
        states = {name: x} if "states" in capture else {}
        if candidates_BN is None:
            return outputs(jnp.einsum("BD,VD->BV", x, output_VD), capture, states)
        candidates_BND = jnp.take(output_VD, candidates_BN, axis=0)
        return outputs(jnp.einsum("B...D,BND->B...N", x, candidates_BND), capture, states)

    def _sum(self, x_BCD: Array, valid_BC: Array | None) -> Array:
        """Sums or averages the words of each example (BD)."""
        x_BD = jnp.sum(x_BCD, axis=1, where=None if valid_BC is None else valid_BC[..., None])
        if not self.spec.average:
            return x_BD
        count_B = x_BCD.shape[1] if valid_BC is None else jnp.maximum(jnp.sum(valid_BC, 1), 1)
        return x_BD / jnp.reshape(count_B, (-1, 1))

    def _contexts(self, x_BCD: Array, reach_BC: Array, valid_BC: Array | None) -> Array:
        """Returns the vector that predicts around each word (skip-gram) or the word itself
        (CBOW)."""
        if self.spec.kind == "skip_gram":
            return x_BCD
        near_BCC = near(reach_BC, valid_BC).astype(x_BCD.dtype)
        if self.spec.average:
            near_BCC = near_BCC / jnp.maximum(jnp.sum(near_BCC, 2, keepdims=True), 1)
        return jnp.einsum("BCS,BSD->BCD", near_BCC, x_BCD)

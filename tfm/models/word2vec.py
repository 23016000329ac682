"""Word2Vec: vectors of words that stand near each other.  Mikolov et al. 2013a, 2013b."""

from typing import Any

from flax import linen as nn
from flax.linen import initializers
from jax import Array
from jax import numpy as jnp

from tfm.layers.initial import uniform
from tfm.models.checks import check_valid
from tfm.models.outputs import check_want, outputs
from tfm.models.spec import Word2VecSpec
from tfm.names import UserError, pick
from tfm.ops.shapes import check

KINDS = {
    "skip_gram": "one word predicts each word around it",
    "cbow": "the words around predict the one in the middle",
}


class Word2Vec(nn.Module):
    """Logits of the word that is missing: two matrices, no bias, no activation."""

    kind: str
    vocab: int
    width: int
    average: bool = False  # of the context's vectors; else their sum

    @nn.compact
    def __call__(
        self,
        words_BC: Array,
        valid_BC: Array | None = None,
        candidates_BN: Array | None = None,
        *,
        want: tuple[str, ...] = (),
    ) -> Any:
        """BV of the whole vocabulary, or BN of the candidates. Words are the context of CBOW, or
        the one word (C = 1) of skip-gram. `want` may name "states": the vector that predicts."""
        check_want(want, ("states",))
        sizes: dict[str, int] = {}
        check("words_BC", words_BC, sizes)
        check_valid("valid_BC", valid_BC, sizes)
        if self.kind == "skip_gram" and sizes["C"] != 1:
            raise UserError(f"skip-gram reads one word, but words_BC has shape {words_BC.shape}")
        shape = self.vocab, self.width
        input_VD = self.param("input", uniform(0.5 / self.width), shape)  # as in word2vec.c
        output_VD = self.param("output", initializers.zeros, shape)
        x_BCD = jnp.take(input_VD, words_BC, axis=0)
        where = None if valid_BC is None else valid_BC[..., None]
        x_BD = jnp.sum(x_BCD, axis=1, where=where)
        if self.average:
            count_B = sizes["C"] if valid_BC is None else jnp.maximum(jnp.sum(valid_BC, 1), 1)
            x_BD = x_BD / jnp.reshape(count_B, (-1, 1))
        made = {"states_BD": x_BD}
        if candidates_BN is None:
            return outputs(jnp.einsum("BD,VD->BV", x_BD, output_VD), made, want)
        check("candidates_BN", candidates_BN, sizes)
        seen_BND = jnp.take(output_VD, candidates_BN, axis=0)
        return outputs(jnp.einsum("BD,BND->BN", x_BD, seen_BND), made, want)


def make(what: Word2VecSpec) -> Word2Vec:
    pick(KINDS, what.kind, "model.kind")
    if what.average and what.kind == "skip_gram":
        raise UserError("model.average: skip-gram reads one word; 'cbow' has several to average")
    return Word2Vec(what.kind, what.vocab, what.width, what.average)

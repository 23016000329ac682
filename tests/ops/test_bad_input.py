"""Each mistake gets an error that names the argument, what came, and what was expected."""

import jax
import pytest
from jax import numpy as jnp
from jax.tree_util import Partial

from tfm.config.names import UserError
from tfm.ops import masks, scores
from tfm.ops.attend import attend
from tfm.ops.normalizers import Normalizer
from tfm.ops.reference import Dropout

Q, K, V = jnp.ones((2, 5, 4, 6)), jnp.ones((2, 7, 2, 6)), jnp.ones((2, 7, 2, 6))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Q[0], K, V), r"q_BTHK must have 4 axes \(B, T, H, K\), but its shape is \(5, 4, 6\)"),
        ((Q, K[:1], V), r"k_BSGK has shape \(1, 7, 2, 6\), .*axis B \(batch\) is 1 instead of 2"),
        ((Q, K[..., :3], V), r"axis K \(head width\) is 3 instead of 6"),
        ((Q, K, V[:, :5]), r"v_BSGE .*axis S \(key length\) is 5 instead of 7"),
        ((Q[:, :, :3], K, V), "k_BSGK has 2 heads, which do not divide the 3 of q_BTHK"),
        ((Q, K.astype(jnp.bfloat16), V), "k_BSGK is bfloat16; .* one floating dtype"),
        ((Q.astype(int), K, V), "q_BTHK is int32"),
        ((Q[:, :0], K, V), r"q_BTHK has shape \(2, 0, 4, 6\); no axis may be empty"),
    ],
)
def test_arrays(args, message):
    with pytest.raises(UserError, match=message):
        attend(*args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "scaled_dto"}, "unknown score 'scaled_dto'; did you mean 'scaled_dot'"),
        ({"normalizer": "sofmax"}, "unknown normalizer 'sofmax'; did you mean 'softmax'"),
        ({"implementation": "block"}, "unknown implementation 'block'; did you mean 'blockwise'"),
        ({"score": "additive"}, r"has parameters: give it as .*Partial\(additive, w_HK=…\)"),
        (
            {"score": Partial(scores.additive, w_HK=jnp.ones((4, 5)))},
            r"w_HK has shape \(4, 5\), expected \(4, 6\)",
        ),
        (
            {"score": Partial(scores.additive, w_HK=jnp.ones((4, 6), int))},
            "parameter w_HK is int32, not floating",
        ),
        (
            {"score": Partial(scores.linear, w_HKM=jnp.ones((4, 6, 5)))},
            r"w_HKM reaches to length 5, but S \(key length\) is 7",
        ),
        (
            {"score": lambda q, k, **at: q},
            r"the score returned shape \(2, 5, 4, 6\), expected BHTS",
        ),
        ({"bias": lambda t, s, h: jnp.ones((5, 7))}, r"the bias returned shape \(5, 7\), expected"),
        ({"mask": jnp.ones((5, 7), bool)}, r"is not a mask; .*masks.given\(array\)"),
        (
            {"mask": masks.padding(jnp.ones((2, 5), bool))},
            r"valid_BS has shape \(2, 5\), expected \(2, 7\)",
        ),
        (
            {"mask": masks.causal() & ~masks.given(jnp.ones((1, 1, 5, 6), bool))},
            r"visible_BHTS .* axis S \(key length\) is 6 instead of 7",
        ),
        (
            {"mask": masks.predicate(lambda t, s: t + s)},
            r"a predicate .* must return booleans BTS .*, not int32",
        ),
        ({"q_pos_BT": jnp.arange(6)[None]}, r"q_pos_BT has shape \(1, 6\), expected \(2, 5\)"),
        ({"cap": -3}, "cap -3 must be above 0"),
        ({"dropout": Dropout(1.5, jax.random.key(0))}, "dropout rate 1.5 must be between 0 and 1"),
        ({"cap": jnp.ones(7)}, "cap must be one number"),
        ({"cap": jnp.float32(-3)}, "cap -3.0 must be above 0"),
        ({"dropout": 0.1}, r"dropout must be Dropout\(rate, key\), not 0.1"),
        ({"normalizer": jax.nn.softmax}, "normalizer must be a name or a Normalizer"),
        ({"bias": "alibi"}, "bias must be a function"),
        ({"mask": "causal"}, r"a str is not a mask; .*masks.causal\(\)"),
        ({"score": scores.additive}, "the score additive is called as .*missing.*'w_HK'"),
        ({"score": lambda q, k: q}, "unexpected keyword argument 'q_pos_BT'|got an unexpected"),
        (
            {"score": Partial(scores.scaled_dot, w_HK=jnp.ones((4, 6)))},
            "the score scaled_dot has no parameter 'w_HK'",
        ),
        (
            {"score": Partial(lambda q, k, *, gain, **at: q, gain=jnp.float32(1))},
            "'gain' must end in its shape, like w_HK; a scalar is gain_",
        ),
        ({"q_pos_BT": jnp.ones((1, 5))}, "q_pos_BT must be whole numbers, not float32"),
        ({"implementation": "blockwise", "edge": 0}, "edge=0 must be a whole number"),
        ({"edge": 4}, "edge=4 must be .*, with implementation='blockwise'"),
        (
            {"implementation": "blockwise", "return_weights": True},
            "'blockwise' never holds the weights .*; 'reference' does",
        ),
        (
            {"implementation": "fused", "normalizer": "sigmoid"},
            "'fused' on cpu cannot do normalizers other than softmax; 'reference' and 'blockwise'",
        ),
        (
            {"implementation": "fused", "score": "distance"},
            "cannot do scores other than dot and scaled_dot",
        ),
        ({"normalizer": "topk(k=0)"}, "topk: k=0 must be at least 1"),
        ({"normalizer": "topk(n=3)"}, "normalizer 'topk' has no option 'n'; known: k"),
        ({"implementation": "fused", "offset_B": jnp.array([1, 2])}, "cannot do a cache"),
        (
            {
                "mask": masks.segments(jnp.zeros((2, 5), int), jnp.zeros((2, 7), int)),
                "offset_B": jnp.array([1, 2]),
            },
            "mask 'segments' has an entry for each query, so it cannot be used with a cache",
        ),
    ],
)
def test_options(options, message):
    with pytest.raises(UserError, match=message):
        attend(Q, K, V, **options)


@pytest.mark.parametrize("kinds", [{}, {"each": jax.nn.relu, "row": jax.nn.softmax}, {"row": 3}])
def test_a_normalizer_is_of_one_kind(kinds):
    with pytest.raises(UserError, match="a Normalizer has one function: total= .* each= .* row="):
        Normalizer(**kinds)


def test_a_traced_value_in_a_closure():
    """Refused whatever the length: tile by tile it could not be differentiated."""

    def loss(w, implementation):
        score = lambda q, k, **at: scores.additive(q, k, w_HK=w)
        return attend(Q, K, V, score=score, implementation=implementation).sum()

    for implementation in ("reference", "blockwise", "auto"):
        with pytest.raises(UserError, match="closes over a traced value"):
            jax.grad(loss)(jnp.ones((4, 6)), implementation)

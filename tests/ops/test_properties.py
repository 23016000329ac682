"""What must hold of attention, whatever computes it."""

import inspect

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.tree_util import Partial

from tests.helpers.quick import jit
from tests.helpers.tiers import first_tier
from tfm.ops import masks, scores
from tfm.ops.attend import attend
from tfm.ops.normalizers import NORMALIZERS
from tfm.ops.positions import POSITIONS, relative_bias, rotary, sinusoidal_table
from tfm.ops.reference import Dropout
from tfm.ops.scores import SCORES
from tfm.ops.shapes import shape_of

WAYS = [
    {"implementation": "reference"},
    {"implementation": "blockwise", "edge": 4},
    {"implementation": "fused"},
]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way["implementation"])

pytestmark = pytest.mark.usefixtures("optimising")  # small differences count here


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def qkv(batch=2, rows=9, cols=9, heads=2, width=8):
    return (
        normal(0, batch, rows, heads, width),
        normal(1, batch, cols, heads, width),
        normal(2, batch, cols, heads, width),
    )


def test_worked_example():
    """我/喜欢/学习/编程: W_Q = W_V = I, d = 3, causal. Worked out from the definition by hand:
    k₁ = (.25+.02+.09, .05+.07+.03, .15+.01+.18) = (.36, .15, .34), and so on."""
    x = np.array([[0.5, 0.1, 0.3], [0.7, 0.2, 0.9], [0.6, 0.4, 0.8], [0.8, 0.3, 0.5]])
    w_k = np.array([[0.5, 0.1, 0.3], [0.2, 0.7, 0.1], [0.3, 0.1, 0.6]])
    q, k = jnp.asarray(x)[None, :, None], jnp.asarray(x @ w_k)[None, :, None]
    scaled = [
        [0.171473, 0.341214, 0.324471, 0.294449],
        [0.339482, 0.701481, 0.662798, 0.581969],
        [0.316388, 0.653561, 0.635085, 0.553102],
        [0.290407, 0.579082, 0.561184, 0.505181],
    ]
    weights = [
        [1, 0, 0, 0],
        [0.410476, 0.589524, 0, 0],
        [0.264808, 0.370991, 0.364200, 0],
        [0.204699, 0.273203, 0.268357, 0.253741],
    ]
    outputs = [
        [0.5, 0.1, 0.3],
        [0.617905, 0.158952, 0.653714],
        [0.610618, 0.246359, 0.704695],
        [0.657599, 0.258576, 0.648848],
    ]
    np.testing.assert_allclose(scores.scaled_dot(q, k)[0, 0], scaled, atol=1e-6)
    out, seen = attend(q, k, q, mask=masks.causal(), return_weights=True)
    np.testing.assert_allclose(seen[0, 0], weights, atol=1e-6)
    np.testing.assert_allclose(out[0, :, 0], outputs, atol=1e-6)


@every_way
def test_causal_by_gradient(way):
    q, k, v = qkv(batch=1)

    def out(k, v):
        return attend(q, k, v, mask=masks.causal(), **way)[0].sum((1, 2))

    for jacobian in jax.jacrev(out, (0, 1))(k, v):
        reach_TS = np.abs(jacobian).max(axis=(1, 3, 4))
        assert not np.any(np.triu(reach_TS, 1))
    # The first row has one key only, whatever that key is; all others depend on what they see.
    assert np.all(reach_TS[np.tril_indices(9)] > 0)


@every_way
def test_padding_changes_nothing(way):
    q, k, v = qkv()
    plain = attend(q, k, v, **way)
    junk = 1e4 * normal(5, 2, 4, 2, 8)
    longer = [jnp.concatenate([x[:, :3], junk, x[:, 3:]], axis=1) for x in (k, v)]
    valid = jnp.array([[True] * 3 + [False] * 4 + [True] * 6] * 2)

    def padded(k, v):
        return attend(q, k, v, mask=masks.padding(valid), **way)

    np.testing.assert_allclose(padded(*longer), plain, atol=2e-6)
    for grad in jax.grad(lambda k, v: padded(k, v).sum(), (0, 1))(*longer):
        assert not np.any(grad[:, 3:7])


@every_way
def test_a_packed_row_is_its_sequences_one_by_one(way):
    q, k, v = qkv(batch=1, rows=11, cols=11)
    table = normal(7, 32, 2)
    bias = Partial(_relative, w_UH=table)
    cut = 4
    segment = (jnp.arange(11) >= cut).astype(int)[None]
    pos = jnp.concatenate([jnp.arange(cut), jnp.arange(11 - cut)])[None]
    turn = rotary().rotate
    packed = attend(
        turn(q, pos),
        turn(k, pos),
        v,
        bias=bias,
        mask=masks.causal() & masks.segments(segment),
        q_pos_BT=pos,
        k_pos_BS=pos,
        **way,
    )
    for part in (slice(0, cut), slice(cut, 11)):
        at = jnp.arange(part.stop - part.start)[None]
        alone = attend(
            turn(q[:, part], at), turn(k[:, part], at), v[:, part],
            bias=bias, mask=masks.causal(), **way,
        )  # fmt: skip
        np.testing.assert_allclose(packed[:, part], alone, atol=2e-6)


def _relative(q_pos, k_pos, heads, *, w_UH):
    return relative_bias(
        q_pos, k_pos, heads, w_UH=w_UH, buckets=32, max_distance=128, bidirectional=True
    )


@pytest.mark.parametrize("score", SCORES)
def test_without_positions_order_is_invisible(score):
    entry = SCORES[score]
    if {"q_pos_BT", "k_pos_BS"} & set(inspect.signature(entry.fn).parameters):
        pytest.skip("it asks for positions")
    q, k, v = qkv(batch=1)
    order = jax.random.permutation(jax.random.key(3), 9)
    sizes = {"H": 2, "K": 8, **entry.sizes}
    held = {name: normal(4, *shape_of(name, sizes)) for name in entry.params}
    bound = Partial(entry.fn, **held)
    straight = attend(q, k, v, score=bound)
    shuffled = attend(q[:, order], k[:, order], v[:, order], score=bound)
    np.testing.assert_allclose(shuffled, straight[:, order], atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"fraction": 0.5}, {"scaling": "linear", "factor": 4.0},
                                     {"scaling": "ntk", "factor": 4.0}])  # fmt: skip
def test_rotary_scores_depend_on_distance_only(options):
    turn = rotary(**options).rotate
    q, k = normal(0, 1, 1, 1, 16), normal(1, 1, 1, 1, 16)

    def score(t, s):
        return scores.dot(turn(q, jnp.array([[t]])), turn(k, jnp.array([[s]]))).item()

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-4)
    assert score(3, 1) == pytest.approx(score(1003, 1001), abs=1e-3)
    assert abs(score(3, 1) - score(1, 3)) > 1e-2


def test_sinusoids_shift_by_a_fixed_linear_map():
    """PE(p + k) = M_k PE(p), one rotation for each pair, the same for all p.  §3.5 of the paper."""
    width, shift = 16, 7
    table = np.asarray(sinusoidal_table(jnp.arange(200)[None], width)[0], np.float64)
    move = np.zeros((width, width))
    for i in range(0, width, 2):
        a = shift / 10_000 ** (i / width)
        move[i : i + 2, i : i + 2] = [[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]
    np.testing.assert_allclose(table[shift:], table[:-shift] @ move.T, atol=3e-5)


def test_sinusoid_of_position_two():
    expected = [0.9093, -0.4161, 0.0200, 0.9998]
    np.testing.assert_allclose(sinusoidal_table(jnp.array([[2]]), 4)[0, 0], expected, atol=5e-5)


def test_sinusoids_are_bounded_unique_and_blind_to_direction():
    table = np.asarray(sinusoidal_table(jnp.arange(512)[None], 64)[0])
    assert np.abs(table).max() <= 1
    apart = np.linalg.norm(table[:, None] - table[None], axis=-1) + 10 * np.eye(512)
    assert apart.min() > 0.1
    dots = table @ table.T
    np.testing.assert_allclose(dots[100, 110], dots[100, 90], atol=1e-3)
    assert dots[100, 100] > dots[100, 101] > dots[100, 104]


@pytest.mark.parametrize("width", [4, 16, 64, 256])
def test_scaling_keeps_the_variance_at_one(width):
    q, k = normal(0, 1, 300, 1, width), normal(1, 1, 300, 1, width)
    assert np.var(scores.dot(q, k)) == pytest.approx(width, rel=0.1)
    assert np.var(scores.scaled_dot(q, k)) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("way", "normalizer"),
    [
        *((WAYS[1], name) for name in NORMALIZERS),
        *(pytest.param(WAYS[0], name, marks=pytest.mark.ci) for name in NORMALIZERS),
        (WAYS[2], "softmax"),
    ],
)
def test_a_row_that_sees_nothing_gives_zeros(way, normalizer):
    q, k, v = qkv()
    mask = masks.given(jnp.ones((2, 1, 9, 9), bool).at[:, :, 3].set(False).at[1].set(False))

    def out(q, k, v):
        return attend(q, k, v, mask=mask, normalizer=normalizer, **way)

    def loss(q, k, v):
        result = out(q, k, v)
        return jnp.sum(result**2 + result), result

    grads, result = jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
    assert not np.any(result[:, 3])
    assert not np.any(result[1])
    assert np.all(np.any(result[0, :3], axis=(1, 2)))
    assert all(np.all(np.isfinite(grad)) for grad in grads)
    assert not np.any(grads[0][:, 3])
    assert not any(np.any(grad[1]) for grad in grads)


@every_way
def test_huge_logits_are_fine(way):
    q, k, v = (100 * x for x in qkv())
    out = attend(q, k, v, score="dot", **way)
    assert np.all(np.isfinite(out))
    best = np.argmax(np.einsum("bthk,bshk->bhts", q, k), -1)
    for b, t, h in np.ndindex(2, 9, 2):
        np.testing.assert_allclose(out[b, t, h], v[b, best[b, h, t], h], rtol=1e-3)


@every_way
def test_softmax_is_float32_whatever_comes_in(way):
    """1,000 equal keys: weights of 1/1,000 summed in bfloat16 would stop growing at 1/4."""
    q = jnp.zeros((1, 8, 1, 8), jnp.bfloat16)
    k, v = jnp.zeros((1, 1000, 1, 8), jnp.bfloat16), jnp.ones((1, 1000, 1, 8), jnp.bfloat16)
    out = attend(q, k, v, **(way | {"edge": 64} if "edge" in way else way))
    np.testing.assert_allclose(np.asarray(out, np.float32), 1, rtol=2**-7)


def decided(q, k):
    """Every query likes every other key, from the first on, and dislikes the rest."""
    sign_S = (-1.0) ** jnp.arange(k.shape[1])
    return q.at[..., 0].set(3.0), k.at[..., 0].set(3.0 * sign_S[None, :, None])


@pytest.mark.usefixtures("optimising")
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_a_row_with_one_weight_has_no_gradient(name):
    """All keys but one lie far below the threshold: how far is no matter, so nothing pulls at the
    logits. Compiled as outside of tests, where a quotient is rounded in another way."""
    q, k, v = qkv()
    q, k = decided(q, k)

    options = {"mask": masks.causal(), "normalizer": name, "implementation": "reference"}
    _, weights_BHTS = attend(q, k, v, **options, return_weights=True)
    one_BTH = np.moveaxis(np.max(np.asarray(weights_BHTS), -1) == 1, 1, 2)
    assert np.sum(one_BTH[:, 1:]) > 1
    grad_BTHK = jax.jit(jax.grad(lambda q: jnp.sum(attend(q, k, v, **options) ** 2)))(q)
    np.testing.assert_allclose(np.asarray(grad_BTHK)[one_BTH], 0, atol=1e-5)


ROWS = ["sparsemax", "entmax15", "relu_sum", "topk(k=3)"]


@pytest.mark.parametrize("name", first_tier(ROWS, ["entmax15", "topk(k=3)"]))
def test_whole_rows(name):
    """Hidden keys weigh exactly 0, some visible ones too; and any number of rows at a time gives
    what the whole matrix does."""
    q, k, v = qkv()
    if name == "relu_sum":  # Σ is not near 0, where the rounding of 1/Σ would be all one sees
        q, k = decided(q, k)
    options = {"mask": masks.causal(), "normalizer": name}
    out, weights = attend(q, k, v, **options, return_weights=True)
    assert not np.any(np.triu(weights, 1))
    np.testing.assert_allclose(weights.sum(-1), np.any(weights, -1), atol=1e-5)
    assert np.mean(weights[:, :, -1] == 0) > 0.15
    if name == "topk(k=3)":
        assert np.array_equal(np.sum(weights[0, 0] > 0, -1), [1, 2, 3, 3, 3, 3, 3, 3, 3])

    def training(way):
        fn = lambda *args: jnp.sum(attend(*args, **options, **way) ** 2)
        return attend(q, k, v, **options, **way), jax.grad(fn, (0, 1, 2))(q, k, v)

    _, wanted = training(WAYS[0])
    for edge in (2, 16):
        found, grads = training({"implementation": "blockwise", "edge": edge})
        np.testing.assert_allclose(found, out, atol=1e-6)
        for a, b in zip(grads, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


class TestDropout:
    def out(self, rate=0.3, seed=0, rows=64, **way):
        q, k, v = qkv(rows=rows, cols=rows)
        return attend(q, k, v, dropout=Dropout(rate, jax.random.key(seed)), **way)

    def weights(self, rate=0.3, seed=0, rows=64):
        return np.asarray(self.out(rate, seed, rows, return_weights=True)[1])

    def test_every_tiling_drops_the_same_entries(self):
        whole = self.out(implementation="reference")
        for edge in (5, 16, 64):
            np.testing.assert_allclose(
                self.out(implementation="blockwise", edge=edge), whole, atol=2e-6
            )

    def test_gradients_agree(self):
        q, k, v = qkv(rows=20, cols=20)

        def grad(**way):
            dropout = Dropout(0.3, jax.random.key(0))
            loss = lambda *args: jnp.sum(attend(*args, dropout=dropout, **way) ** 2)
            return jax.grad(loss, (0, 1, 2))(q, k, v)

        for a, b in zip(grad(**WAYS[0]), grad(**WAYS[1]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)

    def test_the_rate_is_kept_and_the_mean_too(self):
        rows = 256
        dropped = self.weights(0.3, rows=rows) == 0
        n = dropped.size
        assert dropped.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / n))
        assert self.weights(0.3, rows=rows).sum(-1).mean() == pytest.approx(1, abs=0.01)

    def test_entries_are_independent(self):
        """Between two rows, two columns, two heads and two keys: correlation within chance."""
        kept = (self.weights(0.5, rows=256)[0] > 0).astype(float) - 0.5
        other = (self.weights(0.5, seed=1, rows=256)[0] > 0).astype(float) - 0.5
        rows = np.corrcoef(kept[0]) - np.eye(256)
        cols = np.corrcoef(kept[0].T) - np.eye(256)
        chance = 5.5 / np.sqrt(256)
        assert np.abs(rows).max() < chance
        assert np.abs(cols).max() < chance
        assert abs(np.mean(4 * kept[0] * kept[1])) < 5 / 256
        assert abs(np.mean(4 * kept * other)) < 5 / 256

    def test_zero_drops_nothing_and_one_everything(self):
        q, k, v = qkv(rows=64, cols=64)
        np.testing.assert_allclose(self.out(0.0), attend(q, k, v), atol=1e-6)
        assert not np.any(self.out(1.0))

    def test_the_rate_is_data(self):
        compiled = jax.jit(lambda rate: self.out(rate, implementation="blockwise"))
        jax.block_until_ready([compiled(jnp.float32(rate)) for rate in (0.1, 0.2, 0.5)])
        assert compiled._cache_size() == 1


def test_a_score_undefined_at_zero_meets_no_zero_but_ones_own():
    """Lengths that no tile divides are filled up, and gradients must not notice with what."""

    def direction(q, k, **at):
        unit = lambda x: x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True))
        return jnp.einsum("BTHK,BSHK->BHTS", unit(q), unit(k))

    q, k, v = qkv()
    grads = [
        jax.grad(lambda *a, way=way: attend(*a, score=direction, **way).sum(), (0, 1, 2))(q, k, v)
        for way in WAYS[:2]
    ]
    for whole, tiled in zip(*grads, strict=True):
        np.testing.assert_allclose(tiled, whole, atol=1e-5)


def test_unsigned_positions_are_positions_too():
    q, k, v = qkv()
    pos = jnp.arange(9)[None]
    bias = POSITIONS["alibi"]().bias
    signed, unsigned = (
        attend(q, k, v, bias=bias, q_pos_BT=p, k_pos_BS=p) for p in (pos, pos.astype(jnp.uint32))
    )
    np.testing.assert_array_equal(signed, unsigned)


def test_restarted_positions_count_for_the_reach_of_a_table_and_not_the_length():
    q, k, v = qkv()
    pos = jnp.arange(9)[None] % 3
    bound = Partial(scores.static, w_HLM=normal(5, 2, 3, 3))
    out = attend(q, k, v, score=bound, q_pos_BT=pos, k_pos_BS=pos)
    assert np.all(np.isfinite(out))
    np.testing.assert_allclose(out[:, 1], out[:, 4], atol=1e-6)
    assert np.all(np.isnan(attend(q, k, v, score=bound, q_pos_BT=pos + 9, k_pos_BS=pos)))


def test_cosine_of_a_zero_vector_in_float16():
    q, k, v = (x.astype(jnp.float16).at[:, 2].set(0) for x in qkv())
    bound = Partial(scores.cosine, log_scale_H=jnp.ones(2, jnp.float16))
    assert np.all(np.isfinite(attend(q, k, v, score=bound)))


def test_second_derivatives_of_short_attention():
    q, k, v = qkv(batch=1, rows=3, cols=3)
    hessian = jax.hessian(lambda q: attend(q, k, v, mask=masks.causal()).sum())(q)
    assert np.all(np.isfinite(hessian))
    assert np.any(hessian)


def test_weights_are_what_the_outputs_are_made_of():
    q, k, v = qkv()
    out, weights = attend(q, k, v, mask=masks.causal(), return_weights=True)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.einsum("bhts,bshk->bthk", weights, v), out, atol=1e-6)


def test_grouped_queries_share_keys_and_values():
    q, k, v = normal(0, 2, 9, 6, 8), normal(1, 2, 9, 2, 8), normal(2, 2, 9, 2, 8)
    for way in WAYS:
        grouped = attend(q, k, v, **way)
        copied = attend(q, jnp.repeat(k, 3, axis=2), jnp.repeat(v, 3, axis=2), **way)
        np.testing.assert_allclose(grouped, copied, atol=1e-6)

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.tree_util import Partial

from tests.helpers.cases import MASK_EXAMPLES, VALID
from tfm.config.names import UserError
from tfm.ops import masks
from tfm.ops.attend import attend
from tfm.ops.mask import At, Span
from tfm.ops.masks import MASKS
from tfm.ops.positions import POSITIONS

ROWS, COLS = 9, 10
INDEX = At(np.arange(ROWS), np.arange(COLS), np.arange(ROWS)[None], np.arange(COLS)[None])


def tiles(edge):
    for i in range(0, ROWS, edge):
        for j in range(0, COLS, edge):
            yield range(ROWS)[i : i + edge], range(COLS)[j : j + edge]


@pytest.mark.parametrize("name", [*MASKS, "predicate", "joined"])
def test_what_a_mask_says_of_a_tile_is_true(name):
    make, _ = MASK_EXAMPLES.get(name, (MASKS.get(name), None))
    for mask in (make(), ~make(), make() & masks.causal(), make() | masks.window(2, 2)):
        shown = np.broadcast_to(mask.visible(INDEX), (2, 4, ROWS, COLS))
        for edge in (1, 2, 3, 5):
            for rows, cols in tiles(edge):
                tile = shown[:, :, rows.start : rows.stop, cols.start : cols.stop]
                span = Span(rows, cols, plain=True)
                assert not (mask.hides(span) and tile.any())
                assert not (mask.shows(span) and not tile.all())


@pytest.mark.parametrize("name", ["causal", "window", "strided", "global_tokens"])
def test_every_hidden_tile_is_known(name):
    """So that work on long sequences shrinks to what is visible."""
    mask = MASK_EXAMPLES[name][0]()
    shown = np.broadcast_to(mask.visible(INDEX), (1, 1, ROWS, COLS))[0, 0]
    hidden = 0
    for rows, cols in tiles(2):
        tile = shown[rows.start : rows.stop, cols.start : cols.stop]
        assert mask.hides(Span(rows, cols, plain=True)) == (not tile.any())
        hidden += not tile.any()
    assert hidden > 0


def test_positions_that_restart_are_never_judged_by_index():
    span = Span(range(8, 10), range(8, 10), plain=False)
    assert not masks.global_tokens(2).hides(span)


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (masks.causal(), True),
        (masks.window(3), True),
        (masks.causal() & masks.strided(2), True),
        (masks.causal() & ~masks.window(2, 1), True),
        (masks.causal() & masks.prefix(3), True),
        (masks.predicate(lambda t, s: s <= t), True),
        (masks.everything(), False),
        (masks.window(3, 1), False),
        (masks.strided(5), False),
        (masks.causal() | masks.prefix(2), False),
        (masks.causal() | masks.global_tokens(1), False),
        (~masks.causal(), False),
    ],
)
def test_whether_a_mask_is_causal(mask, causal):
    assert mask.is_causal() == causal
    assert jax.jit(lambda: int(mask.is_causal()))() == causal
    square = At(np.arange(9), np.arange(9), np.arange(9)[None], np.arange(9)[None])
    ahead = np.broadcast_to(mask.visible(square), (1, 1, 9, 9))[0, 0] & ~np.tri(9, dtype=bool)
    assert ahead.any() != causal


OFFSETS = jnp.array([2, 5])


@pytest.mark.parametrize("way", [{"implementation": "reference"},
                                 {"implementation": "blockwise", "edge": 2}],
                         ids=lambda way: way["implementation"])  # fmt: skip
@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(),
        masks.window(3),
        masks.causal() & masks.strided(2),
        masks.causal() | masks.global_tokens(1),
        masks.causal() | masks.prefix([3, 1]),
        masks.causal() & masks.padding(VALID),
    ],
    ids=["causal", "window", "strided", "global_tokens", "prefix", "padding"],
)
def test_queries_that_follow_a_cache_see_what_they_would_see_in_the_whole(mask, way):
    """Each example stands at an offset of its own. Positions go with it, and so do gradients."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, COLS, 2, 4))
    bias = POSITIONS["alibi"]().bias
    at_BT = OFFSETS[:, None] + jnp.arange(3)[None]
    rows = lambda x: jnp.take_along_axis(x, at_BT[..., None, None], 1)

    def whole(q, k, v):
        return rows(attend(q, k, v, mask=mask, bias=bias))

    def cached(q, k, v):
        return attend(rows(q), k, v, mask=mask, bias=bias, q_pos_BT=at_BT, offset_B=OFFSETS, **way)

    np.testing.assert_allclose(cached(q, k, v), whole(q, k, v), atol=2e-6)
    loss = lambda out: lambda *qkv: jnp.sum(jnp.sin(out(*qkv)))
    wanted, got = (jax.grad(loss(out), (0, 1, 2))(q, k, v) for out in (whole, cached))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b, a, atol=5e-6)


def test_hidden_tiles_are_not_computed():
    """A score that is NaN beyond the band: the tiles there are not so much as touched."""

    def poisoned(q, k, *, q_pos_BT, k_pos_BS):
        far = jnp.abs(q_pos_BT[:, None, :, None] - k_pos_BS[:, None, None]) > 12
        return jnp.where(far, jnp.nan, jnp.einsum("BTHK,BSHK->BHTS", q, k))

    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 64, 1, 4))
    loss = lambda *qkv: attend(
        *qkv, score=poisoned, mask=masks.window(4, 4), implementation="blockwise", edge=4
    ).sum()
    value, grads = jax.value_and_grad(loss, (0, 1, 2))(q, k, v)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(grad)) for grad in grads)


def test_tiles_without_a_real_token_are_skipped_at_run_time():
    """Padding is data, so no tile is ruled out before compilation; still none is computed."""
    count = []

    def counting(q, k, **at):
        jax.debug.callback(lambda: count.append(1))
        return jnp.einsum("BTHK,BSHK->BHTS", q, k)

    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 32, 1, 4))
    run = jax.jit(
        lambda valid: attend(
            q, k, v, score=counting, mask=masks.padding(valid), implementation="blockwise", edge=8
        )
    )
    for real, tiles in ((32, 16), (20, 12), (8, 4)):
        count.clear()
        run(jnp.broadcast_to(jnp.arange(32) < real, (2, 32))).block_until_ready()
        jax.effects_barrier()
        assert len(count) == tiles


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.window(-1), "left=-1"),
        (lambda: masks.window(2, None), "right=None must be a whole number"),
        (lambda: masks.window(jnp.int32(2)), "left=2 must be a whole number"),
        (lambda: masks.padding(jnp.zeros((2, 5))), "valid_BS must be boolean, .* not float32"),
        (lambda: masks.given(jnp.zeros((1, 1, 5, 5), int)), "visible_BHTS must be boolean"),
        (lambda: masks.causal() & jnp.ones((5, 5), bool), "is not a mask; .*given"),
        (lambda: masks.causal() | masks.causal, "the function causal is not a mask"),
        (lambda: masks.strided(0), "stride=0"),
        (lambda: masks.global_tokens(-1), "count=-1"),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_predicate_may_hold_a_traced_number():
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 16, 1, 4))
    first = lambda t, s, limit: (s < limit) & (t >= 0)

    def loss(q, limit, **way):
        return attend(q, k, v, mask=masks.predicate(Partial(first, limit=limit)), **way).sum()

    for limit in (3, 9):
        whole = jax.jit(jax.grad(loss))(q, limit)
        tiled = jax.jit(
            lambda q, limit: jax.grad(loss)(q, limit, implementation="blockwise", edge=4)
        )(q, limit)
        np.testing.assert_allclose(tiled, whole, atol=1e-6)
        shown = jnp.broadcast_to(jnp.arange(16) < limit, (1, 1, 16, 16))
        plain = jax.grad(lambda q, shown=shown: attend(q, k, v, mask=masks.given(shown)).sum())(q)
        np.testing.assert_allclose(whole, plain, atol=1e-6)


def test_what_a_rolling_cache_shows_and_hides():
    """Of 4 slots, in which positions 8, 9, 6, 7 stand, and 9 new keys from position 10 on. What is
    visible is what a window shows by position; tiles of new keys beyond it are known."""
    mask = masks.Rolling(masks.causal() & masks.window(3), slots=4)
    k_pos = np.array([8, 9, 6, 7, *range(10, 19)])
    q_pos = np.arange(10, 19)
    at = At(np.arange(ROWS), np.arange(len(k_pos)), q_pos[None], k_pos[None])
    shown = np.asarray(mask.visible(at))[0, 0]
    back = q_pos[:, None] - k_pos[None]
    np.testing.assert_array_equal(shown, (back >= 0) & (back <= 3))
    hidden = 0
    for rows in (range(0, 3), range(3, 6), range(6, 9)):
        for cols in (range(0, 4), range(4, 7), range(7, 10), range(10, 13)):
            tile = shown[rows.start : rows.stop, cols.start : cols.stop]
            known = mask.hides(Span(rows, cols, plain=False))
            assert not (known and tile.any())
            hidden += known
    assert hidden == 4  # three above the diagonal, and the one that lies farthest back
    empty = At(np.arange(1), np.arange(4), np.array([[1]]), np.array([[0, 1, -2, -1]]))
    assert np.asarray(mask.visible(empty))[0, 0].tolist() == [[True, True, False, False]]

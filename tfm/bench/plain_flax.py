"""The same models in plain Flax, written as in its examples."""

from typing import Any

import jax
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax import Array
from jax import numpy as jnp

from tfm.bench.cases import CLIP, LEARNING_RATE, Case
from tfm.bench.turns import Run, timed


class Block(nn.Module):
    """Pre-norm without biases, or post-norm with biases; attends to `source` if there is one."""

    case: Case

    @nn.compact
    def __call__(self, x: Array, mask: Any, source: Any = None, source_mask: Any = None) -> Array:
        case, post = self.case, self.case.kind != "decoder"

        def attend(x: Array, source: Array, mask: Any) -> Array:
            attention = nn.MultiHeadDotProductAttention(case.heads, use_bias=post)
            return attention(x, source, mask=mask)

        def feedforward(x: Array) -> Array:
            x = nn.Dense(4 * case.width, use_bias=post)(x)
            x = nn.relu(x) if case.kind == "encoder_decoder" else nn.gelu(x, approximate=False)
            return nn.Dense(case.width, use_bias=post)(x)

        if not post:
            y = nn.LayerNorm(1e-5, use_bias=False)(x)
            x = x + attend(y, y, mask)
            return x + feedforward(nn.LayerNorm(1e-5, use_bias=False)(x))
        x = nn.LayerNorm(1e-5)(x + attend(x, x, mask))
        if source is not None:
            x = nn.LayerNorm(1e-5)(x + attend(x, source, source_mask))
        return nn.LayerNorm(1e-5)(x + feedforward(x))


class Transformer(nn.Module):
    """A decoder, a masked language model, or an encoder–decoder."""

    case: Case

    @nn.compact
    def __call__(
        self,
        tokens_BT: Any = None,
        valid_BT: Any = None,
        source_BS: Any = None,
        decoder_input_BT: Any = None,
        source_valid_BS: Any = None,
    ) -> Array:
        case = self.case
        token = nn.Embed(case.vocab, case.width)

        def embed(tokens: Array) -> Array:
            place = nn.Embed(case.length, case.width)(jnp.arange(tokens.shape[1])[None])
            return token(tokens) + place

        def layers(x: Array, *args: Any) -> Array:
            for _ in range(case.layers):
                x = Block(case)(x, *args)
            return x

        if case.kind == "decoder":
            x = layers(embed(tokens_BT), nn.make_causal_mask(tokens_BT))
            return token.attend(nn.LayerNorm(1e-5, use_bias=False)(x))
        if case.kind == "encoder":
            x = nn.LayerNorm(1e-5)(embed(tokens_BT))
            x = layers(x, nn.make_attention_mask(valid_BT, valid_BT))
            x = nn.LayerNorm(1e-5)(nn.gelu(nn.Dense(case.width)(x), approximate=False))
            bias = self.param("bias", nn.initializers.zeros, (case.vocab,))
            return token.attend(x) + bias[None, None]
        source, x = embed(source_BS), embed(decoder_input_BT)
        source = layers(source, nn.make_attention_mask(source_valid_BS, source_valid_BS))
        cross = nn.make_attention_mask(jnp.ones_like(decoder_input_BT), source_valid_BS)
        return token.attend(layers(x, nn.make_causal_mask(decoder_input_BT), source, cross))


class LSTM(nn.Module):
    """A language model."""

    case: Case

    @nn.compact
    def __call__(self, tokens_BT: Array) -> Array:
        x = nn.Embed(self.case.vocab, self.case.width)(tokens_BT)
        x = nn.RNN(nn.OptimizedLSTMCell(self.case.width))(x)
        return nn.Dense(self.case.vocab)(x)


class AttendingCell(nn.Module):
    """An LSTM whose input includes what its state attends to, with the additive score."""

    width: int

    @nn.compact
    def __call__(self, carry: Any, x: Array, keys: Array, values: Array, valid: Array) -> Any:
        query = nn.Dense(self.width, use_bias=False)(carry[1])
        score = nn.Dense(1, use_bias=False)(jnp.tanh(query[:, None] + keys))[..., 0]
        weights = nn.softmax(jnp.where(valid, score, -1e30))
        context = jnp.einsum("BS,BSE->BE", weights, values)
        carry, h = nn.OptimizedLSTMCell(self.width)(carry, jnp.concatenate([x, context], -1))
        return carry, jnp.concatenate([context, h], -1)


class LSTMAttention(nn.Module):
    """An encoder–decoder with attention before each step.  Bahdanau et al. 2015."""

    case: Case

    @nn.compact
    def __call__(self, source_BS: Array, decoder_input_BT: Array, source_valid_BS: Array) -> Array:
        case = self.case
        x = nn.Embed(case.vocab, case.width)(source_BS)
        lengths = jnp.sum(source_valid_BS, 1)
        cells = [nn.OptimizedLSTMCell(case.width) for _ in range(2)]
        both = [
            nn.RNN(cells[0], return_carry=True),
            nn.RNN(cells[1], return_carry=True, reverse=True, keep_order=True),
        ]
        ends, states = zip(*(rnn(x, seq_lengths=lengths) for rnn in both), strict=True)
        last = jnp.concatenate(jax.tree.leaves(ends), -1)
        values = jnp.concatenate(states, -1)
        carry = tuple(jnp.tanh(nn.Dense(case.width)(last)) for _ in range(2))
        keys = nn.Dense(case.width, use_bias=False)(values)
        scan = nn.scan(
            AttendingCell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(1, nn.broadcast, nn.broadcast, nn.broadcast),
            out_axes=1,
        )
        x = nn.Embed(case.vocab, case.width)(decoder_input_BT)
        _, x = scan(case.width)(carry, x, keys, values, source_valid_BS)
        return nn.Dense(case.vocab)(jnp.tanh(nn.Dense(case.width, use_bias=False)(x)))


def model(case: Case) -> nn.Module:
    kinds = {"lstm": LSTM, "lstm_attention": LSTMAttention}
    return kinds.get(case.kind, Transformer)(case)


def make(case: Case) -> Run:
    module, batch = model(case), case.data
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(LEARNING_RATE))
    params = module.init(jax.random.key(0), **batch.inputs)["params"]
    state = TrainState.create(apply_fn=module.apply, params=params, tx=optimizer)

    @jax.jit
    def train_step(state: TrainState, inputs: Any, labels: Array) -> TrainState:
        def loss(params: Any) -> Array:
            logits = state.apply_fn({"params": params}, **inputs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    return timed(lambda state: train_step(state, batch.inputs, batch.labels), state)

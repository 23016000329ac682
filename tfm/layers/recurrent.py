"""Recurrent cells over time. Padding does not change the state."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.nn import initializers

from tfm.config.names import UserError, pick
from tfm.config.spec import Named
from tfm.layers.attention import MultiHeadAttention
from tfm.layers.context import Auxiliary, Cache, Context, Intermediates, Mixer
from tfm.layers.dims import Affine, Dims, Dropouts, drop
from tfm.ops.fast import add_last, flat_product
from tfm.ops.loops import Dot, scan_time
from tfm.ops.mask import Mask

Carry = Any  # h, or (c, h) of an LSTM
Carries = Sequence[Sequence[Carry]]  # by layer and direction
DIRECTIONS = ("forward", "backward")


def lstm_gates(x: Array, h: Array) -> Intermediates:
    """Returns i, f, g, o, where c′ = f ⊙ c + i ⊙ g and h′ = o ⊙ tanh(c′).  Gers et al. 2000."""
    i, f, g, o = jnp.split(x + h, 4, -1)
    return {"i": nn.sigmoid(i), "f": nn.sigmoid(f), "g": jnp.tanh(g), "o": nn.sigmoid(o)}


def lstm(x: Array, h: Array, carry: Carry) -> Carry:
    gates = lstm_gates(x, h)
    c = gates["f"] * carry[0] + gates["i"] * gates["g"]
    return c, gates["o"] * jnp.tanh(c)


def gru_gates(x: Array, h: Array) -> Intermediates:
    """Returns r, z, n, where h′ = (1 − z) ⊙ n + z ⊙ h.  Cho et al. 2014, eq. 5–8; r as in cuDNN."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = jnp.split(x, 3, -1), jnp.split(h, 3, -1)
    r, z = nn.sigmoid(x_r + h_r), nn.sigmoid(x_z + h_z)
    return {"r": r, "z": z, "n": jnp.tanh(x_n + r * h_n)}


def gru(x: Array, h: Array, carry: Carry) -> Carry:
    gates = gru_gates(x, h)
    return (1 - gates["z"]) * gates["n"] + gates["z"] * carry


def rnn(x: Array, h: Array, carry: Carry) -> Carry:
    """Computes tanh(U x + W h + b).  Elman 1990."""
    return jnp.tanh(x + h)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell: `step(U x + b, W h, carry)` returns the next carry. Products hold all gates side by
    side. The last part of the carry is the hidden state h; a carry of one part is h itself.

    Weights are named as in Flax, "i" + gate and "h" + gate.
    """

    step: Callable[[Array, Array, Carry], Carry]
    names: tuple[str, ...]  # of the gates
    biases: tuple[str, ...]  # of the weights that have one
    carry: tuple[str, ...] = ("hidden",)
    gates: Callable[[Array, Array], Intermediates] | None = None

    def __post_init__(self) -> None:
        weights = [f"{side}{gate}" for side in "ih" for gate in self.names]
        for name in set(self.biases) - set(weights):
            raise UserError(
                f"Cell: biases={self.biases}: there is no weight {name!r}, but {', '.join(weights)}"
            )


CELLS = {
    "rnn": Cell(rnn, ("",), ("i",)),
    "lstm": Cell(lstm, tuple("ifgo"), ("hi", "hf", "hg", "ho"), ("cell", "hidden"), lstm_gates),
    "gru": Cell(gru, tuple("rzn"), ("ir", "iz", "in", "hn"), gates=gru_gates),
}


class Weights(NamedTuple):
    """The weights of all gates, side by side."""

    x: Array
    h: Array
    bias: Array  # of x, and of h if it has no bias of its own
    h_bias: Array | None  # if a gate multiplies the product with h


class CellWeights(nn.Module):
    """The weights of a cell, in the dtype of the computation."""

    cell: str
    dims: Dims

    @nn.compact
    def __call__(self, width: int) -> Weights:
        """Returns the weights for inputs of this width."""
        cell, dims = CELLS[self.cell], self.dims

        def joined(side: str, features: int, init: Any) -> tuple[Array, Array]:
            kernels, biases = [], []
            for name in (f"{side}{gate}" for gate in cell.names):
                gate_weights = Affine((dims.width,), name in cell.biases, init, name=name)
                kernel, bias = gate_weights(features)
                kernels.append(kernel)
                biases.append(jnp.zeros(dims.width) if bias is None else bias)
            return jnp.concatenate(kernels, -1).astype(dims.dtype), jnp.concatenate(biases)

        x, bias = joined("i", width, dims.kernel_init)
        h, h_bias = joined("h", dims.width, initializers.orthogonal())
        if any({f"i{gate}", f"h{gate}"} <= set(cell.biases) for gate in cell.names):
            return Weights(x, h, bias, h_bias)
        return Weights(x, h, bias + h_bias, None)


def hidden(carry: Carry) -> Array:
    return carry[-1] if isinstance(carry, tuple) else carry


def final(carries: Sequence[Carry]) -> Array:
    """Returns the last state of a layer, concatenated over its directions."""
    return jnp.concatenate([hidden(carry) for carry in carries], -1)


def zero_carry(cell: Cell, width: int, batch: int, dtype: Any) -> Carry:
    parts = tuple(jnp.zeros((batch, width), dtype) for _ in cell.carry)
    return parts if len(parts) > 1 else parts[0]


class Attending(NamedTuple):
    """The attention that a cell applies before each step.  Bahdanau et al. 2015."""

    module: MultiHeadAttention
    pos_BT: Array
    keys_values: tuple[Array, Array]
    mask: Mask

    @property
    def width(self) -> int:
        """Width of the context: the heads side by side, without an output projection."""
        values = self.keys_values[1]
        return self.module.spec.heads * values.shape[-1]

    def initialize(self, h_BH: Array) -> None:
        """Creates the parameters of the attention before the loop."""
        self.module.attend(h_BH[:, None], *self.keys_values, q_pos_BT=self.pos_BT[:, :1])

    def args(self, dropouts: Dropouts | None) -> Any:
        """Returns all arrays that `attend` reads."""
        return self.module.variables, self.keys_values, self.mask, dropouts

    def attend(
        self, h_BH: Array, pos_B: Array, args: Any, capture: tuple[str, ...]
    ) -> tuple[Array, Intermediates]:
        """Returns the context of a state (BE) and captured intermediates of its query (BHS,
        BHK)."""
        variables, keys_values, mask, dropouts = args
        dropouts = None if dropouts is None else dropouts.within(pos_B[0])
        context_B1E, captured = self.module.clone(parent=None).apply(
            variables,
            h_BH[:, None],
            *keys_values,
            mask=mask,
            q_pos_BT=pos_B[:, None],
            dropout=None if dropouts is None else dropouts.at("attention"),
            capture=capture,
            method="attend",
        )
        return context_B1E[:, 0], {
            name: x[:, :, 0] if name.endswith("BHTS") else x[:, 0]
            for name, x in captured.items()
            if name not in ("k_BSGK", "v_BSGE")  # the same at each step
        }


def over_time(
    cell: Cell,
    weights: Weights,
    carry: Carry,
    x_BTD: Array,
    valid_BT: Array | None,
    reverse: bool = False,
    attending: Attending | None = None,
    dropouts: Dropouts | None = None,
    capture: tuple[str, ...] = (),
) -> tuple[Carry, Carry, Any]:
    """Runs a cell over time. Returns the last carry, all carries (BTH), and with `attending` the
    contexts and their captured intermediates.

    Products with the inputs are computed before the loop.
    """
    x_TBD = x_BTD.swapaxes(0, 1)
    width = x_TBD.shape[-1]
    kernels = {"h": weights.h}
    if attending is not None:
        kernels["context"] = weights.x[width:]
    x_TBG = flat_product(x_TBD, weights.x[:width]).astype(jnp.float32)
    x_TBG = add_last(x_TBG, weights.bias).astype(x_TBD.dtype)

    def step(dot: Dot, args: Any, carry: Carry, each: Any) -> tuple[Carry, Any]:
        (h_bias, attend_args), (x_BG, valid_B, pos_B) = args, each
        attended = None
        if attending is not None:
            attended = attending.attend(hidden(carry), pos_B, attend_args, capture)
            x_BG = x_BG + dot("context", attended[0])
        h_BG = dot("h", hidden(carry))
        if h_bias is not None:
            h_BG = (h_BG + h_bias[None]).astype(h_BG.dtype)
        new = cell.step(x_BG, h_BG, carry)
        if valid_B is not None:
            new = jax.tree.map(lambda a, b: jnp.where(valid_B[:, None], a, b), new, carry)
        return new, (new, attended)

    attend_args = None if attending is None else attending.args(dropouts)
    pos_TB = None if attending is None else attending.pos_BT.swapaxes(0, 1)
    valid_TB = None if valid_BT is None else valid_BT.swapaxes(0, 1)
    args = weights.h_bias, attend_args
    last, outputs = scan_time(step, kernels, args, carry, (x_TBG, valid_TB, pos_TB), reverse)
    carries, attended = jax.tree.map(lambda x: x.swapaxes(0, 1), outputs)
    return last, carries, attended


class RecurrentStack(nn.Module):
    """N layers of one cell; with `bidirectional`, each has a second cell that runs backward.

    Padding does not change the state, so the last state is that of the last real token. With two
    directions, H holds them side by side.
    """

    cell: str
    dims: Dims  # with the width of the state
    layers: int = 1
    bidirectional: bool = False

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        *,
        valid_BT: Array | None = None,
        start: Carries | None = None,
        attending: Attending | None = None,
        dropouts: Dropouts | None = None,
        capture: tuple[str, ...] = (),
    ) -> tuple[Array, Carries, Intermediates]:
        """Returns the states of the last layer (BTH), the last carries, and intermediates stacked
        over layers (N).

        Carries start at `start`, by default zero. With `attending` the cell of the first layer
        attends before each step, and intermediates include "context_BTE" and "weights_BHTS".
        """
        kind, dims = CELLS[self.cell], self.dims
        last: list[list[Carry]] = []
        each: list[Intermediates] = []
        attended: Intermediates = {}
        for n in range(self.layers):
            x_BTD = drop(x_BTD, dropouts, "residual", f"layer_{n}") if n else x_BTD
            ends: list[Carry] = []
            halves: list[Intermediates] = []
            for d, direction in enumerate(DIRECTIONS[: 1 + self.bidirectional]):
                zeros = zero_carry(kind, dims.width, x_BTD.shape[0], x_BTD.dtype)
                begin = zeros if start is None else start[n][d]
                first = None if n else attending
                context_width = 0 if first is None else first.width
                cell_weights = CellWeights(self.cell, dims, name=f"{direction}_{n}")
                weights = cell_weights(x_BTD.shape[-1] + context_width)
                if first is not None and self.is_initializing():
                    first.initialize(hidden(begin))
                end, carries, out = over_time(
                    kind, weights, begin, x_BTD, valid_BT, d == 1, first, dropouts, capture
                )
                if first is not None:
                    attended = {
                        name: x.swapaxes(1, 2) if name.endswith("BHTS") else x
                        for name, x in {"context_BTE": out[0], **out[1]}.items()
                    }
                    x_BTD = jnp.concatenate([x_BTD, out[0]], -1)
                ends.append(end)
                halves.append({"states_NBTH": hidden(carries)})
                if "gates" in capture:
                    halves[d] |= _gates(kind, weights, begin, carries, x_BTD, d == 1)
            last.append(ends)
            each.append(jax.tree.map(lambda *both: jnp.concatenate(both, -1), *halves))
            x_BTD = each[n]["states_NBTH"]
        intermediates = jax.tree.map(lambda *layers: jnp.stack(layers), *each) if capture else {}
        if "states" not in capture:
            intermediates.pop("states_NBTH", None)
        return x_BTD, last, intermediates | attended


def _gates(
    kind: Cell, weights: Weights, begin: Carry, carries: Carry, x_BTD: Array, reverse: bool
) -> Intermediates:
    """Recomputes the gates of all steps at once, from the inputs and the previous states."""
    if kind.gates is None:
        return {}
    first_BTH, h_BTH = hidden(begin)[:, None], hidden(carries)
    before = [h_BTH[:, 1:], first_BTH] if reverse else [first_BTH, h_BTH[:, :-1]]
    h_BTG = flat_product(jnp.concatenate(before, 1), weights.h)
    if weights.h_bias is not None:
        h_BTG = h_BTG + weights.h_bias[None, None]
    x_BTG = flat_product(x_BTD, weights.x) + weights.bias[None, None]
    gates = kind.gates(x_BTG.astype(x_BTD.dtype), h_BTG.astype(x_BTD.dtype))
    named = {f"gate_{gate}_NBTH": value for gate, value in gates.items()}
    return named | ({"cells_NBTH": carries[0]} if isinstance(carries, tuple) else {})


class InitialState(nn.Module):
    """The initial state of each decoder layer: tanh(W v + b).  Bahdanau et al. 2015, A.2.2."""

    cell: str
    dims: Dims

    @nn.compact
    def __call__(self, vectors: Sequence[Array]) -> Carries:
        """Returns carries from one vector (BD) for each layer."""
        parts = CELLS[self.cell].carry
        each = [
            tuple(
                jnp.tanh(self.dims.dense(self.dims.width, name=f"{part}_{n}")(v)) for part in parts
            )
            for n, v in enumerate(vectors)
        ]
        return [[carry if len(parts) > 1 else carry[0]] for carry in each]


class RecurrentMixer(nn.Module):
    """A cell over the tokens, and unless causal a second one that runs backward."""

    dims: Dims
    cell: str

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        stack = RecurrentStack(self.cell, self.dims, 1, not self.dims.causal, name="recurrent")
        start = None if cache is None else [[cache]]
        details = "details" in context.capture
        capture = ("states", "gates") if details and CELLS[self.cell].gates else ()
        x_BTH, last, stacked = stack(x_BTD, valid_BT=context.valid_BT, start=start, capture=capture)
        intermediates = {name.replace("_NB", "_B"): x[0] for name, x in stacked.items()}
        if "states_BTH" in intermediates:
            intermediates["cell_states_BTH"] = intermediates.pop("states_BTH")
        out = self.dims.dense(self.dims.width, kernel_init=self.dims.residual_init, name="out")
        auxiliary = Auxiliary(intermediates=intermediates)
        return out(x_BTH), None if cache is None else last[0][0], auxiliary

    def init_cache(self, batch: int, length: int) -> Cache:
        return zero_carry(CELLS[self.cell], self.dims.width, batch, self.dims.dtype)


def recurrent(cell: str = "gru") -> Mixer:
    """Runs a recurrent network over the tokens, in both directions unless causal.  Elman 1990."""
    pick(CELLS, cell, "recurrent: cell")
    return Mixer(
        lambda spec, dims, position, **options: RecurrentMixer(dims, cell, **options),
        uses=((CELLS, Named.of(cell, CELLS[cell])),),
    )

"""Cells over time: a state is carried from step to step, and padding is stepped over."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp

from tfm.layers.attention import MultiHeadAttention
from tfm.layers.context import Auxiliary, Cache, Context, Intermediates
from tfm.layers.dims import Dims
from tfm.ops.dropout import Dropouts, drop
from tfm.ops.masks import Mask

Carry = Any  # h, or (c, h) of an LSTM
Carries = Sequence[Sequence[Carry]]  # by layer and direction
DIRECTIONS = ("forward", "backward")


def lstm_gates(params: Any, x_BTD: Array, h_BTH: Array) -> Intermediates:
    """i, f, g, o, where c′ = f ⊙ c + i ⊙ g and h′ = o ⊙ tanh(c′).  Gers et al. 2000."""
    fns = {"i": nn.sigmoid, "f": nn.sigmoid, "g": jnp.tanh, "o": nn.sigmoid}
    return {
        gate: fn(_affine(params[f"i{gate}"], x_BTD) + _affine(params[f"h{gate}"], h_BTH))
        for gate, fn in fns.items()
    }


def gru_gates(params: Any, x_BTD: Array, h_BTH: Array) -> Intermediates:
    """r, z, n, where h′ = (1 − z) ⊙ n + z ⊙ h.  Cho et al. 2014, eq. 5–8; r after W, as cuDNN."""
    x = {gate: _affine(params[f"i{gate}"], x_BTD) for gate in "rzn"}
    h = {gate: _affine(params[f"h{gate}"], h_BTH) for gate in "rzn"}
    r, z = nn.sigmoid(x["r"] + h["r"]), nn.sigmoid(x["z"] + h["z"])
    return {"r": r, "z": z, "n": jnp.tanh(x["n"] + r * h["n"])}


def _affine(params: Any, x_BTD: Array) -> Array:
    y_BTH = x_BTD @ params["kernel"].astype(x_BTD.dtype)
    return y_BTH + params["bias"].astype(y_BTH.dtype)[None, None] if "bias" in params else y_BTH


class Cell(NamedTuple):
    """A cell of Flax, what it carries, and its gates as a function of what went into them."""

    make: Callable[..., Any]
    carry: tuple[str, ...] = ("hidden",)
    gates: Callable[[Any, Array, Array], Intermediates] | None = None


CELLS = {
    "rnn": Cell(nn.SimpleCell),  # tanh(U x + W h + b).  Elman 1990
    "lstm": Cell(nn.OptimizedLSTMCell, ("cell", "hidden"), lstm_gates),
    "gru": Cell(nn.GRUCell, gates=gru_gates),
}


def hidden(carry: Carry) -> Array:
    return carry[-1] if isinstance(carry, tuple) else carry


def final(carries: Sequence[Carry]) -> Array:
    """A layer's last state; beside it, if it has two directions, the first one backwards."""
    return jnp.concatenate([hidden(carry) for carry in carries], -1)


def zero_carry(cell: Cell, width: int, batch: int, dtype: Any) -> Carry:
    parts = tuple(jnp.zeros((batch, width), dtype) for _ in cell.carry)
    return parts if len(parts) > 1 else parts[0]


class Attending(NamedTuple):
    """What a cell attends to before each step.  Bahdanau et al. 2015."""

    module: MultiHeadAttention
    pos_BT: Array
    keys_values: tuple[Array, Array]
    mask: Mask


class AttendingCell(nn.Module):
    """A cell that reads, beside its input, what its previous state attends to."""

    cell: nn.Module
    attention: MultiHeadAttention
    return_weights: bool

    def __call__(
        self,
        carry: Carry,
        x: tuple[Array, Array],
        keys_values: tuple[Array, Array],
        mask: Mask,
        dropouts: Dropouts | None,
    ) -> Any:
        x_BD, pos_B = x
        dropouts = None if dropouts is None else dropouts.within(pos_B[0])
        found_BTE, weights_BHTS = self.attention.attend(
            hidden(carry)[:, None],
            *keys_values,
            mask=mask,
            q_pos_BT=pos_B[:, None],
            dropout=None if dropouts is None else dropouts.at("attention"),
            return_weights=self.return_weights,
        )
        carry, _ = self.cell(carry, jnp.concatenate([x_BD, found_BTE[:, 0]], -1))
        return carry, (found_BTE[:, 0], None if weights_BHTS is None else weights_BHTS[:, :, 0])


def over_time(
    cell: nn.Module, carry: Carry, x: Any, valid_BT: Array | None, reverse: bool, *args: Any
) -> tuple[Carry, Carry, Any]:
    """The last carry, all of them (BTH), and what the cell returned; x is BT… arrays."""

    def step(cell, carry, x, valid_B, *args):
        new, out = cell(carry, x, *args)
        if valid_B is not None:
            new = jax.tree.map(lambda a, b: jnp.where(valid_B[:, None], a, b), new, carry)
        return new, (new, out if args else None)

    scan = nn.scan(
        step,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=(1, 1, *(nn.broadcast for _ in args)),
        out_axes=1,
        reverse=reverse,
    )
    last, (carries, out) = scan(cell, carry, x, valid_BT, *args)
    return last, carries, out


class RecurrentStack(nn.Module):
    """N layers of one cell; in each, with `bidirectional`, a second that runs backwards.

    A padded step leaves the state as it is, so the last state is that of the last real token, and
    a cell that runs backwards comes to it with the state that it started with. Where there are two
    directions, H holds them side by side.
    """

    cell: str
    dims: Dims  # whose width is the state's
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
        """States BTH of the last layer; the last carries; intermediates, stacked over layers (N).

        `start` is where the carries start, else at zero. With `attending` the first layer's cell
        attends before each step, and "context_BTE" and "weights_BHTS" say what it found.
        """
        kind, dims = CELLS[self.cell], self.dims
        last: list[list[Carry]] = []
        each: list[Intermediates] = []
        found: Intermediates = {}
        for n in range(self.layers):
            x_BTD = drop(x_BTD, dropouts, "residual", f"layer_{n}") if n else x_BTD
            ends: list[Carry] = []
            halves: list[Intermediates] = []
            for d, direction in enumerate(DIRECTIONS[: 1 + self.bidirectional]):
                name = f"{direction}_{n}"
                cell = kind.make(
                    dims.width, kernel_init=dims.kernel_init, dtype=dims.dtype, name=name
                )
                zeros = zero_carry(kind, dims.width, x_BTD.shape[0], x_BTD.dtype)
                begin = zeros if start is None else start[n][d]
                if attending is None or n:
                    end, carries, _ = over_time(cell, begin, x_BTD, valid_BT, d == 1)
                else:
                    both = AttendingCell(cell, attending.module, "weights" in capture)
                    args = attending.keys_values, attending.mask, dropouts
                    x = x_BTD, attending.pos_BT
                    end, carries, out = over_time(both, begin, x, valid_BT, d == 1, *args)
                    found = {"context_BTE": out[0]}
                    found |= {} if out[1] is None else {"weights_BHTS": out[1].swapaxes(1, 2)}
                    x_BTD = jnp.concatenate([x_BTD, out[0]], -1)
                ends.append(end)
                halves.append({"states_NBTH": hidden(carries)})
                if "gates" in capture:
                    halves[d] |= _gates(kind, cell, begin, carries, x_BTD, d == 1)
            last.append(ends)
            each.append(jax.tree.map(lambda *both: jnp.concatenate(both, -1), *halves))
            x_BTD = each[n]["states_NBTH"]
        intermediates = jax.tree.map(lambda *layers: jnp.stack(layers), *each) if capture else {}
        if "states" not in capture:
            intermediates.pop("states_NBTH", None)
        return x_BTD, last, intermediates | found


def _gates(
    kind: Cell, cell: nn.Module, begin: Carry, carries: Carry, x_BTD: Array, reverse: bool
) -> Intermediates:
    """The gates of all steps at once, from their inputs and the states they started with."""
    if kind.gates is None:
        return {}
    first_BTH, h_BTH = hidden(begin)[:, None], hidden(carries)
    before = [h_BTH[:, 1:], first_BTH] if reverse else [first_BTH, h_BTH[:, :-1]]
    gates = kind.gates(cell.variables["params"], x_BTD, jnp.concatenate(before, 1))
    found = {f"gate_{gate}_NBTH": value for gate, value in gates.items()}
    return found | ({"cells_NBTH": carries[0]} if isinstance(carries, tuple) else {})


class Start(nn.Module):
    """Where the layers of a decoder start: tanh(W v + b).  Bahdanau et al. 2015, A.2.2."""

    cell: str
    dims: Dims

    @nn.compact
    def __call__(self, vectors: Sequence[Array]) -> Carries:
        """From a vector BD for each layer."""
        parts = CELLS[self.cell].carry
        each = [
            tuple(
                jnp.tanh(self.dims.dense(self.dims.width, name=f"{part}_{n}")(v)) for part in parts
            )
            for n, v in enumerate(vectors)
        ]
        return [[carry if len(parts) > 1 else carry[0]] for carry in each]


class RecurrentMixer(nn.Module):
    """A cell over the tokens; where both sides may be seen, a second one runs backwards."""

    dims: Dims
    cell: str

    @nn.compact
    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache = None
    ) -> tuple[Array, Cache, Auxiliary]:
        stack = RecurrentStack(self.cell, self.dims, 1, not self.dims.causal, name="recurrent")
        start = None if cache is None else [[cache]]
        x_BTH, last, _ = stack(x_BTD, valid_BT=context.valid_BT, start=start)
        out = self.dims.dense(self.dims.width, kernel_init=self.dims.residual_init, name="out")
        return out(x_BTH), None if cache is None else last[0][0], Auxiliary()

    def init_cache(self, batch: int, length: int) -> Cache:
        return zero_carry(CELLS[self.cell], self.dims.width, batch, self.dims.dtype)

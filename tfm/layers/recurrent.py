"""Cells over time: a state is carried from step to step, and padding is stepped over."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from tfm.layers.block import Made
from tfm.layers.initial import Initial
from tfm.names import pick
from tfm.ops.dropout import Dropouts, drop

Carry = Any  # h, or (c, h) of an LSTM
Carries = Sequence[Sequence[Carry]]  # by layer and direction
DIRECTIONS = ("forward", "backward")


def lstm_gates(params: Any, x_BTD: Array, h_BTH: Array) -> Made:
    """i, f, g, o, where c′ = f ⊙ c + i ⊙ g and h′ = o ⊙ tanh(c′).  Gers et al. 2000."""
    fns = {"i": nn.sigmoid, "f": nn.sigmoid, "g": jnp.tanh, "o": nn.sigmoid}
    return {
        gate: fn(_affine(params[f"i{gate}"], x_BTD) + _affine(params[f"h{gate}"], h_BTH))
        for gate, fn in fns.items()
    }


def gru_gates(params: Any, x_BTD: Array, h_BTH: Array) -> Made:
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
    gates: Callable[[Any, Array, Array], Made] | None = None


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


class Look(NamedTuple):
    """What a cell reads beside its input: `at(h_BTH, pos_BT=…, **given)`, asked before each step.

    It answers with the context BTE, and weights BHTS or None.
    """

    at: nn.Module
    pos_BT: Array
    given: Mapping[str, Any]


class Looking(nn.Module):
    """A cell whose input is joined by what its previous state looks up."""

    cell: nn.Module
    at: nn.Module

    def __call__(self, carry: Carry, x: tuple[Array, Array], given: Mapping[str, Any]) -> Any:
        x_BD, pos_B = x
        h_BTH, pos_BT = hidden(carry)[:, None], pos_B[:, None]
        context_BTE, weights_BHTS = self.at(h_BTH, pos_BT=pos_BT, **given)
        carry, _ = self.cell(carry, jnp.concatenate([x_BD, context_BTE[:, 0]], -1))
        return carry, (context_BTE[:, 0], None if weights_BHTS is None else weights_BHTS[:, :, 0])


def over_time(
    cell: nn.Module, carry: Carry, x: Any, valid_BT: Array | None, reverse: bool, *given: Any
) -> tuple[Carry, Carry, Any]:
    """The last carry, all of them (BTH), and what the cell returned; x is BT… arrays."""

    def step(cell, carry, x, valid_B, *given):
        new, out = cell(carry, x, *given)
        if valid_B is not None:
            new = jax.tree.map(lambda a, b: jnp.where(valid_B[:, None], a, b), new, carry)
        return new, (new, out if given else None)

    scan = nn.scan(
        step,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=(1, 1, *(nn.broadcast for _ in given)),
        out_axes=1,
        reverse=reverse,
    )
    last, (carries, out) = scan(cell, carry, x, valid_BT, *given)
    return last, carries, out


class RecurrentStack(nn.Module):
    """N layers of one cell; in each, with `bidirectional`, a second that runs backwards.

    A padded step leaves the state as it is, so the last state is that of the last real token, and
    a cell that runs backwards comes to it with the state that it began with. Where there are two
    directions, H holds them side by side.
    """

    cell: str
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    initial: Initial = Initial()
    dtype: DTypeLike | None = None  # of the computation; parameters are float32

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        *,
        valid_BT: Array | None = None,
        start: Carries | None = None,
        look: Look | None = None,
        dropouts: Dropouts | None = None,
        want: tuple[str, ...] = (),
    ) -> tuple[Array, Carries, Made]:
        """States BTH of the last layer; the last carries; what was wanted, stacked over layers (N).

        `start` is where the carries begin, else at zero. The first layer may `look` at more than
        its input, then "context_BTE" and "weights_BHTS" say what it found.
        """
        kind = pick(CELLS, self.cell, "cell")
        last: list[list[Carry]] = []
        each: list[Made] = []
        found: Made = {}
        for n in range(self.layers):
            x_BTD = drop(x_BTD, dropouts, "residual", f"layer_{n}") if n else x_BTD
            ends: list[Carry] = []
            halves: list[Made] = []
            for d, direction in enumerate(DIRECTIONS[: 1 + self.bidirectional]):
                init, name = self.initial.kernel, f"{direction}_{n}"
                cell = kind.make(self.hidden, kernel_init=init, dtype=self.dtype, name=name)
                begin = _zeros(cell, x_BTD) if start is None else start[n][d]
                if look is None or n:
                    end, carries, _ = over_time(cell, begin, x_BTD, valid_BT, d == 1)
                else:
                    both, x = Looking(cell, look.at), (x_BTD, look.pos_BT)
                    end, carries, out = over_time(both, begin, x, valid_BT, d == 1, look.given)
                    found = {"context_BTE": out[0]}
                    found |= {} if out[1] is None else {"weights_BHTS": out[1].swapaxes(1, 2)}
                    x_BTD = jnp.concatenate([x_BTD, out[0]], -1)
                ends.append(end)
                halves.append({"states_NBTH": hidden(carries)})
                if "gates" in want:
                    halves[d] |= _gates(kind, cell, begin, carries, x_BTD, d == 1)
            last.append(ends)
            each.append(jax.tree.map(lambda *both: jnp.concatenate(both, -1), *halves))
            x_BTD = each[n]["states_NBTH"]
        made = jax.tree.map(lambda *layers: jnp.stack(layers), *each) if want else {}
        if "states" not in want:
            made.pop("states_NBTH", None)
        return x_BTD, last, made | found


def _zeros(cell: Any, x_BTD: Array) -> Carry:
    carry = cell.initialize_carry(jax.random.key(0), x_BTD[:, 0].shape)
    return jax.tree.map(lambda part: part.astype(x_BTD.dtype), carry)


def _gates(
    kind: Cell, cell: nn.Module, begin: Carry, carries: Carry, x_BTD: Array, reverse: bool
) -> Made:
    """The gates of all steps at once, from their inputs and the states they began with."""
    if kind.gates is None:
        return {}
    first_BTH, h_BTH = hidden(begin)[:, None], hidden(carries)
    before = [h_BTH[:, 1:], first_BTH] if reverse else [first_BTH, h_BTH[:, :-1]]
    gates = kind.gates(cell.variables["params"], x_BTD, jnp.concatenate(before, 1))
    made = {f"gate_{gate}_NBTH": value for gate, value in gates.items()}
    return made | ({"cells_NBTH": carries[0]} if isinstance(carries, tuple) else {})


class Start(nn.Module):
    """Where the layers of a decoder begin: tanh(W v + b).  Bahdanau et al. 2015, A.2.2."""

    cell: str
    hidden: int
    initial: Initial = Initial()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, vectors: Sequence[Array]) -> Carries:
        """From a vector BD for each layer."""
        parts = pick(CELLS, self.cell, "cell").carry

        def begin(v_BD: Array, name: str) -> Array:
            init = self.initial.kernel
            dense = nn.Dense(self.hidden, kernel_init=init, dtype=self.dtype, name=name)
            return jnp.tanh(dense(v_BD))

        each = [tuple(begin(v, f"{part}_{n}") for part in parts) for n, v in enumerate(vectors)]
        return [[carry if len(parts) > 1 else carry[0]] for carry in each]

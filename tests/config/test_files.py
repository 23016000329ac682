import dataclasses
import textwrap

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from tfm.config import files as config
from tfm.config.names import UserError
from tfm.config.spec import Spec, replaced, size, to_spec
from tfm.models.spec import ModelSpec, model_spec
from tfm.ops.scores import SCORES
from tfm.run import spec as train
from tfm.run.spec import RunSpec

IDEA = """
    from jax.nn import initializers
    from jax import numpy as jnp
    from ml_collections import ConfigDict
    from tfm.ops.scores import Score


    def near(q_BTHK, k_BSHK, *, w_HKJ, slope_H, q_pos_BT, k_pos_BS, **at):
        content = jnp.einsum("BTHK,HKJ,BSHJ->BHTS", q_BTHK, w_HKJ, k_BSHK)
        distance = jnp.abs(q_pos_BT[:, None, :, None] - k_pos_BS[:, None, None])
        return content - slope_H[None, :, None, None] * distance


    SCORES = {"near": Score(near, params={"w_HKJ": initializers.lecun_normal(),
                                          "slope_H": initializers.zeros})}


    def get_config(score="near"):
        return ConfigDict({"model": {"family": "decoder", "vocab": 12, "width": 16, "layers": 1,
                                     "max_length": 12, "position": {"scheme": "sinusoidal"},
                                     "attention": {"heads": 2, "score": score},
                                     "feedforward": {"width": 16}}})
"""


@pytest.fixture
def write(tmp_path, own_tables):
    """Writes a config file."""

    def write(text, name="idea.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def model(loaded):
    return model_spec(loaded.to_dict()).build()


def test_a_score_of_ones_own_trains_without_touching_the_library(write):
    """One function, one table line, one config value: here it learns to look one step back."""
    module = model(config.load(write(IDEA)))
    tokens = jax.random.randint(jax.random.key(0), (16, 12), 0, 12)
    before = jnp.roll(tokens, 1, axis=1)
    params = start = module.init(jax.random.key(1), tokens)["params"]
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state):
        def loss(params):
            logits = module.apply({"params": params}, tokens)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, before)
            return jnp.mean(each[:, 1:])

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _ in range(200):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
    layer = lambda params: params["decoder"]["layers"]["attention"]
    for name in ("score_w_HKJ", "score_slope_H"):
        assert np.any(layer(params)[name] != layer(start)[name])


def test_arguments_of_get_config(write):
    path = write(IDEA)
    assert config.load(f"{path}:dot").model.attention.score == "dot"
    plain = write(
        "from ml_collections import ConfigDict\nget_config = lambda: ConfigDict()", "b.py"
    )
    with pytest.raises(UserError, match="takes no argument"):
        config.load(f"{plain}:x")
    needs = write("def get_config(size): ...", "c.py")
    with pytest.raises(UserError, match="needs an argument: write .*c.py:ARGUMENT"):
        config.load(needs)


def test_configs_are_locked(write):
    with pytest.raises(AttributeError, match="did you mean|Did you mean"):
        config.load(write(IDEA)).model.attention.haeds = 3


def test_loading_twice_is_fine_and_an_edit_counts(write):
    config.load(write(IDEA))
    first = SCORES["near"]
    config.load(write(IDEA.replace("content - slope_H", "content + slope_H")))
    assert SCORES["near"] is not first


TABLES = """
    from flax import linen as nn
    from jax import numpy as jnp
    from ml_collections import ConfigDict
    from tfm.data.datasets import DATASETS as known
    from tfm.layers.context import Auxiliary
    from tfm.layers.context import Mixer
    from tfm.layers.norm import Norm
    from tfm.objectives.next_token import NextToken
    from tfm.ops.masks import predicate
    from tfm.ops.normalizers import Normalizer
    from tfm.ops.positions import Position
    from tfm.ops.scores import Score, dot

    def steep(slope=2.0):
        distance = lambda t, s: jnp.abs(t[:, None, :, None] - s[:, None, None])
        return Position(bias=lambda t, s, heads: -slope * distance(t, s))

    class Doubled(nn.Module):
        spec: object
        dims: object

        def __call__(self, x_BTD, dropouts=None):
            return 2 * x_BTD, {}

    class Shift(nn.Module):
        def __call__(self, x_BTD, context, cache=None):
            return jnp.pad(x_BTD, ((0, 0), (1, 0), (0, 0)))[:, :-1], cache, Auxiliary()

    def shift():
        return Mixer(lambda spec, dims, position, **options: Shift(**options))

    def short(vocab=9):
        return known["copy"](length=3, vocab=vocab)

    SCORES = {"half": Score(lambda q, k, **at: dot(q, k) / 2)}
    MASKS = {"even": predicate(lambda t, s: (t - s) % 2 == 0)}
    NORMALIZERS = {"positive": Normalizer(each=lambda x: jnp.maximum(x, 0))}
    POSITIONS = {"steep": steep}
    JOINS = {"subtract": lambda x, table: x - table}
    NORMS = {"halved": Norm(lambda spec, dtype, name, x, valid, train: x / 2)}
    MIXERS = {"shift": shift}
    FEEDFORWARDS = {"doubled": Doubled}
    DATASETS = {"short": short}
    OBJECTIVES = {"mine": NextToken()}

    def get_config():
        return ConfigDict({
            "objective": "mine",
            "data": {"dataset": "short(vocab=8)", "examples": 4, "valid_examples": 4},
            "train": {"steps": 1},
            "model": {
                "family": "decoder", "vocab": 9, "width": 8, "layers": 1, "max_length": 8,
                "mask": "causal & ~even", "position": {"scheme": "steep(slope=0.5)"},
                "attention": {"heads": 2, "score": "half", "normalizer": "positive"},
                "feedforward": {"width": 8}}})
"""


def test_every_table_takes_new_entries(write):
    loaded = config.load(write(TABLES))
    tokens = jnp.arange(6)[None]
    (_, made), _ = model(loaded).init_with_output(jax.random.key(1), tokens, capture=("weights",))
    weights = made["weights_NBHTS"]
    shown = np.subtract.outer(np.arange(6), np.arange(6))
    assert not np.any(np.asarray(weights)[..., (shown < 0) | (shown % 2 == 0)])
    assert np.any(weights)
    run = train.read(loaded.to_dict())
    assert train.open_data(run)[1]["train"].vocab == 8
    tree = replaced(RunSpec, loaded.to_dict(), {
        "model.mixer": "shift", "model.norm.kind": "halved", "model.feedforward.kind": "doubled",
        "model.mask": "causal", "model.position.scheme": "learned",
        "model.position.join": "subtract",
    })  # fmt: skip
    spec = train.read(tree).model
    x, tokens = jnp.arange(72.0).reshape(9, 8), jnp.array([[3, 1, 2]])
    table = jnp.ones((8, 8))
    params = {"embed": {"token": {"embedding": x}}, "decoder": {"table": {"table_w_LD": table}}}
    # x − 1; x + (x before) / 2; x + 2 · x / 2; halved at the end
    states = np.asarray(x[tokens] - 1)
    states = states + np.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1] / 2
    states = (states + states) / 2
    logits = spec.build().apply({"params": params}, tokens)
    np.testing.assert_allclose(logits, states @ x.T, rtol=1e-5)


def test_user_entries_are_known_by_file_and_source(write):
    """Names in a spec that come from a user's table, with a digest that changes with the code."""
    path = write(TABLES)
    spec = train.read(config.load(path).to_dict())
    found = config.user_entries(spec)
    assert set(found) == {
        "SCORES.half", "MASKS.even", "NORMALIZERS.positive", "POSITIONS.steep", "DATASETS.short",
        "OBJECTIVES.mine",
    }  # fmt: skip
    assert {entry.file for entry in found.values()} == {path}
    write(TABLES.replace("dot(q, k) / 2", "dot(q, k) / 3"))
    again = config.user_entries(train.read(config.load(path).to_dict()))
    changed = {name for name in found if found[name].digest != again[name].digest}
    assert changed == {"SCORES.half"}


def test_names_that_are_taken_are_refused(write):
    with pytest.raises(UserError, match=r"SCORES\['dot'\] is taken by the library"):
        config.load(write(IDEA.replace('{"near"', '{"dot"')))
    config.load(write(IDEA))
    with pytest.raises(UserError, match=r"SCORES\['near'\] is taken by .*idea.py"):
        config.load(write(IDEA, "other.py"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:", r"idea.py, line 1: "),
        ("x = 1", "defines no get_config"),
        ("def get_config(): return {}", "returns dict, not a ConfigDict"),
        (
            "def get_config(): 1 / 0",
            "get_config.. of .*idea.py cannot be run: ZeroDivision",
        ),
        ("import nowhere", "idea.py cannot be run: ModuleNotFoundError: .*nowhere.*line 1"),
        ("SCORES = {'f': print}\ndef get_config(): ...", r"SCORES\['f'\] must be a Score, not"),
        ("SCORES = [1]\ndef get_config(): ...", r"SCORES must be a dict of names, not \[1\]"),
        ("MASKS = {'f': 3}\ndef get_config(): ...", r"MASKS\['f'\] must be a Mask or a function"),
        ("NORMS = {'f': 3}\ndef get_config(): ...", r"NORMS\['f'\] must be a Norm, not 3"),
        ("FEEDFORWARDS = {'f': 3}\ndef get_config(): ...", r"FEEDFORWARDS\['f'\] must be a type"),
        ("SCORES = {'a b': 1}\ndef get_config(): ...", r"SCORES\['a b'\]: its name must be a word"),
    ],
)
def test_files_that_cannot_be_loaded_are_named(write, text, message):
    with pytest.raises(UserError, match=message):
        config.load(write(text))


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"no Python file .*nowhere.py"):
        config.load("nowhere.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Spec):
    b: int = size(1)
    rate: float | None = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer(Spec):
    a: Inner = Inner()
    name: str = "x"
    sizes: tuple[int, ...] = (1, 2)
    names: tuple[str, ...] = ("a",)
    on: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithModel(Spec):
    model: ModelSpec


def given(*argv, default=None):
    return config.from_command_line(argv, Outer, {} if default is None else default)


class TestCommandLine:
    def test_overrides(self):
        default = {"a": {"b": 1}, "name": "z"}
        argv = ["--config.a.b=3", "--config.a.rate=2", "--config.sizes=(4, 5, 6)"]
        got = given(*argv, "--config.name=y", default=default)
        assert got == {"a": {"b": 3, "rate": 2}, "name": "y", "sizes": (4, 5, 6)}
        assert to_spec(Outer, got) == Outer(a=Inner(b=3, rate=2.0), name="y", sizes=(4, 5, 6))
        assert default == {"a": {"b": 1}, "name": "z"}

    def model(self, path, *argv):
        tree = config.from_command_line([f"--config={path}", *argv], WithModel)
        return to_spec(WithModel, tree).model

    def test_a_file_and_overrides(self, write):
        spec = self.model(f"{write(IDEA)}:dot", "--config.model.attention.heads=4")
        assert (spec.attention.score, spec.attention.heads) == ("dot", 4)

    def test_keys_left_to_their_defaults_can_be_overridden(self, write):
        argv = ["--config.model.attention.kv_heads=1", "--config.model.attention.cap=30",
                "--config.model.norm.placement=post",
                "--config.model.dropout.residual=0.1"]  # fmt: skip
        spec = self.model(write(IDEA), *argv)
        assert (spec.attention.kv_heads, spec.attention.cap) == (1, 30.0)
        assert (spec.norm.placement, spec.rates) == ("post", {"residual": 0.1})

    def test_a_config_of_its_own_is_needed_where_there_is_no_default(self):
        with pytest.raises(UserError, match="which config. Write --config=FILE"):
            config.from_command_line([], Outer)
        with pytest.raises(UserError, match="--config is given 2 times"):
            config.from_command_line(["--config=a.py", "--config=b.py"], Outer)

    def test_how_values_are_spelled(self):
        got = given("--config.on=true", "--config.names=b,c", "--config.a.rate=None",
                    "--config.name=3")  # fmt: skip
        assert got == {"on": True, "names": ("b", "c"), "a": {"rate": None}, "name": "3"}
        assert given("--config.names=('d',)", "--config.names=e")["names"] == ("e",)

    def test_what_is_on_can_be_switched_off(self, write):
        path, on = write(IDEA), "--config.model.dropout.residual=0.1"
        assert self.model(path, on).rates == {"residual": 0.1}
        off = ["--config.model.dropout.residual=None", "--config.model.norm.final=False"]
        spec = self.model(path, on, *off)
        assert (spec.rates, spec.norm.final) == ({}, False)
        with pytest.raises(UserError, match="model.width must be int, not None"):
            self.model(path, "--config.model.width=None")

    def test_a_group_that_was_left_out_can_be_begun(self, write):
        path = write(IDEA.replace('"family": "decoder"', '"family": "encoder_decoder"'))
        assert self.model(path, "--config.model.cross.heads=4").cross.heads == 4
        with pytest.raises(UserError, match="missing key 'model.cross.heads'"):
            self.model(path, "--config.model.cross.score=dot")

    def test_another_family(self, write):
        """Keys that both have are kept, the others are dropped, new ones may be set at once."""
        argv = ["--config.model.hidden=6", "--config.model.family=recurrent"]
        spec = self.model(write(IDEA), *argv)
        assert (spec.family, spec.width, spec.hidden, spec.layers) == ("recurrent", 16, 6, 1)
        with pytest.raises(UserError, match="unknown key 'model.max_length'"):
            self.model(write(IDEA), *argv, "--config.model.max_length=3")
        with pytest.raises(UserError, match="unknown model.family 'recurent'; did you mean 'recu"):
            self.model(write(IDEA), "--config.model.family=recurent")

    def test_mistakes_in_a_file_are_named(self, write):
        path = write(IDEA.replace('"layers": 1', '"layer": 1'))
        with pytest.raises(
            UserError, match=r"unknown key 'model.layer'; did you mean 'model.layers'"
        ):
            self.model(path)

    @pytest.mark.parametrize(
        ("arg", "message"),
        [
            ("--config.a.c=1", "--config: unknown key 'a.c'; did you mean 'a.b'|known: a.b, a.rat"),
            ("--config.nam=1", "unknown key 'nam'; did you mean 'name"),
            ("--config.a=3", "'a' is a group; set one of: a.b, a.rate"),
            ("--config.sizes.x=3", "unknown key 'sizes.x': 'sizes' is a value, not a group"),
            ("--confg.a=1", "cannot read '--confg.a=1'"),
            ("--config.a.b", "cannot read '--config.a.b'; write --config=FILE or --config.KEY=VAL"),
            ("a=1", "cannot read 'a=1'"),
        ],
    )
    def test_what_is_wrong_is_named(self, arg, message):
        with pytest.raises(UserError, match=message):
            given(arg)

    @pytest.mark.parametrize(
        ("arg", "message"),
        [
            ("--config.a.b=x", "a.b must be int, not 'x'"),
            ("--config.a.b=1.5", "a.b must be int, not 1.5"),
            ("--config.a.b=0", "a.b=0 must be at least 1"),
            ("--config.on=yes", "on must be bool, not 'yes'"),
            ("--config.sizes=a,b", r"sizes\[0\] must be int, not 'a'"),
        ],
    )
    def test_values_of_another_type_are_named(self, arg, message):
        with pytest.raises(UserError, match=message):
            to_spec(Outer, given(arg))


def test_json_configs(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": {"b": 3}, "names": ["c"]}')
    loaded = config.load(str(path)).to_dict()
    assert to_spec(Outer, loaded) == Outer(a=Inner(b=3), names=("c",))
    path.write_text("[]")
    with pytest.raises(UserError, match="holds a list, not a config"):
        config.load(str(path))
    path.write_text("{")
    with pytest.raises(UserError, match="config.json is not JSON"):
        config.load(str(path))
    with pytest.raises(UserError, match="no file .*nowhere.json"):
        config.load("nowhere.json")
    with pytest.raises(UserError, match="takes no argument"):
        config.load(f"{path}:x")
    path.write_text('{"a.b": 1}')
    with pytest.raises(UserError, match="config.json is no config"):
        config.load(str(path))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserError, match="cannot read .*folder.json"):
        config.load(str(tmp_path / "folder.json"))

import dataclasses
import textwrap

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from tfm import config
from tfm.models import build
from tfm.names import UserError
from tfm.ops.scores import SCORES

IDEA = """
    from flax.linen import initializers
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
    return build.model(build.spec(build.fill(loaded)))


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


def test_every_table_takes_new_entries(write):
    path = write("""
        from jax import numpy as jnp
        from ml_collections import ConfigDict
        from tfm.ops.masks import predicate
        from tfm.ops.normalizers import Normalizer
        from tfm.ops.positions import Position

        MASKS = {"even": predicate(lambda t, s: (t - s) % 2 == 0)}
        NORMALIZERS = {"relu": Normalizer(each=lambda x: jnp.maximum(x, 0))}
        JOINS = {"subtract": lambda x, table: x - table}

        def steep(slope=2.0):
            distance = lambda t, s: jnp.abs(t[:, None, :, None] - s[:, None, None])
            return Position(bias=lambda t, s, heads: -slope * distance(t, s))

        POSITIONS = {"steep": steep}

        def get_config():
            return ConfigDict({"model": {
                "family": "decoder", "vocab": 9, "width": 8, "layers": 1, "max_length": 6,
                "mask": "causal & ~even", "position": {"scheme": "steep(slope=0.5)"},
                "attention": {"heads": 2, "normalizer": "relu"}, "feedforward": {"width": 8}}})
    """)  # fmt: skip
    tokens = jnp.arange(6)[None]
    (_, made), _ = model(config.load(path)).init_with_output(
        jax.random.key(1), tokens, want=("weights",)
    )
    weights = made["weights_NBHTS"]
    shown = np.subtract.outer(np.arange(6), np.arange(6))
    assert not np.any(np.asarray(weights)[..., (shown < 0) | (shown % 2 == 0)])
    assert np.any(weights)
    assert "subtract" in config.TABLES["JOINS"]


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
        ("SCORES = {'f': print}\ndef get_config(): ...", r"SCORES\['f'\] must be a Score, not"),
        ("SCORES = [1]\ndef get_config(): ...", r"SCORES must be a dict of names, not \[1\]"),
        ("MASKS = {'f': 3}\ndef get_config(): ...", r"MASKS\['f'\] must be a Mask or a function"),
    ],
)
def test_files_that_cannot_be_loaded_are_named(write, text, message):
    with pytest.raises(UserError, match=message):
        config.load(write(text))


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"no Python file .*nowhere.py"):
        config.load("nowhere.py")


class TestCommandLine:
    default = ConfigDict({"a": {"b": 1, "rate": 0.5}, "name": "x", "sizes": (1, 2)})

    def test_overrides(self):
        argv = [
            "--config.a.b=3",
            "--config.a.rate=2",
            "--config.sizes=(4, 5, 6)",
            "--config.name=y",
        ]
        got = config.from_command_line(argv, self.default)
        assert got.to_dict() == {"a": {"b": 3, "rate": 2.0}, "name": "y", "sizes": (4, 5, 6)}
        assert self.default.a.b == 1

    def test_a_file_and_overrides(self, write):
        argv = [f"--config={write(IDEA)}:dot", "--config.model.attention.heads=4"]
        got = config.from_command_line(argv, self.default)
        assert (got.model.attention.score, got.model.attention.heads) == ("dot", 4)

    def test_keys_left_to_their_defaults_can_be_overridden(self, write):
        argv = [f"--config={write(IDEA)}", "--config.model.attention.kv_heads=1",
                "--config.model.attention.cap=30", "--config.model.norm.place=post",
                "--config.model.dropout.residual=0.1"]  # fmt: skip
        spec = build.spec(config.from_command_line(argv, fill=build.fill))
        assert (spec.attention.kv_heads, spec.attention.cap) == (1, 30.0)
        assert (spec.norm.place, build.rates(spec)) == ("post", {"residual": 0.1})

    def test_a_config_of_its_own_is_needed_where_there_is_no_default(self):
        with pytest.raises(UserError, match="which config. Write --config=FILE"):
            config.from_command_line([])

    def test_mistakes_in_a_file_name_the_file(self, write):
        path = write(IDEA.replace('"layers": 1', '"layer": 1'))
        with pytest.raises(UserError, match=r"idea.py: unknown key 'model.layer'; did you mean"):
            config.from_command_line([f"--config={path}"], fill=build.fill)

    def test_fields_that_may_be_empty(self):
        default = ConfigDict({"cap": placeholder(float)})
        assert config.from_command_line([], default).cap is None
        assert config.from_command_line(["--config.cap=30"], default).cap == 30.0

    def test_how_values_are_spelled(self):
        default = ConfigDict({"on": False, "names": ("a",), "rate": 0.5, "text": "x"})
        argv = ["--config.on=true", "--config.names=b,c", "--config.rate=None", "--config.text=3"]
        got = config.from_command_line(argv, default)
        assert got.to_dict() == {"on": True, "names": ("b", "c"), "rate": None, "text": "3"}
        got = config.from_command_line(["--config.names=('d',)", "--config.names=e"], default)
        assert got.names == ("e",)

    def test_what_is_on_can_be_switched_off(self, write):
        argv = [f"--config={write(IDEA)}", "--config.model.dropout.residual=0.1"]
        assert build.rates(build.spec(config.from_command_line(argv, fill=build.fill)))
        argv += ["--config.model.dropout.residual=None", "--config.model.norm.final=False"]
        spec = build.spec(config.from_command_line(argv, fill=build.fill))
        assert (build.rates(spec), spec.norm.final) == ({}, False)
        with pytest.raises(UserError, match="model.width must be int, not None"):
            config.from_command_line([*argv, "--config.model.width=None"], fill=build.fill)

    def test_a_group_that_was_left_out_can_be_begun(self, write):
        family = IDEA.replace('"family": "decoder"', '"family": "encoder_decoder"')
        argv = [f"--config={write(family)}", "--config.model.cross.heads=4"]
        spec = build.spec(config.from_command_line(argv, fill=build.fill))
        assert spec.cross.heads == 4
        argv = [argv[0], "--config.model.cross.score=dot"]
        with pytest.raises(UserError, match="missing key 'model.cross.heads'"):
            config.from_command_line(argv, fill=build.fill)

    @pytest.mark.parametrize(
        ("arg", "message"),
        [
            ("--config.a.c=1", "no key 'a.c'; did you mean 'a.b'"),
            ("--config.nam=1", "no key 'nam'; did you mean 'name'"),
            ("--config.a.b=x", "config.a.b=x: it must be int, as 1 is"),
            ("--config.a.b=1.5", "config.a.b=1.5: it must be int"),
            ("--config.a=3", "--config.a is a group; set one of: --config.a.b, --config.a.rate"),
            ("--config.sizes.x=3", "no key 'sizes.x'"),
            ("--confg.a=1", "cannot read '--confg.a=1'"),
            ("a=1", "cannot read 'a=1'"),
        ],
    )
    def test_what_is_wrong_is_named(self, arg, message):
        with pytest.raises(UserError, match=message):
            config.from_command_line([arg], self.default)


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    names: tuple[str, ...] = ()
    on: bool = False


def test_to_spec():
    got = config.to_spec(Outer, ConfigDict({"inner": {"size": 3, "rate": 1}, "names": ("a", "b")}))
    assert got == Outer(Inner(3, 1.0), ("a", "b"))
    assert isinstance(got.inner.rate, float)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"inner": {"sise": 3}}, "unknown key 'inner.sise'; did you mean 'size'"),
        ({"inner": {"size": "3"}}, "inner.size must be int, not '3'"),
        ({"inner": {"size": True}}, "inner.size must be int, not True"),
        ({"inner": {"size": 3, "rate": "x"}}, "inner.rate must be float or None"),
        ({"inner": {"size": 3}, "names": (1,)}, r"names\[0\] must be str, not 1"),
        ({"inner": {}}, "missing key 'inner.size'"),
        ({}, "missing key 'inner'"),
    ],
)
def test_specs_that_cannot_be_are_named(tree, message):
    with pytest.raises(UserError, match=message):
        config.to_spec(Outer, ConfigDict(tree))


def test_from_spec_undoes_to_spec():
    spec = Outer(Inner(3), ("a",), True)
    filled = config.from_spec(spec)
    assert config.to_spec(Outer, filled) == spec
    filled.inner.rate = 0.5
    assert config.to_spec(Outer, filled).inner.rate == 0.5


def test_json_configs(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"inner": {"size": 3}, "names": ["a"]}')
    assert config.to_spec(Outer, config.load(str(path))) == Outer(Inner(3), ("a",))
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

"""The compiler's flags and the cache of compilations."""

import os
import subprocess
import sys

import pytest

from tfm import runtime
from tfm.config.names import UserError
from tfm.runtime import FUSION, CheckedCache

# Programs that gave wrong numbers or crashed: jax issues 39103, 39257 and 40412.
REPRODUCERS = """
import tfm, jax, numpy as np
from jax import numpy as jnp
from tfm import runtime
runtime.check_compiler()
wide = np.ones((10, 4, 6), np.float32), np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
many = lambda a, b: jnp.log(jnp.sum(a[..., None, None, None, None, None] * b, axis=2))
assert np.allclose(jax.jit(many)(*wide), np.log(6))
one = np.ones((3, 1, 2, 2, 8, 8, 8), np.float32)
assert np.all(np.asarray(jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(one, one)) == 2)
with jax.enable_x64(True):
    x = np.zeros((16_385, 3)); x[:, 0] = np.arange(16_385)
    squares = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))
    assert squares(x)[-1] == 16_384.0**2
"""


def start(code, cwd=None, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("XLA", "JAX"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**clean, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_importing_tfm_is_enough_for_right_numbers():
    found = start(REPRODUCERS)
    assert found.returncode == 0, found.stderr


def test_a_folder_named_tfm_is_not_mistaken_for_the_package(tmp_path):
    """The folder above a clone: `import tfm` must not find the clone, which has no __init__.py."""
    (tmp_path / "tfm" / "tfm").mkdir(parents=True)
    code = "import tfm.ops.attend, os; print(tfm.__version__, os.environ['XLA_FLAGS'])"
    result = start(code, cwd=tmp_path)
    assert FUSION in result.stdout, result.stderr


def test_a_wrong_compiler_stops_with_the_reason_and_the_cure():
    """The environment may override the flag; then the check finds what comes of it."""
    code = "from tfm.cli.main import main; raise SystemExit(main(['version']))"
    found = start(code, XLA_FLAGS=f"{FUSION}=LIBRARY_FUSION_TYPE_DOT")
    if "compiler checked" in found.stdout:
        pytest.skip("this version of jaxlib is right with this flag")
    assert found.returncode == 2
    assert "gives wrong numbers" in found.stderr
    assert f"set XLA_FLAGS={FUSION}=" in found.stderr


def test_flags_of_the_environment_are_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    runtime.set_compiler_flags()
    assert os.environ["XLA_FLAGS"].startswith("--xla_dump_to=x ")
    before = f"{FUSION}=LIBRARY_FUSION_TYPE_DOT"
    monkeypatch.setenv("XLA_FLAGS", before)
    runtime.set_compiler_flags()
    assert os.environ["XLA_FLAGS"] == before


@pytest.mark.parametrize("off", [False, True])
def test_every_workaround_can_be_switched_off(off, tmp_path):
    code = """
import os, tfm, ctypes
from tfm import runtime
calls = []
runtime.ctypes.CDLL = lambda name: calls.append(name) or ctypes.PyDLL(name)
runtime.keep_memory()
runtime.cache_compilations()
import jax
print(runtime.FUSION in os.environ.get("XLA_FLAGS", ""), bool(calls),
      jax.config.jax_compilation_cache_dir is not None)
"""
    switches = ("TFM_NO_XLA_FLAGS", "TFM_NO_MALLOC", "TFM_NO_CACHE") if off else ()
    done = start(code, TFM_CACHE=str(tmp_path), **dict.fromkeys(switches, "1"))
    assert done.stdout.split() == [str(not off)] * 3, done.stderr


def test_settings_that_change_numbers_are_in_the_profile(monkeypatch):
    import jax

    before = runtime.settings()
    with jax.enable_x64(True), jax.default_matmul_precision("float32"):
        inside = runtime.settings()
    changed = {name for name in before if before[name] != inside[name]}
    assert changed == {"enable_x64", "default_matmul_precision"}
    monkeypatch.setenv("XLA_FLAGS", "--other")
    assert runtime.settings()["xla_flags"] == "--other"


def test_a_worker_stops_a_sweep_whose_compiler_is_wrong(monkeypatch):
    """The launcher raises what a worker finds at its start."""
    from tfm.sweep import launch

    class Pipe:
        def recv(self):
            return {"kind": "wrong", "error": "wrong numbers"}

    pool = launch._Pool.__new__(launch._Pool)
    pipe = Pipe()
    pool.workers = [launch._Worker(None, pipe)]
    monkeypatch.setattr(launch.connection, "wait", lambda pipes, timeout: [pipe])
    with pytest.raises(UserError, match="wrong numbers"):
        list(pool.events(0))


def test_a_damaged_entry_of_the_cache_is_replaced(tmp_path):
    cache = CheckedCache(str(tmp_path / "cache"))
    assert cache.get("key") is None
    cache.put("key", b"program")
    assert cache.get("key") == b"program"
    (file,) = (tmp_path / "cache").iterdir()
    for damaged in (b"", b"x", file.read_bytes()[:-1], file.read_bytes()[:-1] + b"?"):
        file.write_bytes(damaged)
        assert cache.get("key") is None
        cache.put("key", b"program")
        assert cache.get("key") == b"program"
    assert list((tmp_path / "cache").iterdir()) == [file]  # nothing is left over


def test_jax_uses_the_cache_and_repairs_it(tmp_path):
    code = """
import pathlib, sys
from tfm import runtime
import jax, numpy as np
runtime.cache_compilations()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(float(jax.jit(lambda x: (x @ x).sum())(np.eye(8, dtype=np.float32))))
"""
    folder = tmp_path / "cache"
    assert start(code, TFM_CACHE=str(folder)).stdout == "8.0\n"
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert files
    for path, content in files.items():
        path.write_bytes(content[: len(content) // 2])
    again = start(code, TFM_CACHE=str(folder))
    assert (again.stdout, again.returncode) == ("8.0\n", 0), again.stderr
    cache = CheckedCache(str(folder))
    assert all(cache.get(path.name) is not None for path in files)

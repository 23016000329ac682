import contextlib
import fcntl
import gc
import os
import signal
import subprocess

# Programs compiled in tests run for a moment, so compiling them well would take most of the time.
# These settings save about 40% of the CPU time; processes that tests start inherit them. Tests of
# the optimising compiler are in test_compiler.py.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import pytest

from tfm.config import files as config
from tfm.layers import stack

stack.UNROLL = 1  # scanned layers are compiled once

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background commands so. Processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session):
    """Keeps the garbage collector from walking through all imported modules again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


@contextlib.contextmanager
def tables_of_its_own():
    """When it ends, the library's tables are as before."""
    added, config._added_by = config._added_by, {}
    kept = {name: dict(table) for name, table in config.TABLES.items()}
    yield
    config._added_by = added
    for name, table in config.TABLES.items():
        table.clear()
        table.update(kept[name])


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Returns a function from a name to a folder that all workers share, and that it locks."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    @contextlib.contextmanager
    def locked(name):
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield root / name

    return locked


@pytest.fixture
def optimising():
    """Lets XLA optimize programs. `quick.users_jit` also has the fusions that users get."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def own_tables():
    """The library's tables are as before when the test ends."""
    with tables_of_its_own():
        yield


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own, that can be filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)

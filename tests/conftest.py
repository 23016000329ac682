import contextlib
import os
import subprocess

# What is compiled here runs for a moment: optimising it would take most of the time. Tests of what
# the optimising compiler gives are in test_compiler.py. Processes that tests start inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest

from tfm.config import files as config
from tfm.layers import stack

stack.UNROLL = 1  # scanned layers are compiled once

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")


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


@pytest.fixture
def optimising():
    """What is compiled is optimised, as outside of tests."""
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

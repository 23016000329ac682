"""Workarounds for the versions of JAX, XLA and glibc that we run on, each with an off switch.

What each gains was measured on a CPU with jaxlib 0.10.2:

- `set_compiler_flags`: right sums over more than 32,768 rows. Off with TFM_NO_XLA_FLAGS=1, or with
  another value of the flag in XLA_FLAGS.
- `keep_memory`: 25 page faults instead of 39,400 in a step of `recall` with 512 rows, up to 18 % of
  its CPU time; nothing for small steps. Off with TFM_NO_MALLOC=1.
- `cache_compilations`: 5.5 s of CPU time instead of 12.5 s for `tfm train` of `recall` with 2
  steps, when it was compiled before. Off with TFM_NO_CACHE=1.

jaxlib 0.10.2 hands reductions on CPU to a library that returns wrong numbers beyond 32,768 rows
(jax issue 39103) and crashes on arrays of high rank (39257, 40412). The flags leave it only the
matrix products, which it computes faster. Importing `tfm` sets them, because JAX reads them once.
"""

import contextlib
import ctypes
import hashlib
import math
import os
import pathlib
import secrets
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from tfm import disk
from tfm.config.names import UserError

FUSION = "--xla_cpu_experimental_ynn_fusion_type"
RIGHT = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"  # the library computes products, and nothing else
CURE = f"set XLA_FLAGS={FUSION}={RIGHT}, or install jaxlib 0.10.1"
MALLOC = {  # options of glibc's malloc, and their values
    -4: 0,  # M_MMAP_MAX: no block is mapped on its own
    -1: -1,  # M_TRIM_THRESHOLD: free memory at the end of the heap is kept
    -8: 1,  # M_ARENA_MAX: one heap for all threads; others cannot grow beyond 64 MB
}
MADV_HUGEPAGE = 14
SETTINGS = (  # of JAX, which change results
    *("enable_x64", "explicit_x64_dtypes", "numpy_dtype_promotion", "default_matmul_precision"),
    *("default_prng_impl", "threefry_partitionable", "random_seed_offset", "disable_jit"),
    *("disable_most_optimizations", "exec_time_optimization_effort", "optimization_level"),
)


def set_compiler_flags() -> None:
    """Restricts the library with the wrong sums to products, where jaxlib has it."""
    flags = os.environ.get("XLA_FLAGS", "")
    version = tuple(int(part) for part in metadata.version("jaxlib").split(".")[:3])
    if FUSION not in flags and version >= (0, 10, 2) and not os.environ.get("TFM_NO_XLA_FLAGS"):
        os.environ["XLA_FLAGS"] = f"{flags} {FUSION}={RIGHT}".strip()


def check_compiler() -> None:
    """Raises if the compiler returns the wrong numbers that a version of it is known for."""
    import jax
    import numpy as np
    from jax import numpy as jnp

    def squares(matrix: Any, x_N3: Any) -> Any:
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x_N3)

    x_N3 = np.zeros((32_769, 3), np.float32)
    x_N3[:, 0] = np.arange(len(x_N3))
    last = float(jax.jit(squares)(np.eye(3, dtype=np.float32), x_N3)[-1])
    if last != float(x_N3[-1, 0]) ** 2:
        raise UserError(
            f"the compiler of jaxlib {metadata.version('jaxlib')} gives wrong numbers: "
            f"{x_N3[-1, 0]:.0f}² = {last:.0f} with XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r} "
            f"(jax issue 39103). {CURE}"
        )


def check_memory(
    shapes: Any,
    text: str = "the parameters, the optimizer's state and a batch",
    cure: str = "model.width, layers or vocab",
) -> None:
    """Raises if arrays exceed the memory of this machine; on a GPU or TPU, JAX raises."""
    import jax

    if jax.default_backend() != "cpu":
        return
    needed = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    available = machine_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{text} need {needed / 1e9:,.0f} GB, and this machine has {available / 1e9:,.0f} GB: "
            f"make {cure} smaller"
        )


def machine_memory(pages: str = "SC_PHYS_PAGES") -> int | None:
    """Returns all memory (or what is free, "SC_AVPHYS_PAGES") in bytes; None if unknown."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def keep_memory() -> None:
    """Makes glibc keep freed memory instead of returning it to the system.

    XLA allocates its temporary memory anew for each step, and the system maps and clears new memory
    page by page when it is first touched. The heap is made of huge pages where the system offers
    them. Python has no API for this; other C libraries are left alone.
    """
    available = machine_memory()
    if available is None or os.environ.get("TFM_NO_MALLOC"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc.restype = ctypes.c_void_p
        for option, value in MALLOC.items():
            libc.mallopt(option, value)
        # Grow the heap once. Memory that is never touched costs nothing.
        page, size = os.sysconf("SC_PAGE_SIZE"), available // 2
        block = libc.malloc(ctypes.c_size_t(size))
        if block:
            first = ctypes.c_void_p(-(-block // page) * page)
            libc.madvise(first, ctypes.c_size_t(size - page), MADV_HUGEPAGE)
            libc.free(ctypes.c_void_p(block))


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Keeps the current folder out of `sys.path` of the Python processes that are started in it.

    They would search that folder first, and run a `threading.py` there.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def cores() -> list[int]:
    """Returns the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def settings() -> dict[str, Any]:
    """Returns the settings and flags of JAX that change results."""
    import jax

    values = {name: str(getattr(jax.config, f"jax_{name}", None)) for name in SETTINGS}
    return {**values, "xla_flags": os.environ.get("XLA_FLAGS", "")}


def cache_folder() -> pathlib.Path:
    """Returns $TFM_CACHE, or a folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("TFM_CACHE", pathlib.Path(home) / "tfm"))


def cache_compilations() -> None:
    """Keeps compiled programs on disk for the next process.

    The folder and the threshold are public settings of JAX. JAX has no public way to replace the
    class that reads and writes the files, so this replaces a private function.
    """
    if os.environ.get("TFM_NO_CACHE"):
        return
    import jax
    from jax._src import compilation_cache

    vars(compilation_cache)["get_file_cache"] = lambda path: (CheckedCache(path), path)
    jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


class CheckedCache:
    """Files with a checksum, written whole or not at all; a damaged one is compiled again.

    JAX's own cache writes files in place without a checksum and never replaces a damaged one.
    """

    def __init__(self, path: str):
        self._path = pathlib.Path(path)

    def get(self, key: str) -> bytes | None:
        try:
            content = disk.read_bytes(self._path / key, self._path, limit=1 << 32)
        except OSError:
            return None
        digest, value = content[:32], content[32:]
        return value if hashlib.sha256(value).digest() == digest else None

    def put(self, key: str, value: bytes) -> None:
        new = self._path / f"{key}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # a full or read-only disk: it is only a cache
            try:
                self._path.mkdir(parents=True, exist_ok=True)
                new.write_bytes(hashlib.sha256(value).digest() + value)
                new.replace(self._path / key)
            finally:
                new.unlink(missing_ok=True)

"""How JAX is set up: the compiler's flags, a check of its answers, the cache of what it compiled,
memory.

jaxlib 0.10.2 hands reductions on CPU to a library that gives wrong numbers beyond 32,768 rows (jax
issue 39103) and crashes on arrays of high rank (39257, 40412). Here it is left only the products,
which it computes faster, unless `XLA_FLAGS` says otherwise. Importing `tfm` sets the flags, which
must be before JAX compiles.
"""

import contextlib
import ctypes
import hashlib
import math
import os
import pathlib
import secrets
from importlib import metadata
from typing import Any

from tfm.config.names import UserError

FUSION = "--xla_cpu_experimental_ynn_fusion_type"
RIGHT = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"  # the library computes products, and nothing else
CURE = f"set XLA_FLAGS={FUSION}={RIGHT}, or install jaxlib 0.10.1"
MALLOC = {  # options of glibc's malloc, and their values
    -4: 0,  # M_MMAP_MAX: nothing is mapped by itself,
    -1: -1,  # M_TRIM_THRESHOLD: and what is free at the end of the heap stays.
    -8: 1,  # M_ARENA_MAX: one heap for all threads; others cannot grow beyond 64 MB
}
MADV_HUGEPAGE = 14
SETTINGS = (  # of JAX, which change results
    *("enable_x64", "explicit_x64_dtypes", "numpy_dtype_promotion", "default_matmul_precision"),
    *("default_prng_impl", "threefry_partitionable", "random_seed_offset", "disable_jit"),
    *("disable_most_optimizations", "exec_time_optimization_effort", "optimization_level"),
)


def set_compiler_flags() -> None:
    """Leave only products to the library whose sums are wrong, where jaxlib has it."""
    flags = os.environ.get("XLA_FLAGS", "")
    version = tuple(int(part) for part in metadata.version("jaxlib").split(".")[:3])
    if FUSION not in flags and version >= (0, 10, 2):
        os.environ["XLA_FLAGS"] = f"{flags} {FUSION}={RIGHT}".strip()


def check_compiler() -> None:
    """Raise if the compiler gives a wrong answer where some version of it did."""
    import jax
    import numpy as np
    from jax import numpy as jnp

    def squares(matrix: Any, x_N3: Any) -> Any:
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x_N3)

    x_N3 = np.zeros((32_769, 3), np.float32)
    x_N3[:, 0] = np.arange(len(x_N3))
    found = float(jax.jit(squares)(np.eye(3, dtype=np.float32), x_N3)[-1])
    if found != float(x_N3[-1, 0]) ** 2:
        raise UserError(
            f"the compiler of jaxlib {metadata.version('jaxlib')} gives wrong numbers: "
            f"{x_N3[-1, 0]:.0f}² = {found:.0f} with XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r} "
            f"(jax issue 39103). {CURE}"
        )


def check_memory(shapes: Any) -> None:
    """Raise if arrays of these shapes cannot be in the memory of this machine. On a GPU or TPU the
    runtime itself says so."""
    import jax

    if jax.default_backend() != "cpu":
        return
    needed = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    there = machine_memory()
    if there is not None and needed > there:
        raise UserError(
            f"the parameters and what the optimiser keeps of them need {needed / 1e9:,.0f} GB, and "
            f"this machine has {there / 1e9:,.0f} GB: make model.width, layers or vocab smaller"
        )


def machine_memory() -> int | None:
    """In bytes, if this system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def keep_memory() -> None:
    """Keep memory that was freed, instead of giving it back to the system.

    XLA allocates its temporary memory anew for each step. Memory that comes from the system is
    mapped and cleared page by page when it is first touched, which takes up to a third of a step.
    It comes in huge pages, where the system has them on request: fewer addresses to translate.
    """
    there = machine_memory()
    if there is None:
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc.restype = ctypes.c_void_p
        for option, value in MALLOC.items():
            libc.mallopt(option, value)
        # The heap grows at once to what will be used. Memory that nobody touches costs nothing.
        page, size = os.sysconf("SC_PAGE_SIZE"), there // 2
        block = libc.malloc(ctypes.c_size_t(size))
        if block:
            first = ctypes.c_void_p(-(-block // page) * page)
            libc.madvise(first, ctypes.c_size_t(size - page), MADV_HUGEPAGE)
            libc.free(ctypes.c_void_p(block))


def settings() -> dict[str, Any]:
    """What of JAX's settings and flags changes results."""
    import jax

    values = {name: str(getattr(jax.config, f"jax_{name}", None)) for name in SETTINGS}
    return {**values, "xla_flags": os.environ.get("XLA_FLAGS", "")}


def cache_folder() -> pathlib.Path:
    """$TFM_CACHE, or a folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("TFM_CACHE", pathlib.Path(home) / "tfm"))


def cache_compilations() -> None:
    """Keep what was compiled for the next process."""
    import jax
    from jax._src import compilation_cache

    vars(compilation_cache)["get_file_cache"] = lambda path: (CheckedCache(path), path)
    jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


class CheckedCache:
    """Files with a checksum, written whole or not at all; a damaged one is compiled again.

    JAX's own cache has no checksum, is not safe against a kill, and keeps a damaged file for ever.
    """

    def __init__(self, path: str):
        self._path = pathlib.Path(path)

    def get(self, key: str) -> bytes | None:
        try:
            content = (self._path / key).read_bytes()
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

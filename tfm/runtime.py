"""How JAX is set up before it runs."""

import os
import pathlib

import jax


def cache_compilations() -> None:
    """Keep what was compiled for the next process: in $TFM_CACHE, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    where = os.environ.get("TFM_CACHE", str(pathlib.Path(home) / "tfm"))
    jax.config.update("jax_compilation_cache_dir", where)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

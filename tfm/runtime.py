"""How JAX is set up before it runs."""

import os
import pathlib

import jax


def cache_folder() -> pathlib.Path:
    """$TFM_CACHE, or a folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("TFM_CACHE", pathlib.Path(home) / "tfm"))


def cache_compilations() -> None:
    """Keep what was compiled for the next process."""
    jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

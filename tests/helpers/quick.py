"""Compile fast, run once."""

from tfm.check.results import jit

__all__ = ["jit"]

"""tfm: does this change to a sequence model help, and how sure are we?"""

__version__ = "0.1.0"

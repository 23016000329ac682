"""The registry of tokenizers.

A user's file may add its own by defining `TOKENIZERS`: functions whose options have defaults and
which return a `Maker`.
"""

from collections.abc import Callable

from tfm.data.tokenizers import published, trained
from tfm.data.tokenizers.trained import Maker

TOKENIZERS: dict[str, Callable[..., Maker]] = {**trained.TOKENIZERS, **published.TOKENIZERS}

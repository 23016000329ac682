"""The options of data sets: an error names the option and its range."""

from typing import Any

from tfm.config.names import UserError


def whole(task: str, option: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"{task}: {option}={value!r} must be a whole number {limit}")
    return value


def number(task: str, option: str, value: Any, above: float, below: float) -> float:
    """A number between two others, neither of them included."""
    if type(value) not in (int, float) or not above < value < below:
        raise UserError(f"{task}: {option}={value!r} must be a number between {above} and {below}")
    return float(value)


def lengths(task: str, length: Any, min_length: Any, least: int = 1) -> tuple[int, int]:
    """The shortest and the longest; without `min_length` all are equally long."""
    whole(task, "length", length, least)
    if min_length is None:
        return length, length
    return whole(task, "min_length", min_length, least, length), length

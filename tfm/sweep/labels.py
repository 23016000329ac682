"""Names the points of a study in its table: variants in rows, tasks in columns."""

import collections
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from tfm.config.names import UserError, suggest
from tfm.sweep.space import Point
from tfm.sweep.study import Study


def label_keys(study: Study, points: Sequence[Point]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the keys that name a variant and those that name a task, with short names."""
    keys = list(dict.fromkeys(key for point in points for key in point))
    for name, chosen in {"VARIANT": study.variant, "TASK": study.task}.items():
        for key in chosen or ():
            if key not in keys:
                raise UserError(f"{study.path}: {name} names {key!r}{suggest(key, keys)}")
    vary = [key for key in keys if len({repr(point.get(key, ...)) for point in points}) > 1]
    task, variant = study.task, study.variant
    if task is None:
        tasks = ("config", "data.dataset")
        task = tuple(key for key in tasks if key in vary and key not in (variant or ()))
    if variant is None:
        variant = tuple(key for key in vary if key != "seed" and key not in task)
    return _short_names(variant), _short_names(task)


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Returns the shortest unique endings of dotted keys. A single key needs no name."""
    if len(keys) == 1:
        return {keys[0]: ""}

    def endings(key: str) -> list[str]:
        parts = key.split(".")
        return [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]

    count = collections.Counter(end for key in set(keys) for end in endings(key))
    names = {key: next((end for end in endings(key) if count[end] == 1), key) for key in keys}
    return names | {key: "" for key in keys if key == "config"}


def config_names(configs: Iterable[str]) -> dict[str, str]:
    """Returns, for each config, its argument, file:argument or path: the shortest unique one."""
    forms = {}
    for where in configs:
        file, _, argument = where.partition(":")
        forms[where] = (argument or pathlib.Path(file).stem, where.rpartition("/")[2], where)
    count = [collections.Counter(names) for names in zip(*forms.values(), strict=True)]
    return {
        where: next(name for name, times in zip(names, count, strict=True) if times[name] == 1)
        for where, names in forms.items()
    }


def label(point: Point, keys: Mapping[str, str], configs: Mapping[str, str]) -> str:
    words = []
    for key, name in keys.items():
        if key in point:
            value = configs[point[key]] if key == "config" else point[key]
            words.append(f"{name}={value}" if name else str(value))
    return ", ".join(words)

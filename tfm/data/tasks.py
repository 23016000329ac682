"""The table of tasks. A config file may add its own by defining `TASKS`."""

from collections.abc import Callable

from tfm.data import files, nested, synthetic
from tfm.data.batch import Task

TASKS: dict[str, Task | Callable[..., Task]] = {**synthetic.TASKS, **nested.TASKS, **files.TASKS}

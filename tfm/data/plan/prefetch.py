"""Make the batches of the next steps while the current one runs."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """What `make` gives for each step from `begin` to `end` − 1, made in a thread, `depth` ahead.

    A batch is a function of its step, so there is no state to lose when it is closed. An error in
    `make` is raised by `next`. `waited` is for how many seconds `next` had to wait.
    """

    def __init__(self, make: Callable[[int], T], begin: int, end: int, depth: int = 2):
        self.waited = 0.0
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._closed = threading.Event()
        work = make, begin, end
        self._thread = threading.Thread(target=self._run, args=work, name="prefetch", daemon=True)
        self._thread.start()

    def next(self) -> T:
        begin = time.monotonic()
        batch, error = self._queue.get()
        self.waited += time.monotonic() - begin
        if error is not None:
            raise error
        return batch  # type: ignore[return-value]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, make: Callable[[int], T], begin: int, end: int) -> None:
        for step in range(begin, end):
            try:
                item: tuple[Any, BaseException | None] = make(step), None
            except BaseException as e:
                item = None, e
            if not self._put(item) or item[1] is not None:
                return
        self._put((None, IndexError(f"no batch after step {end - 1}")))

    def _put(self, item: tuple[Any, BaseException | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

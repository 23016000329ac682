"""Signals that ask a run to stop."""

import signal
import threading
from typing import Any


class Interrupts:
    """Makes SIGTERM or a first Ctrl-C stop the run at the next step."""

    asked = 0  # the signal that asked to stop

    def __enter__(self) -> "Interrupts":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, _: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

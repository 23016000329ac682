"""Writes TensorBoard files line by line, so that they survive a kill and a full disk."""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hides PyTorch from tensorboardX, which would import it: two seconds, 200 MB."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]


class Board:
    """The TensorBoard files of a run. A resumed run removes what it is about to repeat."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.events: Any = None

    def write(self, line: Mapping[str, Any]) -> None:
        with _without_torch():
            from tensorboardX import summary
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2

        def event(**content: Any) -> Any:
            return event_pb2.Event(wall_time=time.time(), step=line["step"], **content)

        if self.events is None:
            self.folder.mkdir(exist_ok=True)
            self.events = EventsWriter(os.path.join(self.folder, "events"))
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self.events.write_event(event(session_log=start))
        group = "/".join(line[x] for x in ("split", "evaluator", "slice") if x in line)
        for name, value in line.items():
            if name not in ("step", "split", "evaluator", "slice", "after"):
                scalar = summary.scalar(f"{group}/{name}", value)
                self.events.write_event(event(summary=scalar))
        self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()

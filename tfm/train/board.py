"""TensorBoard files of a run."""

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfm.evaluate.evaluator import NO_METRIC


class Board:
    """Writes TensorBoard files line by line, so that they survive a kill and a full disk."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.events: Any = None

    def write(self, line: Mapping[str, Any]) -> None:
        with _hidden_torch():
            from tensorboardX import summary
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2

        def event(**content: Any) -> Any:
            return event_pb2.Event(wall_time=time.time(), step=line["step"], **content)

        if self.events is None:
            self.folder.mkdir(exist_ok=True)
            self.events = EventsWriter(str(self.folder / "events"))
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self.events.write_event(event(session_log=start))
        group = "/".join(line[x] for x in ("split", "evaluator", "slice") if x in line)
        for name, value in line.items():
            if name not in NO_METRIC:
                scalar = summary.scalar(f"{group}/{name}", value)
                self.events.write_event(event(summary=scalar))
        self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


@contextlib.contextmanager
def _hidden_torch() -> Iterator[None]:
    """Hides PyTorch from tensorboardX, which would import it: two seconds, 200 MB."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]

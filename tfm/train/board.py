"""TensorBoard's files, written line by line: neither a kill nor a full disk surprises them."""

import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any


class Board:
    """What TensorBoard shows of a run; a resumed run takes back what it is about to repeat."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.events: Any = None

    def write(self, line: Mapping[str, Any]) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        def event(**what: Any) -> Any:
            return event_pb2.Event(wall_time=time.time(), step=line["step"], **what)

        if self.events is None:
            self.folder.mkdir(exist_ok=True)
            self.events = EventsWriter(os.path.join(self.folder, "events"))
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self.events.write_event(event(session_log=start))
        for name, value in line.items():
            if name not in ("step", "split"):
                scalar = summary.scalar(f"{line['split']}/{name}", value)
                self.events.write_event(event(summary=scalar))
        self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()

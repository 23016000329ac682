"""A process that runs one job after another, on one core.

It receives orders through a pipe and reports through the same pipe. When the launcher ends, for
any reason, the worker ends too; a run survives that at any moment.
"""

import contextlib
import functools
import os
import pathlib
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing import connection, parent_process
from typing import Any

PATIENCE = 60.0  # seconds to wait for the worker of an earlier launcher


def work(pipe: connection.Connection, log: str, core: int) -> None:
    """Serves orders until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # several workers would fight for a GPU
    if hasattr(os, "sched_setaffinity"):  # not on a Mac, where a worker may use all cores
        os.sched_setaffinity(0, {core})  # before JAX counts them
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, sys.stdout.fileno())
    os.dup2(out, sys.stderr.fileno())
    threading.Thread(target=_end_with_launcher, daemon=True).start()

    from tfm import runtime
    from tfm.config.names import UserError

    runtime.keep_memory()
    runtime.cache_compilations()
    try:
        runtime.check_compiler()
    except UserError as e:
        pipe.send({"kind": "wrong", "error": str(e)})
        return
    pipe.send({"kind": "ready"})
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        answer = _answer(pipe, order)
        pipe.send(answer)
        if answer["kind"] == "stopped":
            return


def _answer(pipe: connection.Connection, order: Mapping[str, Any]) -> dict[str, Any]:
    from tfm.config.files import own_error
    from tfm.config.names import UserError
    from tfm.run import spec
    from tfm.sweep import cost
    from tfm.train import loop

    class Watcher:
        def line(self, line: Mapping[str, Any]) -> None:
            pipe.send({"kind": "line", "line": dict(line)})

        def message(self, text: str) -> None:
            _log(f"{order['workdir']}: {text}")

    try:
        for file in order["files"]:
            _run_once(file)
        run = spec.read(order["config"])
        if order["do"] == "time":
            return {"kind": "done", "speed": cost.speed(run)}
        summary = loop.train(run, order["workdir"], Watcher(), PATIENCE, order["planned"])
        return {"kind": "done", "summary": summary}
    except loop.Stopped as e:
        return {"kind": "stopped", "error": str(e)}
    except Exception as e:
        _log(traceback.format_exc())
        text = str(e) if isinstance(e, UserError) else own_error(e) or f"{type(e).__name__}: {e}"
        return {"kind": "failed", "error": text, "final": isinstance(e, UserError)}


@functools.cache
def _run_once(file: str) -> None:
    """Runs a user's file, which adds its entries to the library's registries."""
    from tfm.config.files import run_file

    run_file(pathlib.Path(file))


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk, which the launcher reports
        print(text, flush=True)


def _end_with_launcher() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)

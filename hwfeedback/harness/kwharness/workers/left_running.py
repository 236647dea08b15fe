"""What a reference leaves running: threads and processes that would compute while one is timed."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import NoReturn

from kwharness.timing import process_use
from kwharness.workers.serving import StageError

THREAD_S = 0.2  # how long a thread may outlive the call that started it


def _end_progress_bars() -> None:
    """Ends tqdm's thread, which looks at progress bars now and then. What PyTorch compiles may have
    begun it, too.
    """
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if isinstance(bars, type) and getattr(bars, "monitor", None) is not None:
        bars.monitor_interval = 0  # type: ignore[attr-defined]
        bars.monitor.exit()  # type: ignore[attr-defined]
        bars.monitor = None  # type: ignore[attr-defined]


def nothing_left_running() -> None:
    """Raises for threads and processes that would compute while something is timed."""
    _end_progress_bars()
    for t in threading.enumerate():
        if t is not threading.main_thread():
            t.join(THREAD_S)
            if t.is_alive():
                raise StageError("threads", "".join(c for c in t.name[:80] if c.isprintable()))
    end = time.monotonic() + THREAD_S
    while program := _program() or _program():  # one whose parent has just ended hides in a look
        if time.monotonic() > end:
            raise StageError("processes", program)
        time.sleep(0.01)


def _program() -> str:
    """Returns the name of a process below this one that has not ended, "" where there is none."""
    with contextlib.suppress(OSError):  # in weak mode /proc is the host's, and out of reach
        for pid in process_use.tree(os.getpid())[1:]:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as f:
                name, _, rest = f.read().partition("(")[2].rpartition(")")
                if rest.split()[0] not in "ZXx":
                    return "".join(c for c in name if c.isprintable())
    return ""


def fork() -> NoReturn:
    raise Forked("a reference computes in one process")


class Forked(OSError):
    """The reference tried to make a copy of its process."""

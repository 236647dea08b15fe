"""Waiting in tests: for minutes at most, and whoever waited in vain says for what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WAIT_S = 120.0  # beside many busy processes, too


def until(done: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Waits until ``done`` returns something true. Raises TimeoutError, which tells ``what``."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.001)


def event(e: threading.Event, what: str) -> None:
    """Waits for an event. Raises TimeoutError, which tells ``what``."""
    if not e.wait(WAIT_S):
        raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")


def ended(thread: threading.Thread, what: str) -> None:
    """Waits until a thread has ended. Raises TimeoutError, which tells ``what``."""
    thread.join(WAIT_S)
    if thread.is_alive():
        raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")

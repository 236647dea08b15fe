"""What the parts of an evaluation take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Costs:
    """Seconds by part, of the thread that made it.

    A part within another counts for itself alone: they add up.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.parts: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if threading.get_ident() != self._thread:
            yield
            return
        self._pass()
        self._open.append(name)
        try:
            yield
        finally:
            self._pass()
            self._open.pop()

    def moved(self, seconds: float, name: str) -> None:
        """Gives what the part that is open has taken to another."""
        self._pass()
        for part, s in ((self._open[-1], -seconds), (name, seconds)):
            self.parts[part] = self.parts.get(part, 0.0) + s

    def _pass(self) -> None:
        """Gives the time since the last change to the innermost part."""
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.parts[name] = self.parts.get(name, 0.0) + now - self._since
        self._since = now

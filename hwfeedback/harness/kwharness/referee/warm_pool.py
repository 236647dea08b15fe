"""What an evaluation leaves for the next one: the reference's process, others that are started for
it ahead, and for candidates that were handed in together more than that.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from kwharness.clients.errors import WorkerFailure
from kwharness.clients.reference_client import ReferenceClient
from kwharness.clients.warm_processes import WarmProcesses
from kwharness.timing.timing import Timing

DRAIN_S = 1.0  # what a reference that is to be kept may still be at work
WARM_BYTES = 1 << 30  # that a process may hold which waits for the next evaluation
SENTINEL_S = 10.0  # a sentinel is that of whoever is timed within


@dataclass
class SharedTiming:
    """What candidates of a batch are timed with: weights, and what eager made of them."""

    task: str  # its reference's text
    state: list[torch.Tensor]
    timing: Timing
    since: float  # time.monotonic() when the sentinel had been timed

    def recent(self) -> bool:
        return time.monotonic() - self.since < SENTINEL_S


class Batch:
    """Candidates that were handed in together.

    All of them were there before anything was drawn, and none learns anything of another, so the
    same secrets do for all: weights, the contents of timed calls and the sentinel. What comes next
    is built, and its processes are started, while this one is verified.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.timed: SharedTiming | None = None
        self._builds: dict[str, Future[Any]] = {}
        self._builders: ThreadPoolExecutor | None = None

    def timed_on(self, task: str) -> SharedTiming | None:
        """Returns what there is for a task, and keeps nothing of another."""
        if self.timed is not None and self.timed.task != task:
            self.timed = None
        return self.timed

    def build(self, key: str, work: Callable[[], Any], workers: int) -> Future[Any]:
        """Begins to build something, unless that was begun."""
        if self._builders is None:
            self._builders = ThreadPoolExecutor(workers)
        if key not in self._builds:
            self._builds[key] = self._builders.submit(work)
        return self._builds[key]

    def begun(self, key: str) -> Future[Any] | None:
        """Returns what builds something, or has built it, where that was begun; once."""
        return self._builds.pop(key, None)

    def close(self) -> None:
        self.timed = None
        if self._builders is not None:
            self._builders.shutdown(wait=False, cancel_futures=True)
            self._builders = None
        self._builds.clear()


class Compiled:
    """What torch.compile has made of one task, as its last process that was asked had it."""

    def __init__(self) -> None:
        self._key, self._fd = "", -1
        self.tuned = True  # whether it was measured while nobody else had the device
        self._close: Callable[[], Any] = lambda: None

    def of(self, key: str) -> int:
        """Returns a descriptor, which stays this object's own, or -1."""
        return self._fd if key == self._key else -1

    def keep(self, key: str, fd: int, *, tuned: bool) -> None:
        """Takes a descriptor over, in the place of what there was. Does nothing for -1."""
        if fd >= 0:
            self._close()
            self._key, self._fd, self.tuned = key, fd, tuned
            self._close = weakref.finalize(self, os.close, fd)


class WarmPool:
    """The reference's process that an evaluation ended with, the batch that it was of, and what was
    started for the next one.

    The next one of the same task has the process load the file anew, and saves starting one, on a
    GPU with a context of its own.
    """

    def __init__(self) -> None:
        self._client: ReferenceClient | None = None
        self._batch: Batch | None = None
        self.processes = WarmProcesses()
        # Under a profiler: they take seconds to start and until they are prepared nothing of the
        # GPU, so that nobody who is timed waits for more than that.
        self.profilers = WarmProcesses()
        self.compiled = Compiled()  # a few megabytes, for as long as no other task comes

    def __bool__(self) -> bool:
        waits = bool(self.processes) or bool(self.profilers)
        return self._client is not None or self._batch is not None or waits

    def batch(self, name: str) -> Batch | None:
        """Returns the batch of this name, a new one if need be; none for no name."""
        if self._batch is not None and self._batch.name != name:
            self._batch.close()
            self._batch = None
        if name and self._batch is None:
            self._batch = Batch(name)
        return self._batch

    def take(self, key: str) -> ReferenceClient | None:
        """Returns a process of this key, if there is one, and keeps nothing."""
        client, self._client = self._client, None
        if client is not None and client.key != key:
            client.kill()
            return None
        return client

    def give(self, client: ReferenceClient) -> None:
        """Keeps it, unless it holds or does too much. It does not hold the device any more."""
        self._kill()
        if client.key and client.holds() <= WARM_BYTES:
            with suppress(WorkerFailure):
                client.drain(DRAIN_S)
                client.hold(())
                client.warm = True
                self._client = client
                return
        client.kill()

    def _kill(self) -> None:
        if self._client is not None:
            self._client.kill()
            self._client = None

    def close(self) -> None:
        self._kill()
        self.batch("")
        self.processes.close()
        self.profilers.close()

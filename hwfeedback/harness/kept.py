"""What an evaluation leaves for the next one: the reference's process, others that are started for
it ahead, and for candidates that were handed in together more than that.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from clients import ReferenceClient, WorkerFailure
from timing import Timing

DRAIN_S = 1.0  # what a reference that is to be kept may still be at work
KEPT_BYTES = 1 << 30  # that a process may hold which waits for the next evaluation
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


class Spares:
    """Processes that are started before they are needed: on a GPU each makes a context of its own,
    which takes longer than much of what it does.
    """

    def __init__(self) -> None:
        self._begun: dict[str, Future[Any]] = {}
        self._prepared: tuple[str, Any] | None = None  # that is being prepared, or has been
        self._given_up: Future[Any] | None = None  # that was, and is not wanted any more
        self._leaving: list[Future[Any]] = []  # that nobody wants any more
        self._starters: ThreadPoolExecutor | None = None

    def __bool__(self) -> bool:
        return bool(self._begun)

    def begin(self, key: str, start: Callable[[], Any], fds: Sequence[int] = ()) -> None:
        """Has a process started that is asked for later by the same key. ``fds``: descriptors that
        stay open until it is there, but are not its own.
        """
        if key not in self._begun:
            self._begun[key] = self._submit(start, fds)

    def _submit(self, work: Callable[[], Any], fds: Sequence[int]) -> Future[Any]:
        if self._starters is None:
            self._starters = ThreadPoolExecutor(4)
        held = [os.dup(fd) for fd in fds]

        def let_go(_: Future[Any]) -> None:
            for fd in held:
                os.close(fd)

        submitted = self._starters.submit(work)
        submitted.add_done_callback(let_go)
        return submitted

    def prepare(
        self, work: Callable[[Any], Any], keys: Collection[str], fds: Sequence[int] = ()
    ) -> None:
        """Has something done with one of the processes with these keys that is there, unless that
        was done with one: it is the next that is taken, when it is done. ``work`` gets the process
        and returns it, or ends it and raises; the process's ``end`` may have it fail. ``fds`` as
        for ``begin``.
        """
        if self._prepared is not None:
            begun = self._begun[self._prepared[0]]
            if not begun.done() or begun.exception() is None:
                return
            self._pop(self._prepared[0])  # it failed
        for key, begun in self._begun.items():
            if key in keys and begun.done() and begun.exception() is None:
                there = begun.result()
                self._prepared = key, there
                first = {key: self._submit(functools.partial(work, there), fds)}
                self._begun = first | {k: b for k, b in self._begun.items() if k != key}
                return

    def wait_for_prepared(self) -> None:
        """Returns when no process is being prepared, nor is about to end that was."""
        if self._prepared is not None:
            wait([self._begun[self._prepared[0]]])
        if self._given_up is not None:
            wait([self._given_up])
            self._given_up = None

    def take(self, *keys: str) -> Any:
        """Returns the process that was prepared under one of the keys, else that was started first,
        or None.
        """
        for key in [k for k in self._begun if k in keys]:
            with suppress(Exception):
                return self._pop(key).result()
        return None

    def _pop(self, key: str) -> Future[Any]:
        if self._prepared is not None and key == self._prepared[0]:
            self._prepared = None
        return self._begun.pop(key)

    def wait(self) -> None:
        """Returns when no process is being started."""
        for begun in (*self._begun.values(), *self._leaving):
            with suppress(Exception):
                begun.result()
        self._leaving.clear()

    def keep(self, keys: Collection[str]) -> None:
        """Keeps those with these keys. The others end as soon as they have begun."""

        def end(begun: Future[Any]) -> None:
            with suppress(Exception):
                begun.result().kill()

        self._leaving = [begun for begun in self._leaving if not begun.done()]
        for key in self._begun.keys() - set(keys):
            if self._prepared is not None and key == self._prepared[0]:
                self._prepared[1].end()  # it need not go on
                self._given_up = self._begun[key]
            begun = self._pop(key)
            self._leaving.append(begun)
            begun.add_done_callback(end)

    def close(self) -> None:
        self.keep(())
        if self._starters is not None:
            self._starters.shutdown(wait=False)
            self._starters = None


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
        self._close: Callable[[], Any] = lambda: None

    def of(self, key: str) -> int:
        """Returns a descriptor, which stays this object's own, or -1."""
        return self._fd if key == self._key else -1

    def keep(self, key: str, fd: int) -> None:
        """Takes a descriptor over, in the place of what there was. Does nothing for -1."""
        if fd >= 0:
            self._close()
            self._key, self._fd = key, fd
            self._close = weakref.finalize(self, os.close, fd)


class Kept:
    """The reference's process that an evaluation ended with, the batch that it was of, and what was
    started for the next one.

    The next one of the same task has the process load the file anew, and saves starting one, on a
    GPU with a context of its own.
    """

    def __init__(self) -> None:
        self._client: ReferenceClient | None = None
        self._batch: Batch | None = None
        self.spares = Spares()
        # Under a profiler: they take seconds to start and until they are prepared nothing of the
        # GPU, so that nobody who is timed waits for more than that.
        self.profilers = Spares()
        self.compiled = Compiled()  # a few megabytes, for as long as no other task comes

    def __bool__(self) -> bool:
        waits = bool(self.spares) or bool(self.profilers)
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
        if client.key and client.holds() <= KEPT_BYTES:
            with suppress(WorkerFailure):
                client.drain(DRAIN_S)
                client.hold(())
                client.kept = True
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
        self.spares.close()
        self.profilers.close()

"""Processes that are started ahead, before an evaluation needs them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any


class WarmProcesses:
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

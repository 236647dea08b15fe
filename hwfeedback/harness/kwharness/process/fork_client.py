"""Asks a fork server for workers, and hears how they end."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kwharness.base import process_memory
from kwharness.base.configs import Config
from kwharness.base.protocol import MAX_WORKER_FRAME, Channel, Closed, ProtocolError, Timeout
from kwharness.machine import allocator
from kwharness.process import parent, policy
from kwharness.process.messages import (
    EVENTS,
    Asked,
    Exited,
    Failed,
    Kill,
    Log,
    Ping,
    Pong,
    ReadLog,
    Ready,
    Spawn,
    Spawned,
    Start,
)

A = TypeVar("A", bound=Asked)  # an answer
SERVER = os.path.join(os.path.dirname(__file__), "forkserver.py")


@dataclass
class Exit:
    """How a worker ended. ``reason``: "exited", "signalled", "killed" (by us), "oom" (the kernel's
    SIGKILL, for the memory or the processor time that it used), "foreign" (a SIGKILL from outside,
    or the kernel's for want of memory that others hold), "lost" (the fork server is gone).
    """

    code: int | None
    signal: int | None
    reason: str

    @property
    def blameless(self) -> bool:
        """Whether nothing that it did is why it ended."""
        return self.reason in ("foreign", "lost")


class Worker:
    """A spawned process, seen from whoever asked for it."""

    def __init__(self, server: ForkServer, ident: int, channel: Channel) -> None:
        self.channel = channel
        self.pid = 0
        self.mode = ""
        self.missing: list[str] = []
        # As far as is known: system calls by name, and files that are not its own by path.
        self.refused: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self._server = server
        self._id = ident
        self._exit: Exit | None = None
        self._log = ""

    def log(self) -> str:
        """The end of what it printed, at most 64 KiB. Foreign text."""
        if self._exit is None and self._server.alive:
            self._server._send(ReadLog(self._id))
            answer = self._server._answer(self._id, 10, Log)
            if self._exit is None and answer is not None:
                self._know(answer)
        return self._log

    def _know(self, said: Log) -> None:
        self._log, self.refused, self.files = said.log, said.refused, said.files

    def kill(self) -> None:
        """Kills it and all its descendants; ``wait`` tells when they are gone. Idempotent."""
        self.end()
        self.channel.close()

    def end(self) -> None:
        """The same, but whoever talks to it finds it gone by himself: from any thread."""
        if self._exit is None:
            self._server._send(Kill(self._id))

    def wait(self, timeout: float | None = None) -> Exit | None:
        """How it ended, or None if it has not within ``timeout`` seconds."""
        self._server._pump(lambda: self._exit is not None, timeout)
        return self._exit

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait(10)


class ForkServer:
    """The client's side of one connection. Safe to use from several threads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._reading = False
        self._workers: dict[int, Worker] = {}
        self._answers: dict[tuple[type[Asked], int], Any] = {}
        self._next = 0
        self.alive = True

    def spawn(
        self,
        config: Config,
        fds: Sequence[int] = (),
        *,
        limits: policy.Limits | None = None,
        timeout: float = 60.0,
    ) -> Worker:
        """Starts a worker and returns once it is confined.

        ``config`` and ``fds`` go to the worker's ``main`` and not through the server. Raises
        policy.SandboxError when it cannot be confined, Closed when the server is gone.
        """
        settings = policy.Settings(
            mode=config.sandbox,
            read_only=[*config.read_only, *filter(None, [config.inductor_cache])],
            threads=config.threads,
            limits=limits or policy.Limits(),
            gpu=config.place.gpu,
            gpu_uuid=config.place.gpu_uuid,
            tools=config.tools,
            preimport=config.preimport,
        )
        ours, theirs = Channel.pair(MAX_WORKER_FRAME)
        with self._lock:
            self._next += 1
            worker = Worker(self, self._next, ours)
            self._workers[worker._id] = worker
        try:
            self._send(Spawn(worker._id, config.role, settings), [theirs.fileno()])
        finally:
            theirs.close()
        with contextlib.suppress(Closed):
            ours.send(Start(config.to_json()).to_json(), fds)
        answer = self._answer(worker._id, timeout, Spawned, Failed)
        if not isinstance(answer, Spawned):
            with self._lock:
                self._workers.pop(worker._id, None)
            ours.close()
            if answer is None and self.alive:
                self._send(Kill(worker._id))
                raise Timeout(f"no worker within {timeout:g} s")
            if answer is None:
                raise Closed("the fork server is gone")
            said = answer.message if isinstance(answer, Failed) else ""
            raise policy.SandboxError(said or "the worker could not be started")
        worker.pid, worker.mode, worker.missing = answer.pid, answer.mode, answer.missing
        if not process_memory.readable(worker.pid):
            worker.missing.append("reads of a worker's memory")
        return worker

    def ping(self) -> Pong:
        """The server's state."""
        with self._lock:
            self._next += 1
            ident = self._next
        self._send(Ping(ident))
        answer = self._answer(ident, 10, Pong)
        if answer is None:
            raise Closed("the fork server does not answer")
        return answer

    def close(self) -> None:
        """Ends the connection: the server kills what was spawned over it."""
        self.alive = False
        self._channel.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def _answer(self, ident: int, timeout: float, *kinds: type[A]) -> A | None:
        """Returns the answer to a request, one of these kinds; None where none comes."""
        keys = [(kind, ident) for kind in kinds]
        self._pump(lambda: any(k in self._answers for k in keys), timeout)
        with self._lock:
            return next((self._answers.pop(k) for k in keys if k in self._answers), None)

    def _send(self, asked: Asked, fds: Sequence[int] = ()) -> None:
        with self._lock:
            if not self.alive:
                return
            try:
                self._channel.send(asked.to_json(), fds)
            except ProtocolError:
                self._lost()

    def _pump(self, done: Any, timeout: float | None) -> None:
        """Reads events until ``done()``. One thread reads for all, and waits without the lock."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not done() and self.alive:
                left = min(0.1, max(deadline - time.monotonic(), 0.0))
                if self._reading:
                    self._arrived.wait(left)
                else:
                    self._reading = True
                    try:
                        self._read(left)
                    finally:
                        self._reading = False
                        self._arrived.notify_all()
                if left <= 0:
                    return

    def _read(self, wait: float) -> None:
        """Takes what has arrived, or what arrives within so many seconds. Holds the lock once."""
        if not self._channel.pending():
            self._lock.release()
            try:
                with contextlib.suppress(OSError, ValueError):
                    select.select([self._channel.fileno()], [], [], wait)
            finally:
                self._lock.acquire()
        try:
            while self.alive and self._channel.pending():
                msg, fds = self._channel.recv(0)
                for fd in fds:
                    os.close(fd)
                if (kind := EVENTS.get(str(msg.get("type")))) is not None:
                    self._dispatch(kind.from_json(msg))
        except ProtocolError:
            self._lost()

    def _dispatch(self, event: Asked) -> None:
        if not isinstance(event, Exited):
            self._answers[type(event), event.id] = event
        elif (worker := self._workers.pop(event.id, None)) is not None:
            worker._know(event)
            worker._exit = Exit(event.code, event.signal, event.reason)

    def _lost(self) -> None:
        self.alive = False
        for worker in self._workers.values():
            worker._exit = worker._exit or Exit(None, None, "lost")
        self._workers.clear()


def connect(fd: int) -> ForkServer:
    """Takes over a descriptor connected to the server: the first one that the referee is given."""
    return ForkServer(Channel.of_fd(fd))


def start(
    python: str = sys.executable,
    env: dict[str, str] | None = None,
    script: str = SERVER,
    more: Sequence[str] = (),
) -> tuple[ForkServer, Any]:
    """Starts a server as a child of this process, for tests and tools; ``more``: words of its
    command. Returns it and its Popen.
    """
    import subprocess

    ours, theirs = Channel.pair()
    keep = theirs.fileno()

    def place() -> None:
        os.dup2(keep, parent.CONTROL_FD)

    process = subprocess.Popen(
        [python, "-I", "-B", os.path.realpath(script), *more],
        env=env
        if env is not None
        else {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            allocator.FOLDER: f"{tempfile.gettempdir()}/kernelwright-{os.getuid()}",
        },
        stdin=subprocess.DEVNULL,
        pass_fds=[parent.CONTROL_FD] if keep == parent.CONTROL_FD else [keep, parent.CONTROL_FD],
        preexec_fn=place,
        start_new_session=True,
    )
    theirs.close()
    ready, _ = ours.recv(120)
    if ready.get("type") != Ready.kind:
        raise ProtocolError(f"expected ready, got {ready!r:.200}")
    return ForkServer(ours), process

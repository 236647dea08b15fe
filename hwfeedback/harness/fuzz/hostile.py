"""A worker that answers whatever a script says, in place of one that runs foreign code.

A script is JSON: for each operation a list of answers ``[message, descriptors]``, the last of which
is given again and again. A message that is a text is sent as these bytes, without a frame; ``each``
in an answer to ``forward`` stands for the result of every mode asked for. Descriptors are numbers:
see ``_descriptor``.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from kwharness.base import protocol
from kwharness.process import fork_client

_SIZES = (0, 64, 4096, 1 << 16)


def parse(data: bytes) -> dict[str, list[Any]] | None:
    """Returns the script in an input, or None."""
    try:
        script = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return script if isinstance(script, dict) else None


def _descriptor(kind: Any) -> int:
    """Opens what a number stands for: a sealed block, one that can shrink, or none at all."""
    kind = kind if type(kind) is int else 0
    size = _SIZES[kind // 8 % len(_SIZES)]
    if kind % 8 == 1:
        return os.open("/dev/zero", os.O_RDWR)
    if kind % 8 == 2:
        return os.open("/", os.O_RDONLY)
    if kind % 8 == 3:
        r, w = os.pipe()
        os.close(w)
        return r
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if kind % 8 == 4:
        return fd
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if kind % 8 == 5:
        seals |= fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@functools.cache
def _process() -> int:
    """Returns a process that does nothing: a session stops the one that it times."""
    child = subprocess.Popen(["sleep", "infinity"])
    atexit.register(child.kill)
    return child.pid


@functools.cache
def _readable(pid: int) -> int:
    """Returns an address that can be read in a process."""
    with open(f"/proc/{pid}/maps") as f:
        return next(int(line.split("-")[0], 16) for line in f if " r" in line)


class _Answering(protocol.Channel):
    """The referee's end: to send a request puts its answer on the way."""

    def __init__(
        self, sock: socket.socket, peer: socket.socket, script: dict[str, Any], readable: int
    ) -> None:
        super().__init__(sock, protocol.MAX_WORKER_FRAME)
        self._readable = readable
        self._peer = peer
        self._script = script
        self._asked: dict[str, int] = {}

    def send(
        self, msg: dict[str, Any], fds: Sequence[int] = (), timeout: float | None = None
    ) -> None:
        protocol.encode(msg, len(fds))  # what cannot be sent is a fault of ours
        op = str(msg.get("op"))
        answers = self._script.get(op)
        n = self._asked[op] = self._asked.get(op, -1) + 1
        if not isinstance(answers, list) or not answers:
            answers = [[{"ok": True}, []]]
        answer = answers[min(n, len(answers) - 1)]
        message, kinds = answer if isinstance(answer, list) and len(answer) == 2 else (answer, [])
        self._put(message, kinds if isinstance(kinds, list) else [], msg)

    def _put(self, message: Any, kinds: list[Any], request: dict[str, Any]) -> None:
        opened = [_descriptor(k) for k in kinds[:80]]
        try:
            if isinstance(message, str):
                frame = message.encode("latin-1", "replace")
            else:
                if isinstance(message, dict):
                    message = {"v": 1, "fds": len(opened), **message}
                    if message.get("at") == "here":
                        message["at"] = [self._readable]
                    if isinstance(each := message.pop("each", None), dict):
                        modes = request.get("modes") or []
                        message["results"] = [{**each, "mode": m} for m in modes]
                body = json.dumps(message).encode()
                frame = len(body).to_bytes(4, "big") + body
            rights = socket.send_fds if opened else None
            if rights is not None and frame:
                rights(self._peer, [frame], opened)
            else:
                self._peer.sendall(frame)
        except OSError:
            self._peer.close()  # more than a socket holds: who reads meets its end
        finally:
            for fd in opened:
                os.close(fd)

    def recv(self, timeout: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Nothing more will come than is there: who waits on meets the end."""
        if not self.pending() and self._peer.fileno() >= 0:
            self._peer.shutdown(socket.SHUT_WR)
        return super().recv(timeout)

    def close(self) -> None:
        self._peer.close()
        super().close()


class Hostile:
    """What fork_client.Worker is, for a client."""

    def __init__(self, script: dict[str, Any]) -> None:
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.setblocking(False)
        self.pid = _process()
        self.channel = _Answering(ours, peer, script, _readable(self.pid))
        self.missing: list[str] = []

    def kill(self) -> None:
        self.channel.close()

    def wait(self, timeout: float | None = None) -> fork_client.Exit:
        return fork_client.Exit(0, None, "exited")

    def log(self) -> str:
        return "printed \x1b[2J"

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Server:
    """What fork_client.ForkServer is, where every worker follows the script."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script

    def spawn(self, *_: Any, **__: Any) -> Hostile:
        return Hostile(self.script)


# What must hold.


def descriptors() -> set[tuple[str, str]]:
    """Returns the open descriptors, and what each stands for.

    A target leaves none that was not there. That one is gone says nothing about it: garbage of what
    ran before in this process may be collected at any time.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def sendable(value: Any) -> None:
    """Checks that Go can read a value: JSON, with whole numbers of 64 bits."""
    protocol.encode({"value": value})
    left = [value]
    while left:
        v = left.pop()
        if isinstance(v, dict):
            assert all(isinstance(k, str) for k in v), v
            left.extend(v.values())
        elif isinstance(v, (list, tuple)):
            left.extend(v)
        elif isinstance(v, int):
            assert -(1 << 63) <= v < 1 << 63, v


def sentence(text: Any) -> None:
    """Checks that a text can be said in one line."""
    assert isinstance(text, str) and text and len(text) <= 1000, repr(text)[:2000]
    assert text.isprintable(), repr(text)[:2000]
    text.encode()

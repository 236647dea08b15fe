"""The fork server: it has imported torch and done nothing else, so workers fork from it in
milliseconds.

It runs no thread, no parallel operator and no foreign code, and holds no seed and no expected
value: what a worker inherits from it is worth nothing to a cheat. Each worker serves once and is
killed with all its descendants.

Whoever holds a connection may spawn. Descriptor 3 is the first connection; when its peer goes,
everything goes. Where descriptor 3 listens instead, the server is kept warm for whoever connects:
what was spawned over a connection goes with it, and the server goes when nobody has been connected
for ``--idle`` seconds, or nobody could connect any more because the socket's path is gone. These
connections begin with {"type": "ready", "versions", "pid"}; a referee's does not. Requests and
events on a connection (messages.py has their fields):

    {"type": "spawn", "id", "role", "settings", "config"?}, fds = [worker's socket, ...the worker's
        own]
        -> {"type": "spawned", "id", "pid", "mode", "missing"} | {"type": "failed", "id", "message"}
        -> later {"type": "exited", "id", "pid", "code", "signal", "reason", "log", "refused",
            "files"}
    {"type": "kill", "id"}    -> the worker and all its descendants die; "exited" follows
    {"type": "rest", "id"}, fds = [the asker's end of its conversation]
                              -> the referee stays when its connection goes, for a while: it is told
                                 {"type": "left"}, and {"type": "taken"}, fds = [its new socket],
                                 when somebody spawns one of the same config
    {"type": "log", "id"}     -> {"type": "log", "id", "log", "refused", "files"}: the end of what
                                 the worker printed, how often it was refused which system calls,
                                 and how often it asked for which files that are not its own
    {"type": "ping", "id"}    -> {"type": "pong", "id", "threads", "workers"}

With ``--early`` it has not imported torch, and forks what reads and compiles alone
(``worker_start.EARLY``): a compiler's error need not wait for torch.

A spawn without "config" has its worker wait for {"type": "start", "config"} with further
descriptors on the worker's own socket, so that what is meant for the worker never passes through
this process.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.realpath(os.path.join(__file__, "..", "..", "..")))

from kwharness.process import bytecode, parent

if __name__ == "__main__":
    bytecode.keep()

if __name__ == "__main__" and "--path" not in sys.argv:  # one kept warm outlives its starter
    parent.follow(parent.CONTROL_FD)

import argparse
import contextlib
import gc
import importlib
import json
import resource
import select
import shutil
import signal
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from kwharness.base.protocol import Channel, Closed, ProtocolError
from kwharness.machine import allocator
from kwharness.process import linux, policy, spawn_request, without_torch, worker_start
from kwharness.process.audit import Listener
from kwharness.process.messages import (
    Asked,
    Confined,
    Exited,
    Failed,
    Forked,
    Kill,
    Left,
    Log,
    Ping,
    Pong,
    ReadLog,
    Ready,
    Rest,
    Spawn,
    Spawned,
    Taken,
    Typed,
)

POLL_MS = 500  # how often a server that is kept warm sees whether it is still wanted
HEAP_BYTES = 128 << 20  # that importing torch has of the C library
HUGE_S = 0.2  # of a start may go into quicker forks: a twentieth of what importing torch takes
REST_S = 60.0  # that a referee waits for who comes next, as long as it keeps what it has for them
LARGE = 0.25  # of the memory that it may use: a worker that was killed below that was in the way
LOG_KEPT = 64 << 10  # bytes: the first quarter and the last three quarters of what a worker printed


class Printed:
    """The beginning and the end of a stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = LOG_KEPT // 4 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        extra = len(self._tail) - LOG_KEPT * 3 // 4
        if extra > 0:
            del self._tail[:extra]
            self._dropped += extra

    def text(self) -> str:
        gap = f"\n[... {self._dropped} bytes ...]\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")


@dataclass
class Child:
    """A worker as the server sees it."""

    pid: int
    id: int
    owner: Connection
    role: str
    log_fd: int
    status_fd: int
    life_fd: int  # closing it tells a worker that starts that the server is gone
    contained: bool  # pid 1 of its own namespace
    scratch: str = ""
    settings: policy.Settings | None = None  # None: a referee's, which is not confined
    listener: Listener | None = None  # hears what it tries that is not its business
    status: bytearray = field(default_factory=bytearray)
    log: Printed = field(default_factory=Printed)
    killed: bool = False
    failed: bool = False
    # Of a referee:
    config: dict[str, Any] | None = None
    own: Connection | None = None  # that it spawns over

    def known(self) -> Log:
        """Returns what is known of its doings."""
        if self.listener is None:
            return Log(self.id, self.log.text())
        return Log(self.id, self.log.text(), self.listener.refused, self.listener.files)


@dataclass(eq=False)
class Connection:
    """Someone who may spawn."""

    channel: Channel
    children: dict[int, Child] = field(default_factory=dict)


@dataclass
class Resting:
    """A referee whose user has gone, with all that it keeps for the next one."""

    child: Child
    link: Channel  # the end of its conversation that its user had
    since: float = field(default_factory=time.monotonic)


class Server:
    """The loop. Everything in it belongs to the one thread of the process."""

    def __init__(self, control: socket.socket, path: str = "", idle: float = 0.0) -> None:
        """``path`` and ``idle`` are for a control socket that listens."""
        self.control = control
        self.listens = bool(control.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        self.path, self.idle = path, idle
        self._inode = os.stat(path).st_ino if self.listens else 0
        self.connections: dict[int, Connection] = {}
        self.children: dict[int, Child] = {}
        self.poll = select.poll()
        self.readers: dict[int, Child] = {}  # log pipes and status sockets
        self.listeners: dict[int, Child] = {}
        self.resting: Resting | None = None
        self.wake_r, self.wake_w = socket.socketpair()
        self.wake_r.setblocking(False)
        self.wake_w.setblocking(False)
        self.poll.register(self.wake_r.fileno(), select.POLLIN)
        signal.set_wakeup_fd(self.wake_w.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        linux.no_word_of_stopped_children()
        if self.listens:
            control.setblocking(False)
            self.poll.register(control.fileno(), select.POLLIN)
        else:
            self._greet(self._adopt(control))

    def serve(self) -> None:
        """Serves until the control connection ends, or nobody comes; then takes all down."""
        left = time.monotonic()
        try:
            while self.listens or self.control.fileno() >= 0:
                used = self._used()
                waits = self.listens and (self.resting is not None or not used)
                events = self.poll.poll(POLL_MS if waits else None)
                if self.resting is not None and not self._may_rest(self.resting.since):
                    self._end_rest()
                if used:
                    left = time.monotonic()
                elif not events and (time.monotonic() - left > self.idle or not self._found()):
                    return
                for fd, _ in events:
                    if fd == self.wake_r.fileno():
                        with contextlib.suppress(BlockingIOError):
                            self.wake_r.recv(4096)
                        self._reap()
                    elif fd in self.readers:
                        self._read(self.readers[fd], fd)
                    elif fd in self.listeners:
                        self._hear(self.listeners[fd])
                    elif self.listens and fd == self.control.fileno():
                        self._accept()
                    elif fd in self.connections:
                        self._serve_connection(self.connections[fd])
        finally:
            if self.listens and self._found():
                os.unlink(self.path)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for child in list(self.children.values()):
                self._kill(child)
            # What a worker holds, a device's lease among it, is free once it is reaped.
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)

    def _used(self) -> bool:
        """Whether somebody is connected, beside a referee that rests."""
        own = self.resting.child.own if self.resting is not None else None
        return any(c is not own for c in self.connections.values())

    def _may_rest(self, since: float) -> bool:
        """Whether somebody may still come for a referee."""
        return self.listens and time.monotonic() - since < REST_S and self._found()

    def _found(self) -> bool:
        """Whether the socket's path still leads here."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def _accept(self) -> None:
        try:
            sock, _ = self.control.accept()
        except OSError:
            return  # it has gone again
        # The folder is its owner's alone; this is for those that it was opened to all the same.
        _pid, uid, _gid = struct.unpack(
            "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if uid != os.getuid():
            sock.close()
            return
        self._greet(self._adopt(sock))

    def _greet(self, connection: Connection) -> None:
        import torch

        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        try:
            _send(connection.channel, Ready(versions, os.getpid()))
        except ProtocolError:
            self._drop(connection)

    def _serve_connection(self, connection: Connection) -> None:
        """Handles what has arrived."""
        try:
            while connection.channel.pending():
                msg, fds = connection.channel.recv(0)
                try:
                    self._handle(connection, msg, fds)
                finally:
                    for fd in fds:
                        with contextlib.suppress(OSError):
                            os.close(fd)
        except ProtocolError:
            self._drop(connection)

    def _handle(self, connection: Connection, msg: dict[str, Any], fds: list[int]) -> None:
        kind, ident = msg.get("type"), Asked.from_json(msg, "a request").id
        child = connection.children.get(ident)
        if kind == Spawn.kind:
            try:
                self._spawn(connection, Spawn.from_json(msg), fds)
            except (OSError, ValueError, ProtocolError, policy.SandboxError) as e:
                _send(connection.channel, Failed(ident, str(e)))
        elif kind == Kill.kind:
            if child is not None:
                self._kill(child)
        elif kind == Rest.kind:
            if child is not None and child.role == "referee" and fds:
                self._rest(child, fds[0])
        elif kind == ReadLog.kind:
            if child is not None and child.log_fd >= 0:
                self._read(child, child.log_fd)
            _send(connection.channel, child.known() if child is not None else Log(ident))
        elif kind == Ping.kind:
            tasks = len(os.listdir("/proc/self/task"))
            _send(connection.channel, Pong(ident, tasks, len(self.children)))
        else:
            raise ProtocolError(f"unknown request {kind!r:.40}")

    def _spawn(self, connection: Connection, asked: Spawn, fds: list[int]) -> None:
        settings = spawn_request.wanted(asked)
        role = settings.profile
        if not fds:
            raise ValueError("a spawn needs the worker's socket")
        if asked.id in connection.children:
            raise ValueError(f"id {asked.id} is in use")
        spawn_request.preimport(settings.preimport)
        extra = list(fds)
        if role == "referee":
            if self._woken(connection, asked, fds[0]):
                return
            ours, theirs = socket.socketpair()
            extra.insert(1, theirs.fileno())
            pid = os.fork()
            if pid == 0:
                worker_start.run_child(lambda: worker_start.trusted(role, asked.config, extra))
            theirs.close()
            child = Child(pid, asked.id, connection, role, -1, -1, -1, False)
            child.config, child.own = asked.config, self._adopt(ours)
            self._register(child)
            self._tell(child, _trusted_child(child))
            return
        ours, theirs = socket.socketpair()
        status_r, status_w = ours.detach(), theirs.detach()
        life_r, life_w = os.pipe()
        log_r, log_w = os.pipe()
        middle = os.fork()
        if middle == 0:
            worker_start.run_child(
                lambda: worker_start.between(settings, asked.config, extra, status_w, life_r, log_w)
            )
        for fd in (status_w, life_r, log_w):
            os.close(fd)
        os.waitpid(middle, 0)  # it lives for two system calls and a fork
        first = _read_line(status_r)
        if not first.pid:
            for fd in (status_r, life_w, log_r):
                os.close(fd)
            raise OSError(first.error or "the worker died before it began")
        os.set_blocking(log_r, False)
        os.set_blocking(status_r, False)
        child = Child(
            first.pid,
            asked.id,
            connection,
            role,
            log_r,
            status_r,
            life_w,
            first.contained,
            first.scratch,
            settings,
        )
        self._register(child)
        for fd in (log_r, status_r):
            self.readers[fd] = child
            self.poll.register(fd, select.POLLIN)
        os.write(life_w, b"g")

    def _rest(self, child: Child, fd: int) -> None:
        """Has a referee that has no request wait for whoever asks for one like it, and takes the
        end of its conversation that its user had.
        """
        if not self._may_rest(time.monotonic()):
            return  # it goes with its user
        try:
            link = Channel.of_fd(os.dup(fd))
        except OSError:
            return
        self._end_rest()
        del child.owner.children[child.id]
        self.resting = Resting(child, link)
        with contextlib.suppress(ProtocolError):  # it is gone, and will be buried
            _send(link, Left())

    def _end_rest(self) -> None:
        """Kills the referee that rests, if there is one."""
        resting, self.resting = self.resting, None
        if resting is not None:
            resting.link.close()
            self._kill(resting.child)

    def _woken(self, connection: Connection, asked: Spawn, fd: int) -> bool:
        """Gives who asks for a referee the one that rests, if it is one like that."""
        resting = self.resting
        if resting is None or resting.child.config != asked.config:
            return False
        self.resting = None
        child = resting.child
        try:
            _send(resting.link, Taken(), fd)
        except ProtocolError:
            self._kill(child)
            return False
        finally:
            resting.link.close()
        child.id, child.owner = asked.id, connection
        self._register(child)
        self._tell(child, _trusted_child(child))
        return True

    def _adopt(self, sock: socket.socket) -> Connection:
        connection = Connection(Channel(sock))
        self.connections[sock.fileno()] = connection
        self.poll.register(sock.fileno(), select.POLLIN)
        return connection

    def _register(self, child: Child) -> None:
        self.children[child.pid] = child
        child.owner.children[child.id] = child

    def _read(self, child: Child, fd: int) -> None:
        try:
            if fd == child.status_fd:
                data = self._status(child, fd)
            else:
                data = os.read(fd, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if fd == child.log_fd:
            child.log.add(data)
        else:
            child.status += data
        if data:
            return
        self._forget_fd(child, fd)
        if fd == child.status_fd:
            child.status_fd = -1
            self._report(child)
        else:
            child.log_fd = -1

    def _status(self, child: Child, fd: int) -> bytes:
        """Reads what a worker says while it starts, and who hears of what it tries."""
        sock = socket.socket(fileno=fd)
        try:
            data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        finally:
            sock.detach()
        for listener in fds:
            if child.listener is not None or child.status_fd < 0 or child.settings is None:
                os.close(listener)
                continue
            child.listener = Listener(listener, child.settings)
            self.listeners[listener] = child
            self.poll.register(listener, select.POLLIN)
        return data

    def _hear(self, child: Child) -> None:
        if child.listener is not None and not child.listener.hear():
            self._deaf(child)

    def _deaf(self, child: Child) -> None:
        """Stops listening to what a worker tries."""
        listener = child.listener
        if listener is not None and self.listeners.pop(listener.fd, None) is not None:
            self.poll.unregister(listener.fd)
            listener.close()

    def _report(self, child: Child) -> None:
        """Answers the spawn: the worker has closed its status pipe, so it is confined or dead."""
        try:
            said = Confined.from_json(json.loads(bytes(child.status)))
        except (ValueError, ProtocolError):
            if child.log_fd >= 0:
                self._read(child, child.log_fd)
            end = child.log.text().strip()[-500:]
            said = Confined([], f"the worker died before it was confined. {end}".strip())
        if said.error is not None:
            child.failed = True
            self._kill(child)
            self._tell(child, Failed(child.id, said.error))
            return
        assert child.settings is not None
        self._tell(child, Spawned(child.id, child.pid, child.settings.mode, said.missing))

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is None:
                continue  # an orphan of a worker without a pid namespace
            self._bury(child, status, used)

    def _bury(self, child: Child, status: int, used: resource.struct_rusage) -> None:
        if not child.contained and child.role != "referee":
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        for fd in (child.status_fd, child.log_fd):
            if fd >= 0:
                while fd in self.readers:
                    before = child.log_fd, child.status_fd, len(child.status), child.log.text()
                    self._read(child, fd)
                    if before == (
                        child.log_fd,
                        child.status_fd,
                        len(child.status),
                        child.log.text(),
                    ):
                        self._forget_fd(child, fd)
        self._deaf(child)
        if child.life_fd >= 0:
            os.close(child.life_fd)
        if child.scratch:
            shutil.rmtree(child.scratch, ignore_errors=True)
        if self.resting is not None and self.resting.child is child:
            self.resting.link.close()
            self.resting = None
        elif child.owner.children.get(child.id) is child:
            del child.owner.children[child.id]
        killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        reason = "exited"
        if killer is not None:
            reason = "signalled"
            if killer == signal.SIGKILL:
                reason = "killed" if child.killed else _who_killed(child, used)
        if not child.failed:
            known = child.known()
            event = Exited(
                known.id,
                known.log,
                known.refused,
                known.files,
                pid=child.pid,
                code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                signal=killer,
                reason=reason,
            )
            self._tell(child, event)

    def _forget_fd(self, child: Child, fd: int) -> None:
        if self.readers.pop(fd, None) is not None:
            self.poll.unregister(fd)
            os.close(fd)

    def _tell(self, child: Child, event: Typed) -> None:
        if child.owner.channel.fileno() < 0:
            return
        try:
            _send(child.owner.channel, event)
        except ProtocolError:
            self._drop(child.owner)

    def _kill(self, child: Child) -> None:
        child.killed = True
        if not child.contained and child.role != "referee":
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGKILL)

    def _drop(self, connection: Connection) -> None:
        fd = connection.channel.fileno()
        if fd < 0:
            return
        del self.connections[fd]
        self.poll.unregister(fd)
        connection.channel.close()
        for child in list(connection.children.values()):
            self._kill(child)


def _send(channel: Channel, said: Typed, *fds: int) -> None:
    channel.send(said.to_json(), fds, timeout=5)


def _trusted_child(child: Child) -> Spawned:
    """Returns what is answered when a referee is there."""
    return Spawned(child.id, child.pid, "trusted", [])


def _who_killed(child: Child, used: resource.struct_rusage) -> str:
    """Returns why a worker got a SIGKILL that was not ours: "oom" or "foreign".

    One in a namespace of its own cannot send itself any. The kernel does, for processor time, and
    where memory runs out it takes our workers first, whoever holds it.
    """
    if child.settings is None or not child.contained:
        return "oom"
    limits = policy.limits(child.settings)
    big = used.ru_maxrss << 10 > limits.memory_bytes * LARGE
    long = used.ru_utime + used.ru_stime > limits.cpu_s * 0.9
    return "oom" if big or long else "foreign"


def _read_line(fd: int) -> Forked:
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(fd, 4096)
        if not piece:
            break
        data += piece
        if b"\n" in data:
            break
    try:
        return Forked.from_json(json.loads(data))
    except (ValueError, ProtocolError):
        return Forked()


def _import() -> None:
    """Imports torch and all that workers run."""
    with bytecode.of_others():
        import torch  # noqa: F401

        with contextlib.suppress(ImportError):
            import numpy.random  # noqa: F401  # seeded in every worker, and lazy

    for module in worker_start.MODULES.values():
        # Where one is broken its worker will say so; the others must go on.
        with contextlib.suppress(Exception):
            prepare = getattr(importlib.import_module(module), "prepare", None)
            if prepare is not None:  # what its processes would else do once each
                prepare()


def _import_early() -> None:
    """Imports what reads and compiles. No other worker is forked from here on."""
    without_torch.install()
    worker_start.MODULES.clear()
    worker_start.MODULES.update(worker_start.EARLY)
    for module in worker_start.MODULES.values():
        importlib.import_module(module)


def main() -> None:
    if "--early" not in sys.argv:
        allocator.preload()
    # Set before torch comes in: each would start threads, or a pool of processes, where only one
    # may be.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ |= policy.NO_GPU
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for whoever started us
    parser = argparse.ArgumentParser(description="The fork server: see its source.")
    parser.add_argument("--path", default="", help="of the socket, where descriptor 3 listens")
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--early", action="store_true", help="without torch")
    parser.add_argument("--huge", type=float, default=HUGE_S, metavar="SECONDS", help="HUGE_S")
    args = parser.parse_args()
    control = socket.socket(fileno=parent.CONTROL_FD)
    os.set_inheritable(parent.CONTROL_FD, False)
    if args.early:
        _import_early()
    else:
        with allocator.heap_in_huge_pages(HEAP_BYTES):
            _import()
    bytecode.done()
    linux.become_subreaper()
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise SystemExit(f"fork server: {tasks} threads after the imports, expected one")
    gc.collect()
    gc.freeze()
    if not args.early:
        allocator.collapse(args.huge)
    if not args.path:
        parent.lead(parent.CONTROL_FD)
    Server(control, args.path, args.idle).serve()


if __name__ == "__main__":
    try:
        main()
    except Closed:
        sys.exit(0)

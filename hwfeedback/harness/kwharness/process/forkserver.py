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
events on a connection (see protocol.schema.json):

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

A spawn without "config" has its worker wait for {"type": "start", "config"} with further
descriptors on the worker's own socket, so that what is meant for the worker never passes through
this process.
"""

from __future__ import annotations

import os
import sys

CONTROL_FD = 3
if __name__ == "__main__":
    sys.path.insert(0, os.path.realpath(os.path.join(__file__, "..", "..", "..")))

from kwharness.process import parent

if __name__ == "__main__" and "--path" not in sys.argv:  # one kept warm outlives its starter
    parent.follow(CONTROL_FD)

import argparse
import contextlib
import gc
import importlib
import json
import math
import resource
import select
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kwharness.base import process_memory
from kwharness.base.protocol import MAX_WORKER_FRAME, Channel, Closed, ProtocolError, Timeout
from kwharness.machine import allocator
from kwharness.process import linux, policy, sandbox
from kwharness.process.audit import Listener

POLL_MS = 500  # how often a server that is kept warm sees whether it is still wanted
HEAP_BYTES = 128 << 20  # that importing torch has of the C library
HUGE_S = 0.2  # of a start may go into quicker forks: a twentieth of what importing torch takes
REST_S = 60.0  # that a referee waits for who comes next, as long as it keeps what it has for them
LARGE = 0.25  # of the memory that it may use: a worker that was killed below that was in the way
LOG_KEPT = 64 << 10  # bytes: the first quarter and the last three quarters of what a worker printed
START_TIMEOUT = 30.0  # seconds a new worker waits for its start message
MODULES = {
    "referee": "kwharness.referee.main",
    "reference": "kwharness.workers.reference",
    "candidate": "kwharness.workers.candidate",
    "builder": "kwharness.workers.builder",
    "profiler": "kwharness.workers.profiler",
}
# Costly imports that start no thread, done in the server when a worker first asks, so that its
# successors have them.
PREIMPORTS = {
    "compile": (
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "torch._dynamo.backends.inductor",
        "torch._dynamo.repro.after_dynamo",
        "torch._inductor.bounds",
        "torch._inductor.choices",
        "torch._inductor.codegen.cpp_wrapper_cpu",
        "torch.utils.cpp_extension",
    ),
    # What a first compilation for a GPU imports besides: a second, where Python has not kept them
    # compiled.
    "compile_gpu": (
        "sympy.physics.units",
        "torch._dynamo.backends.cudagraphs",
        "torch._inductor.codegen.cpp_wrapper_gpu",
        "torch._inductor.codegen.cuda_combined_scheduling",
        "torch._inductor.codegen.pallas",
        "torch._inductor.fx_passes.fuse_attention",
        "torch._inductor.fx_passes.quantization",
        *(f"torch._inductor.fx_passes.serialized_patterns._sfdp_pattern_{n}" for n in range(1, 28)),
        "torch._inductor.runtime.caching",
        "torch._inductor.runtime.triton_heuristics",
        "torch.distributed.tensor.experimental",
        "torch.export._trace",
        "torch.fx.experimental.validator",
        "triton.compiler.code_generator",
        "triton.tools.tensor_descriptor",
    ),
    "extension": ("torch.utils.cpp_extension",),
    # What operators are taken apart with, where rounding is simulated.
    "noise": (
        "sympy",
        "torch.fx.experimental.symbolic_shapes",
        "torch._dynamo",
        "torch.utils.flop_counter",
    ),
}


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


class Log:
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
    id: Any
    owner: Connection
    role: str
    log_fd: int
    status_fd: int
    life_fd: int  # closing it tells a worker that starts that the server is gone
    contained: bool  # pid 1 of its own namespace
    scratch: str = ""
    mode: str = ""
    limits: policy.Limits = field(default_factory=policy.Limits)
    settings: policy.Settings | None = None
    listener: Listener | None = None  # hears what it tries that is not its business
    status: bytearray = field(default_factory=bytearray)
    log: Log = field(default_factory=Log)
    killed: bool = False
    failed: bool = False
    # Of a referee:
    config: Any = None
    own: Connection | None = None  # that it spawns over

    def tried(self) -> dict[str, dict[str, int]]:
        """Returns how often it was refused which calls, and asked for which files of others."""
        if self.listener is None:
            return {"refused": {}, "files": {}}
        return {"refused": self.listener.refused, "files": self.listener.files}


@dataclass(eq=False)
class Connection:
    """Someone who may spawn."""

    channel: Channel
    children: dict[Any, Child] = field(default_factory=dict)


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
            ready = {"type": "ready", "versions": versions, "pid": os.getpid()}
            connection.channel.send(ready, timeout=5)
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
        kind, ident = msg.get("type"), msg.get("id")
        if type(ident) is not int or not 0 <= ident < 1 << 62:
            raise ProtocolError(f"no request's id: {ident!r:.40}")
        child = connection.children.get(ident)
        if kind == "spawn":
            try:
                self._spawn(connection, msg, fds)
            except (OSError, ValueError, TypeError, KeyError, policy.SandboxError) as e:
                connection.channel.send(
                    {"type": "failed", "id": ident, "message": str(e)}, timeout=5
                )
        elif kind == "kill":
            if child is not None:
                self._kill(child)
        elif kind == "rest":
            if child is not None and child.role == "referee" and fds:
                self._rest(child, fds[0])
        elif kind == "log":
            if child is not None and child.log_fd >= 0:
                self._read(child, child.log_fd)
            text = child.log.text() if child is not None else ""
            said = {"type": "log", "id": ident, "log": text}
            if child is not None:
                said |= child.tried()
            connection.channel.send(said, timeout=5)
        elif kind == "ping":
            tasks = len(os.listdir("/proc/self/task"))
            pong = {"type": "pong", "id": ident, "threads": tasks, "workers": len(self.children)}
            connection.channel.send(pong, timeout=5)
        else:
            raise ProtocolError(f"unknown request {kind!r:.40}")

    def _spawn(self, connection: Connection, msg: dict[str, Any], fds: list[int]) -> None:
        settings, names = wanted(msg)
        role = settings.profile
        if not fds:
            raise ValueError("a spawn needs the worker's socket")
        if msg["id"] in connection.children:
            raise ValueError(f"id {msg['id']!r:.40} is in use")
        preimport(names)
        extra = list(fds)
        if role == "referee":
            if self._woken(connection, msg, fds[0]):
                return
            ours, theirs = socket.socketpair()
            extra.insert(1, theirs.fileno())
            pid = os.fork()
            if pid == 0:
                _run_child(lambda: _trusted(role, msg.get("config"), extra))
            theirs.close()
            child = Child(pid, msg["id"], connection, role, -1, -1, -1, False)
            child.config, child.own = msg.get("config"), self._adopt(ours)
            self._register(child)
            self._tell(child, _trusted_child(child))
            return
        ours, theirs = socket.socketpair()
        status_r, status_w = ours.detach(), theirs.detach()
        life_r, life_w = os.pipe()
        log_r, log_w = os.pipe()
        middle = os.fork()
        if middle == 0:
            _run_child(lambda: _middle(settings, msg.get("config"), extra, status_w, life_r, log_w))
        for fd in (status_w, life_r, log_w):
            os.close(fd)
        os.waitpid(middle, 0)  # it lives for two system calls and a fork
        first = _read_line(status_r)
        if "pid" not in first:
            for fd in (status_r, life_w, log_r):
                os.close(fd)
            raise OSError(first.get("error") or "the worker died before it began")
        os.set_blocking(log_r, False)
        os.set_blocking(status_r, False)
        child = Child(
            first["pid"],
            msg["id"],
            connection,
            role,
            log_r,
            status_r,
            life_w,
            first["contained"],
            first["scratch"],
            settings.mode,
            policy.limits(settings),
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
            link.send({"type": "left"}, timeout=5)

    def _end_rest(self) -> None:
        """Kills the referee that rests, if there is one."""
        resting, self.resting = self.resting, None
        if resting is not None:
            resting.link.close()
            self._kill(resting.child)

    def _woken(self, connection: Connection, msg: dict[str, Any], fd: int) -> bool:
        """Gives who asks for a referee the one that rests, if it is one like that."""
        resting = self.resting
        if resting is None or resting.child.config != msg.get("config"):
            return False
        self.resting = None
        child = resting.child
        try:
            resting.link.send({"type": "taken"}, [fd], timeout=5)
        except ProtocolError:
            self._kill(child)
            return False
        finally:
            resting.link.close()
        child.id, child.owner = msg["id"], connection
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
            said = json.loads(bytes(child.status))
        except ValueError:
            if child.log_fd >= 0:
                self._read(child, child.log_fd)
            end = child.log.text().strip()[-500:]
            said = {"error": f"the worker died before it was confined. {end}".strip()}
        if "error" in said:
            child.failed = True
            self._kill(child)
            self._tell(child, {"type": "failed", "id": child.id, "message": said["error"]})
            return
        self._tell(
            child,
            {
                "type": "spawned",
                "id": child.id,
                "pid": child.pid,
                "mode": child.mode,
                "missing": said["missing"],
            },
        )

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
            event = {
                "type": "exited",
                "id": child.id,
                "pid": child.pid,
                "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "signal": killer,
                "reason": reason,
                "log": child.log.text(),
                **child.tried(),
            }
            self._tell(child, event)

    def _forget_fd(self, child: Child, fd: int) -> None:
        if self.readers.pop(fd, None) is not None:
            self.poll.unregister(fd)
            os.close(fd)

    def _tell(self, child: Child, event: dict[str, Any]) -> None:
        if child.owner.channel.fileno() < 0:
            return
        try:
            child.owner.channel.send(event, timeout=5)
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


def _trusted_child(child: Child) -> dict[str, Any]:
    """Returns what is answered when a referee is there."""
    answer = {"type": "spawned", "id": child.id, "pid": child.pid}
    return answer | {"mode": "trusted", "missing": []}


def _who_killed(child: Child, used: resource.struct_rusage) -> str:
    """Returns why a worker got a SIGKILL that was not ours: "oom" or "foreign".

    One in a namespace of its own cannot send itself any. The kernel does, for processor time, and
    where memory runs out it takes our workers first, whoever holds it.
    """
    big = used.ru_maxrss << 10 > child.limits.memory_bytes * LARGE
    long = used.ru_utime + used.ru_stime > child.limits.cpu_s * 0.9
    return "oom" if big or long or not child.contained else "foreign"


def wanted(msg: dict[str, Any]) -> tuple[policy.Settings, list[str]]:
    """Returns what a spawn asks for: its settings, and what to import for it before. Raises
    ValueError for what is no such request.
    """

    def texts(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"no list of texts: {value!r:.40}")
        return value

    def number(value: Any) -> int:
        if type(value) not in (int, float) or not 0 <= value < 1 << 62:
            raise ValueError(f"no limit: {value!r:.40}")
        return int(value)

    role, given = msg.get("role"), msg.get("settings") or {}
    if not isinstance(role, str) or role not in MODULES:
        raise ValueError(f"unknown role {role!r:.40}")
    if not isinstance(given, dict) or not isinstance(given.get("limits") or {}, dict):
        raise ValueError(f"no settings: {given!r:.40}")
    if not isinstance(msg.get("config") or {}, dict):
        raise ValueError(f"no config: {msg['config']!r:.40}")
    settings = policy.Settings(
        profile=role,
        mode="weak" if given.get("mode") == "weak" else "strict",
        read_only=texts(given.get("read_only") or []),
        threads=number(given.get("threads") or 1),
        limits={k: number(v) for k, v in (given.get("limits") or {}).items() if v},
        gpu=None if given.get("gpu") is None else number(given["gpu"]),
        gpu_uuid=str(given.get("gpu_uuid") or "")[:80],
        tools=given.get("tools") is True,
    )
    return settings, texts(given.get("preimport") or [])


def preimport(names: Sequence[str]) -> None:
    """Imports a named group of modules. Raises ValueError for an unknown name."""
    before = tempfile.tempdir
    tempfile.tempdir = "/tmp"  # torch keeps its name; whatever TMPDIR says is not there in a worker
    try:
        for name in names:
            if name not in PREIMPORTS:
                raise ValueError(f"unknown preimport {name!r:.40}")
            for module in PREIMPORTS[name]:
                with contextlib.suppress(ImportError):  # private modules move between versions
                    importlib.import_module(module)
    finally:
        tempfile.tempdir = before


def _read_line(fd: int) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(fd, 4096)
        if not piece:
            break
        data += piece
        if b"\n" in data:
            break
    try:
        return json.loads(data or b"{}")
    except ValueError:
        return {}


def _run_child(body: Any) -> None:
    """Runs the body in a fresh fork. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        body()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _keep_only(kept: Sequence[int]) -> None:
    """Closes every descriptor but these and the standard three."""
    previous = 2
    for fd in sorted({*kept, 0, 1, 2}):
        if fd > previous + 1:
            os.closerange(previous + 1, fd)
        previous = max(previous, fd)
    os.closerange(previous + 1, 1 << 20)


def _trusted(role: str, config: dict[str, Any] | None, fds: list[int]) -> None:
    linux.die_with_parent()
    _keep_only(fds)
    _serve_role(role, config, fds)


def _middle(
    settings: policy.Settings,
    config: dict[str, Any] | None,
    fds: list[int],
    status: int,
    life: int,
    log: int,
) -> None:
    """Between server and worker: a pid namespace holds the children of whoever asked for it, not
    the asker.
    """
    _keep_only([*fds, status, life, log])
    try:
        departure = sandbox.leave_host(settings)
    except (OSError, policy.SandboxError) as e:
        os.write(status, json.dumps({"error": str(e)}).encode() + b"\n")
        return
    pid = os.fork()
    if pid == 0:
        _run_child(lambda: _worker(settings, departure, config, fds, status, life, log))
    first = {
        "pid": pid,
        "contained": "pid namespace" in departure.namespaces,
        "scratch": departure.scratch,
    }
    os.write(status, json.dumps(first).encode() + b"\n")


def _worker(
    settings: policy.Settings,
    departure: policy.Departure,
    config: dict[str, Any] | None,
    fds: list[int],
    status: int,
    life: int,
    log: int,
) -> None:
    if os.read(life, 1) != b"g":  # the server adopts this process first; end of file: it is gone
        return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(caught, signal.SIG_DFL)
    try:
        missing, listener = sandbox.confine(settings, departure)
    except (OSError, policy.SandboxError, ValueError) as e:
        os.write(status, json.dumps({"error": str(e)}).encode())
        return
    if listener >= 0:
        sock = socket.socket(fileno=status)
        socket.send_fds(sock, [b" "], [listener])
        sock.detach()
        os.close(listener)
    poll = select.poll()
    poll.register(life, select.POLLIN)
    if poll.poll(0):  # the server died before its death could have reached this process
        return
    home = departure.scratch or "/tmp"
    new = sandbox.environment(settings, home)
    os.environ.clear()
    os.environ.update(new)
    tempfile.tempdir = None
    os.chdir(home)
    import torch

    torch.set_num_threads(
        max(1, settings.threads)
    )  # the OpenMP runtime read its environment in the server
    os.write(status, json.dumps({"missing": missing}).encode())
    os.close(status)
    os.close(life)
    gc.unfreeze()
    _serve_role(settings.profile, config, fds)


def _serve_role(role: str, config: dict[str, Any] | None, fds: list[int]) -> None:
    channel = Channel.of_fd(fds[0])
    given = list(fds[1:])
    try:
        if config is None:
            msg, more = channel.recv(START_TIMEOUT)
            if msg.get("type") != "start":
                raise ProtocolError(f"expected start, got {msg.get('type')!r:.40}")
            config = msg.get("config") or {}
            given += more
        module = importlib.import_module(MODULES[role])
        module.main(channel, config, given)
    except Closed:
        pass  # whoever asked is gone: so are we
    finally:
        channel.close()


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
            answer = self._server._ask({"type": "log", "id": self._id}, "log", timeout=10)
            if self._exit is None and answer is not None:
                self._log = answer.get("log", "")
                self._tried(answer)
        return self._log

    def _tried(self, msg: dict[str, Any]) -> None:
        self.refused, self.files = msg.get("refused") or {}, msg.get("files") or {}

    def kill(self) -> None:
        """Kills it and all its descendants; ``wait`` tells when they are gone. Idempotent."""
        self.end()
        self.channel.close()

    def end(self) -> None:
        """The same, but whoever talks to it finds it gone by himself: from any thread."""
        if self._exit is None:
            self._server._send({"type": "kill", "id": self._id})

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
        self._answers: dict[tuple[str, int], dict[str, Any]] = {}
        self._next = 0
        self.alive = True

    def spawn(
        self,
        role: str,
        config: dict[str, Any],
        fds: Sequence[int] = (),
        *,
        limits: dict[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> Worker:
        """Starts a worker and returns once it is confined.

        ``config`` and ``fds`` go to the worker's ``main`` and not through the server. Of the config
        the sandbox reads: ``sandbox`` ("strict" or "weak"), ``threads``, ``read_only`` (host paths
        to show), ``preimport`` (names in PREIMPORTS), ``inductor_cache``, ``gpu`` (the number of
        the one that it may use), ``tools`` (whether NVIDIA's may look at what it starts).
        ``limits``: memory_bytes, processes, open_files, cpu_s, file_bytes, tmp_bytes. Raises
        policy.SandboxError when it cannot be confined, Closed when the server is gone.
        """
        read_only = list(config.get("read_only") or ())
        if config.get("inductor_cache"):
            read_only.append(config["inductor_cache"])
        settings = {
            "mode": config.get("sandbox", "strict"),
            "threads": config.get("threads", 1),
            "read_only": read_only,
            "gpu": config.get("gpu"),
            "gpu_uuid": config.get("gpu_uuid"),
            "tools": config.get("tools") is True,
            "preimport": list(config.get("preimport") or ()),
            "limits": dict(limits or {}),
        }
        ours, theirs = Channel.pair(MAX_WORKER_FRAME)
        with self._lock:
            self._next += 1
            worker = Worker(self, self._next, ours)
            self._workers[worker._id] = worker
        msg = {"type": "spawn", "id": worker._id, "role": role, "settings": settings}
        try:
            self._send(msg, [theirs.fileno()])
        finally:
            theirs.close()
        with contextlib.suppress(Closed):
            ours.send({"type": "start", "config": config}, fds)
        answer = self._answer("spawned", worker._id, timeout)
        if answer is None or answer["type"] == "failed":
            with self._lock:
                self._workers.pop(worker._id, None)
            ours.close()
            if answer is None and self.alive:
                self._send({"type": "kill", "id": worker._id})
                raise Timeout(f"no worker within {timeout:g} s")
            if answer is None:
                raise Closed("the fork server is gone")
            raise policy.SandboxError(answer.get("message") or "the worker could not be started")
        worker.pid = int(answer["pid"])
        worker.mode = str(answer.get("mode", ""))
        worker.missing = [str(m) for m in answer.get("missing") or ()]
        if not process_memory.readable(worker.pid):
            worker.missing.append("reads of a worker's memory")
        return worker

    def ping(self) -> dict[str, Any]:
        """The server's state: its threads (1, or something is wrong) and how many workers live."""
        with self._lock:
            self._next += 1
            ident = self._next
        self._send({"type": "ping", "id": ident})
        answer = self._answer("pong", ident, 10)
        if answer is None:
            raise Closed("the fork server does not answer")
        return answer

    def close(self) -> None:
        """Ends the connection: the server kills what was spawned over it."""
        self.alive = False
        self._channel.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def _ask(self, msg: dict[str, Any], kind: str, timeout: float) -> dict[str, Any] | None:
        self._send(msg)
        return self._answer(kind, msg["id"], timeout)

    def _answer(self, kind: str, ident: int, timeout: float) -> dict[str, Any] | None:
        self._pump(lambda: (kind, ident) in self._answers, timeout)
        with self._lock:
            return self._answers.pop((kind, ident), None)

    def _send(self, msg: dict[str, Any], fds: Sequence[int] = ()) -> None:
        with self._lock:
            if not self.alive:
                return
            try:
                self._channel.send(msg, fds)
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
                self._dispatch(msg)
        except ProtocolError:
            self._lost()

    def _dispatch(self, msg: dict[str, Any]) -> None:
        kind: Any = msg.get("type")
        ident: Any = msg.get("id")
        if kind == "exited":
            worker = self._workers.pop(ident, None)
            if worker is not None:
                worker._log = msg.get("log") or ""
                worker._tried(msg)
                worker._exit = Exit(
                    msg.get("code"), msg.get("signal"), msg.get("reason") or "exited"
                )
        else:
            self._answers["spawned" if kind == "failed" else kind, ident] = msg

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
    script: str = __file__,
    more: Sequence[str] = (),
) -> tuple[ForkServer, Any]:
    """Starts a server as a child of this process, for tests and tools; ``more``: words of its
    command. Returns it and its Popen.
    """
    import subprocess

    ours, theirs = Channel.pair()
    keep = theirs.fileno()

    def place() -> None:
        os.dup2(keep, CONTROL_FD)

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
        pass_fds=[CONTROL_FD] if keep == CONTROL_FD else [keep, CONTROL_FD],
        preexec_fn=place,
        start_new_session=True,
    )
    theirs.close()
    ready, _ = ours.recv(120)
    if ready.get("type") != "ready":
        raise ProtocolError(f"expected ready, got {ready!r:.200}")
    return ForkServer(ours), process


def main() -> None:
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
    parser.add_argument("--huge", type=float, default=HUGE_S, metavar="SECONDS", help="HUGE_S")
    args = parser.parse_args()
    control = socket.socket(fileno=CONTROL_FD)
    os.set_inheritable(CONTROL_FD, False)
    with allocator.heap_in_huge_pages(HEAP_BYTES):
        import torch  # noqa: F401

        with contextlib.suppress(ImportError):
            import numpy.random  # noqa: F401  # seeded in every worker, and lazy

        for module in MODULES.values():
            # Where one is broken its worker will say so; the others must go on.
            with contextlib.suppress(Exception):
                prepare = getattr(importlib.import_module(module), "prepare", None)
                if prepare is not None:  # what its processes would else do once each
                    prepare()
    linux.become_subreaper()
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise SystemExit(f"fork server: {tasks} threads after the imports, expected one")
    gc.collect()
    gc.freeze()
    allocator.collapse(args.huge)
    if not args.path:
        parent.lead(CONTROL_FD)
    Server(control, args.path, args.idle).serve()


if __name__ == "__main__":
    try:
        main()
    except Closed:
        sys.exit(0)

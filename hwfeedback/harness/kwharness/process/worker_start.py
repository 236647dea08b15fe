"""What a fork of the server becomes: a confined worker, or a referee."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

from kwharness.base import configs
from kwharness.base.protocol import Channel, Closed, ProtocolError
from kwharness.base.records import Message
from kwharness.process import linux, policy, sandbox
from kwharness.process.messages import Confined, Forked, Start

START_TIMEOUT = 30.0  # seconds a new worker waits for its start message
MODULES = {
    "referee": "kwharness.referee.main",
    "reference": "kwharness.workers.reference",
    "candidate": "kwharness.workers.candidate",
    "builder": "kwharness.workers.builder",
    "profiler": "kwharness.workers.profiler",
}
# Of a server without torch.
EARLY = {"referee": "kwharness.referee.early", "builder": "kwharness.workers.early_builder"}


def run_child(body: Any) -> None:
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


def trusted(role: str, config: dict[str, Any] | None, fds: list[int]) -> None:
    linux.die_with_parent()
    _keep_only(fds)
    _serve_role(role, config, fds)


def between(
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
        _tell(status, Forked(error=str(e)))
        return
    pid = os.fork()
    if pid == 0:
        run_child(lambda: _worker(settings, departure, config, fds, status, life, log))
    contained = "pid namespace" in departure.namespaces
    _tell(status, Forked(pid, contained, departure.scratch))


def _tell(status: int, said: Message) -> None:
    """Tells the server how far a worker has come."""
    os.write(status, json.dumps(said.to_json()).encode() + b"\n")


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
        _tell(status, Confined([], str(e)))
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
    _tell(status, Confined(missing))
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
            if msg.get("type") != Start.kind:
                raise ProtocolError(f"expected start, got {msg.get('type')!r:.40}")
            config = Start.from_json(msg).config
            given += more
        module = importlib.import_module(MODULES[role])
        kind = configs.BY_ROLE.get(role)  # a referee's is its starter's
        module.main(channel, config if kind is None else kind.from_json(config), given)
    except Closed:
        pass  # whoever asked is gone: so are we
    finally:
        channel.close()

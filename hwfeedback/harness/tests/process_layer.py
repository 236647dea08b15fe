"""For tests of the process layer: a fork server whose workers run the code they are sent."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from kwharness.base import paths
from kwharness.base.protocol import Channel
from kwharness.process import fork_client, forkserver, parent

HARNESS = pathlib.Path(paths.ROOT)
SCRIPT = pathlib.Path(forkserver.__file__).resolve().relative_to(HARNESS)
OBEDIENT = """
def main(channel, config, fds):
    space = {"config": config, "fds": fds, "channel": channel}
    while True:
        msg, more = channel.recv()
        space["r"] = None
        try:
            exec(msg["code"], space)
            channel.send({"r": space["r"]})
        except BaseException as e:
            channel.send({"raised": type(e).__name__, "message": str(e)})
"""


def obedient_server(
    folder: pathlib.Path, env: dict[str, str] | None = None, more: Sequence[str] = ()
) -> tuple[fork_client.ForkServer, Any]:
    """Starts a fork server on a copy of the harness in which every worker obeys; ``more``: words of
    its command.
    """
    script = str(obedient_harness(folder) / SCRIPT)
    return fork_client.start(script=script, env=env, more=more)


def obedient_harness(folder: pathlib.Path) -> pathlib.Path:
    """Returns a copy of the harness in which every worker obeys."""
    copy = folder / "harness"
    shutil.copytree(HARNESS, copy, ignore=shutil.ignore_patterns("tests", "fuzz", "__pycache__"))
    for role in ("reference", "candidate", "builder", "profiler"):
        (copy / "kwharness" / "workers" / f"{role}.py").write_text(OBEDIENT)
    return copy


# Of a server that forks hundreds of times: a third of a second more at its start, a third less at
# each.
FORKS_OFTEN = ("--huge", "30")


def listening(
    path: str,
    idle: float,
    folder: pathlib.Path = HARNESS,
    env: dict[str, str] | None = None,
    more: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts a fork server that is kept warm, for ``idle`` seconds without a connection; ``more``:
    words of its command.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        script = [str(folder / SCRIPT), "--path", path, "--idle", str(idle), *more]
        return subprocess.Popen(
            [sys.executable, "-I", "-B", *script],
            env=env,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: os.dup2(listener.fileno(), parent.CONTROL_FD),
            pass_fds=[parent.CONTROL_FD, listener.fileno()],
        )


def connect(path: str, pid: int) -> fork_client.ForkServer:
    """Connects to a server that is kept warm. Raises OSError where there is none any more."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    channel = Channel(sock)
    ready, _ = channel.recv(120)
    assert ready["type"] == "ready" and ready["pid"] == pid and ready["versions"]["torch"]
    return fork_client.ForkServer(channel)


def ask(worker: fork_client.Worker, code: str, timeout: float = 120) -> Any:
    """Runs code in a worker and returns what it left in ``r``; raises what it raised as
    RuntimeError.
    """
    worker.channel.send({"code": code})
    answer, _ = worker.channel.recv(timeout)
    if "raised" in answer:
        raise RuntimeError(f"{answer['raised']}: {answer['message']}")
    return answer["r"]

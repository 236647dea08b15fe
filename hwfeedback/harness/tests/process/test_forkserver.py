"""A fork server that is kept warm: it listens, serves who connects, and goes when nobody does."""

from __future__ import annotations

import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import waiting
from process_layer import HARNESS, SCRIPT, ask, connect, listening, obedient_harness

from kwharness.base.configs import CandidateConfig, ReferenceConfig
from kwharness.base.protocol import Channel, Closed
from kwharness.process import fork_client, parent, worker_start
from kwharness.process.messages import Rest, Spawn, Spawned

Start = Callable[[float], subprocess.Popen[bytes]]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "socket")


@pytest.fixture
def start(tmp_path: pathlib.Path, path: str) -> Iterator[Start]:
    """Starts a server that listens and ends after so many seconds without a connection."""
    harness = obedient_harness(tmp_path)
    started: list[subprocess.Popen[bytes]] = []

    def begin(idle: float) -> subprocess.Popen[bytes]:
        started.append(listening(path, idle, harness))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(120)


class Referee:
    """A real one, as Go asks for it."""

    def __init__(self, server: fork_client.ForkServer, config: dict[str, Any]) -> None:
        self.server = server
        self.channel, theirs = Channel.pair()
        server._send(Spawn(77, "referee", config=config), [theirs.fileno()])
        theirs.close()
        answer = server._answer(77, 120, Spawned)
        assert answer is not None and answer.mode == "trusted"
        self.pid = answer.pid

    def answers(self) -> bool:
        self.channel.send({"type": "nonsense", "id": 5})
        answer, _ = self.channel.recv(120)
        return bool(answer["id"] == 5 and answer["error"]["kind"] == "protocol")

    def rest(self) -> None:
        """Leaves it, and the server."""
        self.server._send(Rest(77), [self.channel.fileno()])
        self.channel.close()
        self.server.close()


def ends(pid: int) -> bool:
    waiting.until(lambda: not os.path.exists(f"/proc/{pid}"), f"the end of process {pid}")
    return True


def test_a_referee_waits_for_who_comes_next(start: Start, path: str) -> None:
    process = start(600)
    first = Referee(connect(path, process.pid), {"threads": 1})
    assert first.answers()
    first.rest()
    again = Referee(connect(path, process.pid), {"threads": 1})
    assert again.pid == first.pid and again.answers()
    beside = Referee(connect(path, process.pid), {"threads": 1})  # that one has no time
    assert beside.pid != again.pid and beside.answers()
    again.rest()
    other = Referee(connect(path, process.pid), {"threads": 2})
    assert other.pid != again.pid and other.answers()
    assert os.path.exists(f"/proc/{again.pid}")  # for somebody else
    beside.rest()
    assert ends(again.pid)  # one is kept
    other.server.close()
    assert ends(other.pid)  # it had not been left
    os.kill(beside.pid, 9)
    assert ends(beside.pid)
    last = Referee(connect(path, process.pid), {"threads": 1})
    assert last.answers()
    last.rest()
    os.unlink(path)
    assert process.wait(120) == 0  # nobody can come any more
    assert ends(last.pid)


def test_a_referee_waits_for_a_while(start: Start, path: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "harness" / SCRIPT
    script.write_text(script.read_text().replace("REST_S = 60.0", "REST_S = 0.2"))
    process = start(600)
    left = Referee(connect(path, process.pid), {})
    left.rest()
    assert ends(left.pid)
    after = Referee(connect(path, process.pid), {})
    assert after.pid != left.pid and after.answers()


def test_a_referee_does_not_keep_a_server(start: Start, path: str) -> None:
    process = start(0.2)
    left = Referee(connect(path, process.pid), {})
    left.rest()
    assert process.wait(120) == 0 and not os.path.exists(path)
    assert ends(left.pid)


def test_a_referee_of_a_server_that_is_not_kept_ends_with_it() -> None:
    server, process = fork_client.start()
    left = Referee(server, {})
    left.rest()
    assert process.wait(120) == 0 and ends(left.pid)


def test_connections_come_and_go(start: Start, path: str) -> None:
    process = start(600)
    first, second = connect(path, process.pid), connect(path, process.pid)
    with second.spawn(CandidateConfig(sandbox="weak")) as kept:
        gone = first.spawn(CandidateConfig(sandbox="weak"))
        peer = gone.channel
        first.close()
        with pytest.raises(Closed):
            peer.recv(120)  # it died with its connection
        assert ask(kept, "r = 7") == 7
        fds = "import os; r = sorted(int(f) for f in os.listdir('/proc/self/fd'))"
        listening = ask(
            kept,
            f"{fds}\nimport socket\ndef listens(fd):\n"
            "    try: return socket.socket(fileno=os.dup(fd)).getsockopt(1, 30)\n"
            "    except OSError: return 0\nr = [fd for fd in r if listens(fd)]",
        )
        assert listening == []
    third = connect(path, process.pid)
    assert third.ping().threads == 1
    second.close()
    third.close()
    assert process.poll() is None


def test_it_ends_when_its_starter_is_gone_before_it_is_ready() -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", str(HARNESS / SCRIPT)],
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: os.dup2(theirs.fileno(), parent.CONTROL_FD),
        pass_fds=[parent.CONTROL_FD, theirs.fileno()],
    )
    theirs.close()
    ours.close()
    try:
        assert process.wait(120) == 0
    finally:
        process.kill()


STARTER = """
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
process = subprocess.Popen(
    [sys.executable, "-I", "-B", sys.argv[1]], stdin=subprocess.DEVNULL, start_new_session=True,
    preexec_fn=lambda: os.dup2(theirs.fileno(), 3), pass_fds=[3, theirs.fileno()],
)
theirs.close()
print(process.pid, flush=True)
print(len(ours.recv(1)), flush=True)
time.sleep(600)
"""


def alive(group: int) -> list[str]:
    """What of a process group still runs; what nobody has reaped yet does not."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        state, _, leader = text[text.rindex(")") + 2 :].split()[:3]
        if int(leader) == group and state not in "ZX":
            found.append(text)
    return found


# An import that does not end, and leaves the interpreter to nobody meanwhile. It has a process of
# its own, as whoever compiles something.
ENDLESS = """
import ctypes, pathlib, subprocess
subprocess.Popen(["sleep", "3600"])
pathlib.Path(IMPORTED).touch()
ctypes.PyDLL(None).pause()
"""


@pytest.fixture(params=["torch", "kwharness.workers.profiler"])
def importing(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    """The harness, with which a server never comes further than the first, or the last, of what it
    imports. Nothing is torch's there: that takes seconds.
    """
    harness = tmp_path / "harness"
    shutil.copytree(HARNESS, harness, ignore=shutil.ignore_patterns("tests", "fuzz", "__pycache__"))
    for name in ("torch", *worker_start.MODULES.values()):
        (harness / f"{name.replace('.', '/')}.py").write_text("")
    endless = ENDLESS.replace("IMPORTED", repr(str(harness / "imported")))
    (harness / f"{request.param.replace('.', '/')}.py").write_text(endless)
    return harness


def killed_starter(harness: pathlib.Path, after: float | None) -> float:
    """Starts a server and kills its starter, after so many seconds or, for None, when the import
    has begun that does not end. Returns the seconds until then, and only if nobody is left.
    """
    imported = harness / "imported"
    imported.unlink(missing_ok=True)
    command = [sys.executable, "-c", STARTER, str(harness / SCRIPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        try:
            said, _, _ = select.select([starter.stdout], [], [], waiting.WAIT_S)
            assert said, "the starter does not say whom it started"
            group = int(starter.stdout.readline())
            began = time.monotonic()
            if after is None:
                waiting.until(imported.exists, "the import that does not end")
            else:
                time.sleep(after)
            took = time.monotonic() - began
        finally:
            starter.kill()
    try:
        waiting.until(lambda: not alive(group), "the end of a server, and of what it started")
    finally:
        if alive(group):
            os.killpg(group, signal.SIGKILL)
    return took


def test_it_ends_with_a_starter_that_is_killed_while_it_starts(importing: pathlib.Path) -> None:
    """At any moment: while it imports, nothing reads its connection."""
    took = killed_starter(importing, None)
    for share in (0.0, 0.02, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0):
        killed_starter(importing, share * took)


def test_it_ends_when_nobody_comes(start: Start, path: str) -> None:
    process = start(0.2)
    client = connect(path, process.pid)
    with client.spawn(CandidateConfig(sandbox="weak")) as w:
        assert ask(w, "import time; time.sleep(1.5); r = 1") == 1  # longer than idle: it is used
    client.close()
    assert process.wait(120) == 0
    assert not os.path.exists(path)


def test_it_ends_with_its_path(start: Start, path: str) -> None:
    process = start(600)
    client = connect(path, process.pid)
    os.unlink(path)
    with client.spawn(CandidateConfig(sandbox="weak")) as w:
        assert ask(w, "import time; time.sleep(1.5); r = 1") == 1  # who is there stays
    client.close()
    assert process.wait(120) == 0


def test_torch_compile_in_it_leaves_gpus_alone(start: Start, path: str) -> None:
    """Parts of torch ask for GPUs when they are imported; who was forked after that has none."""
    server = connect(path, start(60).pid)
    with server.spawn(ReferenceConfig(sandbox="weak", preimport=["compile"])):
        pass
    with server.spawn(ReferenceConfig(sandbox="weak", preimport=["compile"])) as worker:
        asked = "import sys, torch\nr = ['torch._inductor.compile_fx' in sys.modules]\n"
        asked += "r += [torch._C._cuda_isInBadFork(), torch.cuda.is_available()]"
        assert ask(worker, asked) == [True, False, False]
    server.close()

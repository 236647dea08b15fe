"""Workers that lie on the wire, as processes, against the referee's real clients."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pathlib
import resource
import signal
import socket
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from kwharness.base import protocol
from kwharness.base.built import Failed
from kwharness.base.protocol import Channel, ProtocolError
from kwharness.build import object_cache, reports
from kwharness.clients import candidate_client
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerGone, WorkerLate
from kwharness.clients.reference_client import ReferenceClient
from kwharness.process.fork_client import Exit
from kwharness.referee.faults import Fault, faults
from kwharness.timing import input_pool, window_base, window_session

Answer = Callable[[socket.socket], None]


class Process:
    """A forked worker that answers its first request by ``answer`` and then sleeps."""

    def __init__(self, answer: Answer) -> None:
        self.channel, theirs = Channel.pair(protocol.MAX_WORKER_FRAME)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.channel.close()
                theirs.recv(1 << 20)
                answer(theirs)
                signal.pause()
            finally:
                os._exit(0)
        theirs.close()

    def kill(self) -> None:
        self.channel.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def wait(self, timeout: float | None = None) -> Exit:
        return Exit(None, 9, "killed")

    def log(self) -> str:
        return ""


@contextmanager
def worker(answer: Answer) -> Iterator[Process]:
    process = Process(answer)
    try:
        yield process
    finally:
        process.kill()


def frame(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(4, "big") + body


def loading(process: Process, timeout: float) -> Fault:
    """Returns what the referee makes of the answer to ``load``."""
    client = CandidateClient(process, timeout)
    with pytest.raises(Fault) as caught, faults("importing the candidate", client):
        client.load("", [], [], threads=1, timeout=timeout)
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.timeout(120)  # the worker sends for ever
def test_an_answer_byte_by_byte_does_not_outlast_its_deadline() -> None:
    def trickle(s: socket.socket) -> None:
        s.sendall((1 << 22).to_bytes(4, "big"))
        while True:
            s.send(b" ")

    with worker(trickle) as w:
        assert loading(w, 0.5).status == "timed_out"


@pytest.mark.timeout(120)
def test_a_peer_that_always_has_a_byte_does_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, peer = Channel.pair()
    channel._buffer += (1 << 22).to_bytes(4, "big")
    monkeypatch.setattr(channel, "_fill", lambda: channel._buffer.append(32) is None)
    with pytest.raises(protocol.Timeout):
        channel.recv(0.1)
    channel.close()
    peer.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("length", [protocol.MAX_WORKER_FRAME + 1, 0x7FFFFFFF])
def test_a_length_past_the_limit_is_refused_at_once(length: int) -> None:
    with worker(lambda s: s.sendall(length.to_bytes(4, "big") + b"{")) as w:
        fault = loading(w, 600)
        assert fault.status == "crashed" and "over the size limit" in str(fault)


def test_an_answer_of_many_small_values_takes_little_memory() -> None:
    def many(s: socket.socket) -> None:
        inner = "{}," * ((protocol.MAX_WORKER_FRAME - 100) // 3)
        s.sendall(frame(f'{{"v":1,"ok":true,"x":[{inner}{{}}]}}'))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with worker(many) as w:
        client = CandidateClient(w, 120)
        client.load("", [], [], threads=1, timeout=120)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10  # KiB


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000 + "]" * 5000,
        '{"v":1,"ok":false,"error":{"type":' + "[" * 900 + "]" * 900 + "}}",
        '{"v":1,"ok":true,"x":NaN}',
        '{"v":1,"ok":true,"x":"\\ud800"}',
        '{"v":true,"ok":true}',
        '{"v":1,"ok":1}',
        '{"v":1,"ok":false,"error":{"type":"A\\nB","message":"\\u001b[2J","lines":[1e9,-1]}}',
        '{"v":1,"ok":false,"error":{"stage":"output"}}',
        '{"v":1,"ok":true,"fds":3}',
    ],
)
def test_an_answer_that_makes_no_sense_is_the_candidates_fault(text: str) -> None:
    with worker(lambda s: s.sendall(frame(text))) as w:
        assert loading(w, 20).status in ("crashed", "wrong")


@pytest.mark.parametrize("count", [1, 64, 200])
def test_descriptors_that_nobody_wants_are_closed(count: int) -> None:
    def send(s: socket.socket) -> None:
        sent = min(count, 250)
        socket.send_fds(s, [frame(json.dumps({"v": 1, "ok": True, "fds": sent}))], [0] * sent)

    before = len(os.listdir("/proc/self/fd"))
    with worker(send) as w:
        assert "broke the protocol" in str(loading(w, 20))
    assert len(os.listdir("/proc/self/fd")) == before


ONE = "inductor/ab/k.main.so"


def handing_over(*answers: tuple[dict[str, object], Callable[[], list[int]]]) -> Answer:
    """Returns a worker's part: an answer for each request, the last one again and again."""

    def give(s: socket.socket) -> None:
        for said, opened in [*answers, *answers[-1:] * 300]:
            fds = opened()
            body = json.dumps({"v": 1, "ok": True, "fds": len(fds), **said})
            socket.send_fds(s, [frame(body)], fds)
            for fd in fds:
                os.close(fd)
            s.recv(1 << 20)

    return give


def file_of(size: int = 8) -> Callable[[], list[int]]:
    def opened() -> list[int]:
        fd = os.memfd_create("made")
        os.ftruncate(fd, size)
        return [fd]

    return opened


def folder() -> list[int]:
    return [os.open("/", os.O_RDONLY)]


def pipe() -> list[int]:
    reads, writes = os.pipe()
    os.close(writes)
    return [reads]


@pytest.mark.parametrize(
    "answers",
    [
        [({"libraries": 0}, folder)],
        [({"libraries": 0}, pipe)],
        [({"libraries": 0}, file_of(1 << 40))],
        [({"libraries": "1"}, file_of())],
        [({"libraries": 1}, file_of()), ({"names": [ONE]}, folder)],
        [({"libraries": 1}, file_of()), ({"names": [ONE]}, pipe)],
        [({"libraries": 1}, file_of()), ({"names": [ONE]}, file_of(1 << 40))],
        [({"libraries": 1}, file_of()), ({"names": []}, list)],
        [({"libraries": 2}, file_of()), ({"names": [ONE]}, file_of())],  # and that one again
        [({"libraries": 1}, file_of()), ({"names": ["inductor/k\0.so"]}, file_of())],
        [({"libraries": 1}, file_of()), ({"names": ["inductor/../k.so"]}, file_of())],
        [({"libraries": 1}, file_of()), ({"names": ["/inductor/k.so"]}, file_of())],
        [({"libraries": 1}, file_of()), ({"names": ["inductor/k.py"]}, file_of())],
        [({"libraries": 1}, file_of()), ({"names": ["inductor/é.so"]}, file_of())],
        [({"libraries": 1}, file_of()), ({"names": [f"inductor/{'k' * 200}.so"]}, file_of())],
        [({"libraries": 1}, file_of()), ({"ok": False, "names": [ONE]}, file_of())],
    ],
)
def test_what_cannot_have_been_compiled_is_the_candidates_fault(answers: list) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with worker(handing_over(*answers)) as w:
        client = CandidateClient(w, 20)
        with pytest.raises(Fault) as caught, faults("compiling what it calls", client):
            client.compiled()
        assert caught.value.status == "crashed"
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_compiled_comes_with_its_libraries() -> None:
    answers = [({"libraries": 1}, file_of(3)), ({"names": [ONE]}, file_of(5))]
    with worker(handing_over(*answers)) as w:
        fd, libraries = CandidateClient(w, 20).compiled()
    sizes = [os.fstat(f).st_size for f in (fd, *libraries.values())]
    for f in (fd, *libraries.values()):
        os.close(f)
    assert list(libraries) == [ONE] and sizes == [3, 5]


def test_all_that_was_compiled_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is read: each answer by itself is in time."""
    seconds = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: float(next(seconds)))

    names = ({"names": [f"inductor/{i}.so"]} for i in range(256))
    answers = [({"libraries": 256}, file_of()), *((said, file_of()) for said in names)]

    before = len(os.listdir("/proc/self/fd"))
    with worker(handing_over(*answers)) as w:
        client = CandidateClient(w, 20)
        monkeypatch.setattr(candidate_client, "time", clock)
        with pytest.raises(WorkerLate, match="handing over what it compiled took over 60 s"):
            client.compiled()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_handed_over_is_kept_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    """A candidate's process may have a file for writing alone, or make it larger meanwhile."""
    good = os.memfd_create("good")
    os.write(good, b"machine code")
    (tmp_path / "file").touch()
    bad = os.open(tmp_path / "file", os.O_WRONLY)
    try:
        with pytest.raises(Failed, match="cannot be read"):
            object_cache.keep_kernels(str(tmp_path), "key", good, {ONE: good, "inductor/b.so": bad})
        assert os.listdir(tmp_path / "objects") == []
        assert object_cache.kept_kernels(str(tmp_path), "key") is None
        kept = object_cache.keep_kernels(str(tmp_path), "key", good, {ONE: good})
        assert object_cache.kept_kernels(str(tmp_path), "key") == kept
    finally:
        os.close(good)
        os.close(bad)


def shrinking(fd: int) -> None:
    os.ftruncate(fd, 1 << 16)


def unsealable(fd: int) -> None:
    os.ftruncate(fd, 1 << 16)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def short(fd: int) -> None:
    os.ftruncate(fd, 64)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


@pytest.mark.parametrize("prepare", [shrinking, unsealable, short])
def test_a_block_that_could_be_cut_off_is_not_read(prepare: Callable[[int], None]) -> None:
    layout = [{"dtype": "float32", "shape": [1 << 14], "offset": 0}]
    answer = {"v": 1, "ok": True, "fds": 1, "size": 1 << 16, "layout": layout}

    def send(s: socket.socket) -> None:
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        prepare(fd)
        socket.send_fds(s, [frame(json.dumps(answer))], [fd])
        os.ftruncate(fd, 0)

    with worker(send) as w, pytest.raises(WorkerGone, match="broke the protocol"):
        ReferenceClient(w, 20).state()


def test_a_timed_worker_that_talks_nonsense_fails_its_call() -> None:
    def nonsense(s: socket.socket) -> None:
        s.sendall(frame('{"v":1,"ok":true}') * 2 + frame('{"v":1,"ok":true,"event":[1e400]}'))

    def draw(i: int) -> list[torch.Tensor]:
        return [torch.full((4,), float(i))]

    contents = input_pool.Contents(window_base.Slots.of(draw(0), draw(0)), draw)
    contents.grow(2)
    with worker(nonsense) as w:
        session = window_session.Session(w, contents, 1, window_session.Options(timeout_s=120))
        with pytest.raises((window_base.CallFailed, ProtocolError)):
            session.run("fresh", range(1))


@pytest.mark.timeout(120)  # what looks at each line of each text takes for ever
def test_lines_of_huge_sources_are_found() -> None:
    reports.Lines("a\n" * 50, ["a\n" * 1_000_000])

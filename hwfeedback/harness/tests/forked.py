"""Trivial workers for the tests of timing: a fork that answers ``window`` requests."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Sequence

import torch

from kwharness.base.operations import Windows
from kwharness.base.protocol import Channel, ProtocolError
from kwharness.timing import window_worker

Make = Callable[[], Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]]


class Forked:
    """A worker whose forward is made in the child. One thread: the parent may have a pool."""

    def __init__(self, make: Make) -> None:
        self.channel, theirs = Channel.pair()
        self.killed = False
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.channel.close()
                _serve(Channel(theirs), make)
                code = 0
            finally:
                os._exit(code)
        theirs.close()

    def took_memory(self) -> bool:
        return False

    def how_it_ended(self) -> str:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.killed = True
        return f"ended itself with exit code {code}"

    def kill(self) -> None:
        if self.killed:
            return
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.channel.close()


def _serve(channel: Channel, make: Make) -> None:
    faulthandler.disable()  # some tests crash their worker, which need not be told
    torch.set_num_threads(1)
    forward = make()
    while True:
        try:
            msg, fds = channel.recv()
        except ProtocolError:
            return
        assert msg["op"] == "window"
        window_worker.serve(channel, Windows.from_json(msg), fds, forward)


def busy(seconds: float) -> None:
    """Keeps a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def at_work(seconds: float) -> None:
    """Has that much of a core, however long others make it wait."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def spinning(seconds: float, scale: float = 2.0) -> Make:
    """A worker whose forward takes about this long and doubles its input."""

    def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
        end = time.perf_counter() + seconds
        out = args[0] * scale
        while time.perf_counter() < end:
            pass
        return [out]

    return lambda: forward


def draw(shape: Sequence[int]) -> Callable[[int], list[torch.Tensor]]:
    """Draws contents that depend on the index alone."""

    def one(index: int) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(1000 + index)
        return [torch.randn(list(shape), generator=g)]

    return one

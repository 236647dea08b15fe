"""The referee's side of a worker: requests, deadlines, blocks, private copies of answers."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kwharness.base.operations import A, Done, Map, Request, Tensors
from kwharness.base.protocol import MAX_FDS, Closed, ProtocolError, Timeout
from kwharness.base.tensors import Layout, LayoutError, layout_of
from kwharness.clients import errors
from kwharness.machine.device import CPU, Device, SharedBlock

libc = ctypes.CDLL(None)
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

GUARD = 256  # bytes of red zone around each input
GUARD_BYTE = 0xA5
OUT_BYTE = 0x7F  # what an output block holds before it is written: nobody's expected value
MAX_DIMS = 64  # PyTorch has no more
MAX_OUTPUT = 1 << 36  # bytes; a layout that asks for more is no layout


class Client:
    """Requests to one worker, one at a time, with a deadline each."""

    waited_s = 0.0  # for its answers, but for what was built for it meanwhile
    built_s = 0.0  # that was

    def __init__(self, worker: errors.Spawned, device: Device = CPU) -> None:
        self.device = device  # where its tensors lie
        self.free_before = 0  # bytes of the device's memory that nobody had when it began
        self.fair_bytes = math.inf  # that it may have without being who took the memory
        self._asked = False  # and not answered
        self.waits = False  # whether ``kill`` returns only when the process is gone
        self.worker = worker
        self.orders: Sequence[Sequence[int]] = ()  # of a forward's inputs: see tensors.layout_of
        self._blocks: dict[str, SharedBlock] = {}
        self._deadline = 0.0
        self._granted_before = 0.0  # when it was asked
        self.doing = ""
        self._allowed = 0.0
        self.until = math.inf  # of the monotonic clock: no request may take longer

    @property
    def channel(self) -> Any:
        return self.worker.channel

    @property
    def pid(self) -> int:
        return self.worker.pid

    def begin(self, request: Request, fds: Sequence[int], timeout: float, doing: str) -> None:
        """Sends a request; ``finish`` gives its answer."""
        self._deadline = min(time.monotonic() + timeout, self.until)
        self._granted_before = self.granted()
        self.doing, self._allowed = doing, timeout
        self.device.synchronize()  # what it is asked about is there
        self._asked = True
        try:
            self.channel.send(request.asked(), fds, timeout)
        except Timeout as e:
            raise self._late() from e
        except ProtocolError as e:
            raise self._gone() from e

    def finish(self, answer: type[A], fds_wanted: int = 0) -> tuple[A, list[int]]:
        """Returns the answer and at most so many descriptors. Raises WorkerError, WorkerGone,
        WorkerLate.
        """
        began, before = time.monotonic(), self.granted()
        try:
            msg, fds = self._receive()
        except Timeout as e:
            raise self._late() from e
        except ProtocolError as e:
            raise self._gone("" if isinstance(e, Closed) else errors.broke_protocol(e)) from e
        finally:
            built = self.granted() - before
            self.built_s += built
            self.waited_s += time.monotonic() - began - built
        self._asked = False
        if msg.get("ok") is not True or len(fds) > fds_wanted:
            for fd in fds:
                os.close(fd)
            if msg.get("ok") is True:
                raise self._gone(
                    errors.broke_protocol(f"{len(fds)} descriptors came, {fds_wanted} may")
                )
            raise errors.WorkerError(errors.read_failure(msg.get("error")), self)
        try:
            return answer.from_json(msg), fds
        except ProtocolError as e:
            for fd in fds:
                os.close(fd)
            raise self._gone(errors.broke_protocol(e)) from e

    def granted(self) -> float:
        """Returns the seconds that are no time of its process's: see workshop.Desk."""
        return 0.0

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            end = self._deadline + self.granted() - self._granted_before
            try:
                return self.channel.recv(max(end - time.monotonic(), 0.001))
            except Timeout:
                end = self._deadline + self.granted() - self._granted_before
                if end <= time.monotonic():
                    raise

    def ask(
        self,
        request: Request,
        answer: type[A],
        timeout: float = 60.0,
        doing: str = "",
        fds_wanted: int = 0,
    ) -> tuple[A, list[int]]:
        """Returns the answer to a request, and at most so many descriptors."""
        self.begin(request, (), timeout, doing or request.op)
        return self.finish(answer, fds_wanted)

    def tell(
        self, request: Request, fds: Sequence[int] = (), timeout: float = 60.0, doing: str = ""
    ) -> None:
        """Asks for what has no answer but that it is done."""
        self.begin(request, fds, timeout, doing or request.op)
        self.finish(Done)

    def how_it_ended(self) -> str:
        """Returns how its process ended, as a clause, with the last line that it wrote."""
        ended, said = errors.how_it_ended(self.worker.wait(5)), self.worker.log().strip()
        return f"{ended}: {said.splitlines()[-1][:200]}" if said else ended

    def took_memory(self) -> bool:
        """Whether it has most of what was free when it began, or more than its share. It is killed,
        to see what comes back: a large task leaves little free, too.
        """
        before = self.device.free_bytes()
        self.worker.kill()
        self.worker.wait(30)
        had = self.device.free_bytes() - before
        return had > min(self.free_before / 2, self.fair_bytes)

    def drain(self, timeout: float) -> None:
        """Waits for an answer that nobody has waited for, and forgets it."""
        if self._asked:
            self._deadline = min(self._deadline, time.monotonic() + timeout)
            for fd in self.finish(Done, MAX_FDS)[1]:
                os.close(fd)

    def holds(self) -> int:
        """Returns the bytes of the memory that is shared with it."""
        return sum(b.size for b in self._blocks.values())

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Where an answer is read: one that makes no sense breaks the protocol."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as e:
            raise self._gone(errors.broke_protocol(e)) from e

    def _gone(self, broke: str = "") -> errors.WorkerGone:
        exit_ = None if broke else self.worker.wait(5)
        oom = exit_ is not None and exit_.reason == "oom"
        how = broke or errors.how_it_ended(exit_)
        gone = errors.WorkerGone(how, self.worker.log(), oom, self.doing, bool(broke))
        if exit_ is None or not exit_.blameless:
            gone.client = self  # else it is nobody's fault
        return gone

    def _late(self) -> errors.WorkerLate:
        log = self.worker.log()
        self.worker.kill()
        late = errors.WorkerLate(self.doing, self._allowed, log)
        late.client = self
        return late

    def block(self, name: str, size: int) -> SharedBlock:
        """Returns the block of this name; made and mapped on both sides where it is too small."""
        have = self._blocks.get(name)
        if have is not None and have.size >= size:
            return have
        made = self.device.create(size, name)
        try:
            self.tell(Map(name, size), [made.fd], doing="sharing memory")
        except errors.WorkerFailure:
            made.close()
            raise
        if have is not None:
            have.leave()
        self._blocks[name] = made
        return made

    def _replace(self, *names: str) -> None:
        """Gives blocks back, on both sides, but for those that hold next to nothing."""
        for name in names:
            if (block := self._blocks.get(name)) is not None and block.size > 1:
                self._blocks.pop(name).leave()
                self.block(name, 1)  # in its place

    def put(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        guard: int = 0,
        orders: Sequence[Sequence[int]] = (),
    ) -> Layout:
        """Writes tensors into a block and returns their layout."""
        layout, size = layout_of(tensors, guard, orders)
        block = self.block(name, size)
        if guard:
            guards(block, layout, guard).fill_(GUARD_BYTE)
        for view, t in zip(block.views(layout), tensors, strict=True):
            view.copy_(t)
        return layout

    def kill(self) -> None:
        self.worker.kill()
        if self.waits:
            self.worker.wait(30)
        for b in self._blocks.values():
            b.leave()
        self._blocks.clear()


class _Zones:
    """The red zones of a block, as one thing to fill and to check."""

    def __init__(self, zones: list[torch.Tensor]) -> None:
        self._zones = zones

    def fill_(self, byte: int) -> None:
        for z in self._zones:
            z.fill_(byte)

    def intact(self, byte: int) -> bool:
        return all(bool((z == byte).all()) for z in self._zones)


def guards(block: SharedBlock, layout: Layout, guard: int) -> _Zones:
    raw = block.bytes()
    zones = [raw[:guard]]
    for entry in layout:
        end = entry.offset + entry.numel * entry.itemsize
        zones.append(raw[end : min(end + guard, block.size)])
    return _Zones(zones)


def private(
    device: Device, fds: list[int], told: Tensors, uncopied: bool = False
) -> list[torch.Tensor]:
    """Copies the tensors of an answer's block. ``uncopied``: they are views that keep it mapped."""
    if len(fds) != 1:
        raise LayoutError(f"{len(fds)} blocks came where one was expected")
    if not 0 < told.size < MAX_OUTPUT:
        os.close(fds[0])
        raise LayoutError(f"a block of {told.size} bytes")
    block = device.received(fds[0], told.size)
    try:
        views = block.views(told.layout)
        return views if uncopied else [v.clone() for v in views]
    finally:
        if uncopied:
            block.leave()
        else:
            block.close()

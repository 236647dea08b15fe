"""The worker's side of windows on a GPU: see windows_cuda.py."""

from __future__ import annotations

import base64
import ctypes
import functools
import gc
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch

from kwharness.base.operations import WindowCalls, Windows
from kwharness.base.stats import median
from kwharness.machine.device import Device
from kwharness.machine.gpu import Gpu, GpuBlock, gpu
from kwharness.model.state import Carrier
from kwharness.timing.gpu_flush import Flush
from kwharness.timing.input_pool import row_views
from kwharness.timing.window_base import Forward, Link, barred, check_outputs
from kwharness.timing.window_worker import Host, MakeSide, Ready, returned

LOOKS = 20  # at a pair of events
PAIRS = 64  # of events around nothing, which take less than this:
NOTHING_NS = 20_000
COPY_NS = 1_000  # what is less is no copy
FLAGS = 4096  # bytes at the end of the outputs' block: whose turn it is
GO, DONE = 0, 64  # bytes from there


class _Pool:
    """Where torch allocates within a window: in the block that the referee has mapped."""

    _held: ClassVar[list[GpuBlock]] = []  # in which a candidate keeps something

    def __init__(self, device: Gpu, block: GpuBlock, room: torch.Tensor) -> None:
        self._block, self._pool, self._libc = block, None, ctypes.CDLL(None)
        if not room.numel() or not hasattr(self._libc, "kernelwright_pool"):
            return
        functions = device.driver.functions("cuMemAlloc_v2", "cuMemFree_v2")
        size = ctypes.c_size_t(room.numel())
        self._libc.kernelwright_pool(ctypes.c_void_p(room.data_ptr()), size, *functions)
        take, give_back = (
            ctypes.cast(getattr(self._libc, f"kernelwright_pool_{name}"), ctypes.c_void_p).value
            for name in ("take", "give_back")
        )
        self._allocator = torch._C._cuda_customAllocator(take, give_back)
        self._pool = torch.cuda.MemPool(self._allocator)

    @property
    def there(self) -> bool:
        """Whether there is one: it takes a library of ours, for which there may be no compiler."""
        return self._pool is not None

    def used(self) -> AbstractContextManager[object]:
        return nullcontext() if self._pool is None else torch.cuda.use_mem_pool(self._pool)

    def in_use(self) -> list[range]:
        """Returns what of it somebody has."""
        if self._pool is None:
            return []
        blocks = (
            (int(segment["address"]), segment["blocks"])
            for segment in torch.cuda.memory_snapshot(self._pool.id)
        )
        found: list[range] = []
        for at, parts in blocks:
            for part in parts:
                if part["state"] != "inactive":
                    found.append(range(at, at + int(part["size"])))
                at += int(part["size"])
        return found

    def close(self) -> None:
        """Closes the block, unless something lies in it that somebody still has."""
        if self._pool is not None:
            self._pool = None
            torch.cuda.empty_cache()
            lent = self._libc.kernelwright_pool_lent
            lent.restype = ctypes.c_size_t
            if lent():
                self._held.append(self._block)
                return
        self._block.close()


class _Blocks:
    """The memory of a session, and where the tensors of its calls lie in it."""

    def __init__(self, device: Gpu, request: Windows, fds: list[int]) -> None:
        rows, in_slot, out_slot = request.slots, request.in_slot, request.out_slot
        self.out = device.received(fds.pop(0), request.out_bytes)
        self.given = device.received(fds.pop(0), max(rows * in_slot, 1))
        out, given = self.out.bytes(), self.given.bytes()
        self.base = out.data_ptr()
        self.flags = self.base + out.numel() - FLAGS
        self.apart = barred(request, range(given.data_ptr(), given.data_ptr() + given.numel()))
        self.views = [
            row_views(out[r * out_slot : (r + 1) * out_slot], request.outputs) for r in range(rows)
        ]
        room = out[whole(rows * out_slot) : out.numel() - FLAGS]
        self.room = range(room.data_ptr(), room.data_ptr() + room.numel())
        self.pool = _Pool(device, self.out, room)
        self.rows = [
            row_views(given[r * in_slot : (r + 1) * in_slot], request.inputs) for r in range(rows)
        ]


class OnGpu:
    """The worker's side of a session."""

    def __init__(
        self, channel: Link, request: Windows, fds: list[int], carrier: Carrier | None = None
    ) -> None:
        self._channel = channel
        self._carrier = carrier
        self._device = gpu()
        self._outputs = request.outputs
        self._blocks = _Blocks(self._device, request, fds)
        self._pool = self._blocks.pool
        if carrier is not None:
            carrier.prepare(self._blocks.rows[0])  # what it needs lies in no window's memory
        driver, rows = self._device.driver, request.slots
        self._flush = Flush(self._device, base64.b64decode(request.image))
        self._pairs = [(driver.event(), driver.event()) for _ in range(max(rows, PAIRS))]
        self._copies = [(driver.event(), driver.event()) for _ in range(rows)]
        self._lasting: list[range] = []  # of the room, what was in use before a window
        self._ready = Ready(channel)
        self.fetched = self._pool.there
        self._kept: list[Sequence[torch.Tensor]] = []  # the outputs of a window's calls
        self._own = self._around_nothing()

    def _around_nothing(self) -> float:
        """Returns what a pair of events around nothing takes, nanoseconds.

        While another context ends, both may lie milliseconds apart: it is looked at again.
        """
        least = math.inf
        for i in range(LOOKS):
            for start, end in self._pairs[:PAIRS]:
                self._flush()  # the host is ahead of it
                start.record()
                end.record()
            took = 1e9 * median([e.seconds_since(s) for s, e in self._pairs[:PAIRS]])
            if i:  # the first warms up
                least = min(least, took)
            if least < NOTHING_NS:
                break
        return least

    def ready(self) -> None:
        """Has the GPU's clock up and this process awake."""
        self._kept.clear()
        self._device.driver.give_up_persisting()
        for _ in range(4):
            self._flush()
        self._device.synchronize()

    def wait(self) -> None:
        self._ready.wait()

    def identity(self) -> Forward:
        """Returns a forward that allocates its outputs, and has the GPU do nothing."""
        views = self._blocks.views[0][: returned(self._outputs, self._carrier)]
        return lambda _: [torch.empty_like(v) for v in views]

    def calls(self, forward: Forward, request: WindowCalls) -> dict[str, list[int]]:
        """Calls it. Returns what each took, ``event``, nanoseconds, and what copies of outputs
        took, ``copied``.

        Where calls wait for their turns the referee is told, when all were asked for, where their
        outputs lie in the block: ``at``.
        """
        n, turn = request.n, request.turn
        if turn:
            self._kept.clear()  # those of earlier turns have been fetched
            self._lasting = self._pool.in_use()
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad(), self._pool.used() if turn else nullcontext():
                at = [self._call(i, forward, turn and turn + i) for i in range(n)]
            if turn:
                # No call has had its turn yet. Should a driver wait for them here, the referee lets
                # them go, and they come one by one.
                self._device.driver.give_up_persisting()
                self._channel.send({"ok": True, "at": at})
            self._device.synchronize()
            self._device.driver.give_up_persisting()
        finally:
            if collecting:
                gc.enable()
        took = [end.seconds_since(start) for start, end in self._pairs[:n]]
        copies = [end.seconds_since(start) for start, end in self._copies[:n]] if turn else []
        copied = [int(1e9 * t - self._own) for t in copies]
        return {
            "event": [max(int(1e9 * t - self._own), 0) for t in took],
            "copied": [t if t > COPY_NS else 0 for t in copied],
        }

    def _call(self, i: int, forward: Forward, turn: int) -> list[int]:
        """Returns where in the block the outputs lie."""
        driver = self._device.driver
        start, end = self._pairs[i]
        given = list(self._blocks.rows[i])
        if turn:
            driver.await_word(self._blocks.flags + GO, turn)
        else:
            self._device.synchronize()
        start.record()
        if self._carrier is not None:
            given = self._carrier.prepare(given)
        outputs: Sequence[torch.Tensor] = forward(given)
        if not all(t.is_contiguous() for t in outputs):
            outputs = [t.contiguous() for t in outputs]
        after = [] if self._carrier is None else self._carrier.collect(given)
        end.record()
        check_outputs([*outputs, *after], self._blocks.views[i], self._blocks.apart)
        at: list[int] = []
        begin, copied = self._copies[i]
        if turn:
            begin.record()
        for view, got in zip(self._blocks.views[i], outputs, strict=False):
            if not got.numel():
                at.append(0)
            elif turn and self._fetched_from(got):
                at.append(got.data_ptr() - self._blocks.base)
            else:
                view.copy_(got)
                at.append(view.data_ptr() - self._blocks.base)
        if turn:
            copied.record()
            self._kept.append(outputs)
        for view, got in zip(self._blocks.views[i][len(outputs) :], after, strict=True):
            view.copy_(got)  # from the same place in every process: no part of what is compared
            at.append(view.data_ptr() - self._blocks.base if got.numel() else 0)
        if turn:
            driver.write_word(self._blocks.flags + DONE, turn)
        return at

    def _fetched_from(self, got: torch.Tensor) -> bool:
        """Whether the referee may take an output from where it lies: made by this call, and not
        kept from an earlier window, since what lies there is wiped out before the clock starts.
        """
        at = got.data_ptr()
        return (
            at in self._blocks.room
            and not got.is_conj()
            and not got.is_neg()
            and not any(at in block for block in self._lasting)
        )

    def close(self) -> int:
        self._kept.clear()
        self._blocks.views, self._blocks.rows = [], []
        for start, end in (*self._pairs, *self._copies):
            start.destroy()
            end.destroy()
        self._pool.close()
        self._blocks.given.close()
        self._device.release()
        return torch.cuda.memory_reserved()


def whole(n: int) -> int:
    """Returns n, rounded up to where torch's allocator may begin."""
    return -(-n // 512) * 512


@functools.singledispatch
def side_of(_device: Device) -> MakeSide:
    """Returns what makes the worker's side of a session on a device."""
    return Host


@side_of.register
def _(_device: Gpu) -> MakeSide:
    return OnGpu

"""Windows whose tensors lie in the memory of a GPU: see windows.py.

The host's side is the same: the worker is stopped, with every thread, whenever the clock does not
run. A GPU cannot be stopped, so three things take the place of that:

- Before the clock starts and after it has stopped the referee sees that the GPU does nothing: two
  contexts take turns, so a trivial kernel of its own then takes a hundred times as long.
- The clock stops when the referee holds private copies of all outputs of the window, not when the
  worker says so, nor when it is stopped, which takes as long as a short window.
- Contents are written while the worker is stopped and nothing runs: whoever waits for them on the
  GPU is seen.

Before each call the worker has the GPU read twice its L2, FLUSHES times over: a call finds neither
inputs, nor weights, nor the memory of its outputs there, and no dirty lines either; and while the
GPU reads, the host asks for the forward. So the ``event`` clock, a pair of the driver's events
around forward less what a pair around nothing takes, shows the GPU's time, unless the host needs
longer than the reading (some 100 us). A call of a ``chained`` window comes to a GPU that waits for
it: there the clock shows the latency, with the host's work. Events are recorded on the legacy
default stream, which is torch's own.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import gc
import time
import trace
from collections.abc import Callable, Sequence
from typing import Any

import torch

import cuda
import cuda_ceilings
from device import Gpu, gpu
from stats import median
from tensors import Layout
from windows import (
    CallFailed,
    Forward,
    Link,
    Session,
    _now,
    _ran_on,
    _Ready,
    barred,
    check_outputs,
    row_views,
)

BUSY_NS = 1_000_000  # a kernel that does nothing takes less, unless another context's is there
LOOKS = 3  # at a GPU that seems to be busy
PAIRS = 64  # of events around nothing
FLUSHES = 4  # before each call
READ_BLOCK = 512
BACKLOG, BACKLOG_BYTES = 4, 1 << 30  # of work before a traced forward: some milliseconds


@functools.cache
def image() -> bytes:
    """Returns the kernel that reads, for the GPU of this process."""
    has = gpu().driver.attributes()
    return cuda_ceilings.compile_for(has["major"], has["minor"])


class _Flush:
    """Has the GPU read twice its L2, on the default stream."""

    def __init__(self, device: Gpu, code: bytes) -> None:
        has = device.driver.attributes()
        size = max(2 * has["l2_bytes"], 1 << 22) // 16 * 16
        self._block = torch.ones(size, dtype=torch.uint8, device=device.torch)
        self._sink = torch.zeros(4, device=device.torch)
        self._module = device.driver.module(code)
        self._grid = 2 * has["multiprocessors"]
        self._args: list[Any] = [
            ctypes.c_uint64(self._block.data_ptr()),
            ctypes.c_uint64(self._sink.data_ptr()),
            ctypes.c_longlong(size // 16),
            ctypes.c_int(1),
        ]

    def __call__(self) -> None:
        self._module.launch("read", self._grid, READ_BLOCK, self._args)


class TraceClock(trace.Clock):
    """Tells the time of the GPU, by events: what a pair around nothing shows is taken off."""

    around_s = 0.0

    def __init__(self) -> None:
        self._busy = torch.zeros(BACKLOG_BYTES // 4, device=gpu().torch)
        self.begin()
        start, end = self.mark(), self.mark()
        self.wait()
        self._own = end.seconds_since(start)

    def mark(self) -> cuda.Event:
        event = gpu().driver.event()
        event.record()
        return event

    def between(self, start: cuda.Event, end: cuda.Event) -> float:
        return max(end.seconds_since(start) - self._own, 0.0)

    def wait(self) -> None:
        gpu().synchronize()

    def begin(self) -> None:
        """Keeps the GPU busy for as long as the host needs to ask for a forward: what an event
        shows is then the GPU's time, and not the host's.
        """
        for _ in range(BACKLOG):
            self._busy.add_(1.0)

    def working(
        self, forward: Callable[[], Any], hidden: list[tuple[list[str], float]]
    ) -> list[tuple[list[str], float]]:
        """What PyTorch's profiler shows of the kernels that each operator launched."""
        from torch.profiler import ProfilerActivity, profile

        both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=both, experimental_config=trace.everywhere()) as seen:
            forward()
            self.wait()
        took: dict[str, list[float]] = {}
        for e in seen.events() or ():
            took.setdefault(e.name.partition("::")[2], []).append(e.device_time_total / 1e6)
        if not any(t for times in took.values() for t in times):
            return hidden  # it may not look at this GPU: the host's time is all there is
        mean = {n: sum(times) / len(times) for n, times in took.items()}
        return [(names, mean.get(names[0], 0.0)) for names, _ in hidden]


class OnGpu:
    """The worker's side of a session."""

    def __init__(self, channel: Link, msg: dict[str, Any], fds: list[int]) -> None:
        self._device = gpu()
        rows = int(msg["slots"])
        in_slot, out_slot = int(msg["in_slot"]), int(msg["out_slot"])
        self._outputs: Layout = msg["outputs"]
        self._out = self._device.received(fds.pop(0), max(rows * out_slot, 1))
        self._in = self._device.received(fds.pop(0), max(rows * in_slot, 1))
        out, given = self._out.bytes(), self._in.bytes()
        block = range(given.data_ptr(), given.data_ptr() + given.numel())
        self._apart = barred(msg, block)
        self._views = [
            row_views(out[r * out_slot : (r + 1) * out_slot], self._outputs) for r in range(rows)
        ]
        self._rows = [
            row_views(given[r * in_slot : (r + 1) * in_slot], msg["inputs"]) for r in range(rows)
        ]
        driver = self._device.driver
        self._flush = _Flush(self._device, base64.b64decode(msg["image"]))
        self._pairs = [(driver.event(), driver.event()) for _ in range(max(rows, PAIRS))]
        self._ready = _Ready(channel)
        self._identity: Forward | None = None
        self._own = self._around_nothing()

    def _around_nothing(self) -> float:
        """Returns what a pair of events around nothing takes, nanoseconds."""
        for _ in range(2):  # the first warms up
            for start, end in self._pairs[:PAIRS]:
                self._flush()  # the host is ahead of it
                start.record()
                end.record()
            took = [end.seconds_since(start) for start, end in self._pairs[:PAIRS]]
        return 1e9 * median(took)

    def ready(self) -> None:
        """Has the GPU's clock up and this process awake."""
        for _ in range(4):
            self._flush()
        self._device.synchronize()

    def wait(self) -> None:
        self._ready.wait()

    def identity(self) -> Forward:
        if self._identity is None:
            ready = [torch.zeros_like(v) for v in self._views[0]]
            self._identity = lambda _: ready
        return self._identity

    def calls(self, n: int, forward: Forward, alone: bool, keeps: bool) -> dict[str, Any]:
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad():
                for i in range(n):
                    start, end = self._pairs[i]
                    given = list(self._rows[i])
                    for _ in range(1 if alone else FLUSHES):
                        self._flush()
                    if alone:
                        self._device.synchronize()
                    start.record()
                    outputs: Sequence[torch.Tensor] = forward(given)
                    if not all(t.is_contiguous() for t in outputs):
                        outputs = [t.contiguous() for t in outputs]
                    end.record()
                    check_outputs(outputs, self._views[i], self._apart)
                    for view, got in zip(self._views[i], outputs, strict=True):
                        view.copy_(got)
                    del outputs
            self._device.synchronize()
        finally:
            if collecting:
                gc.enable()
        took = [end.seconds_since(start) for start, end in self._pairs[:n]]
        return {"event": [max(int(1e9 * t - self._own), 0) for t in took]}

    def close(self) -> None:
        self._views, self._rows = [], []
        for start, end in self._pairs:
            start.destroy()
            end.destroy()
        self._out.close()
        self._in.close()


class GpuSession(Session):
    """The referee's side."""

    def _share(self) -> tuple[dict[str, Any], list[int]]:
        device = gpu()
        slots = self.contents.slots
        self._out_block = device.create(max(self.capacity * slots.out_slot, 1))
        self._in_block = device.create(max(self.capacity * slots.in_slot, 1))
        self._private = torch.zeros(
            self.capacity, slots.out_slot, dtype=torch.uint8, device=device.torch
        )
        self._trifle = torch.zeros(1, device=device.torch)
        self._flush = _Flush(device, image())
        self._given: list[int] = []
        device.synchronize()
        fds = [self._out_block.fd, self._in_block.fd]
        self._out_block.fd = self._in_block.fd = -1  # the caller's to close
        return {"image": base64.b64encode(image()).decode()}, fds

    def _put(self, group: Sequence[int]) -> None:
        slots = self.contents.slots
        self._out_block.bytes()[: len(group) * slots.out_slot].fill_(0xFF)
        into = self._in_block.bytes()
        for i, row in enumerate(group):
            into[i * slots.in_slot : (i + 1) * slots.in_slot].copy_(self.contents.row(row))
        self._given = list(group)
        self._flush()  # what has just been written must not be found in the L2
        gpu().synchronize()
        self._idle("before the clock starts")

    def _end(self, first: int, n: int) -> int:
        # Whatever still computes has the clock running until what it makes has been copied.
        slot = self.contents.slots.out_slot
        self._private[first : first + n].view(-1).copy_(self._out_block.bytes()[: n * slot])
        gpu().synchronize()
        end = _now()
        self._stopped.stop()
        return end

    def _collect(self, first: int, n: int, at: object) -> None:
        self._idle("after it")
        # The worker's mapping is one that it may write to.
        slot, block = self.contents.slots.in_slot, self._in_block.bytes()
        written = torch.zeros((), dtype=torch.bool, device=gpu().torch)
        for i, row in enumerate(self._given):
            has = block[i * slot : (i + 1) * slot].view(torch.int64)
            written |= (has != self.contents.row(row).view(torch.int64)).any()
        if written.item():
            raise CallFailed({"type": "OutputMismatch", "message": "forward writes to its input"})

    def _idle(self, when: str) -> None:
        """Raises CallFailed where the GPU does something while the worker is stopped."""
        for _ in range(LOOKS):
            start = _now()
            self._trifle.add_(1.0)
            gpu().synchronize()
            if _now() - start < BUSY_NS:
                return
            time.sleep(1e-3)
        raise _ran_on(f"the GPU is at work {when}")

    def close(self) -> None:
        super().close()
        self._out_block.close()
        self._in_block.close()

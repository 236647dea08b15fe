"""Windows whose tensors lie in the memory of a GPU: see window_session.py.

The calls of a window take turns with the referee, on the GPU and without the host: two streams in
two processes wait for each other by words in memory that both have mapped. The worker asks for all
its calls at once; before each its stream waits for the referee's, and after it says so. The
referee's stream, for each call: writes the content, has the GPU read twice its L2, lets the worker
go on, waits until it has had its turn, and copies the outputs from where they were made. So

- no content exists before the outputs of the call before were fetched, and nothing that a call
  will read lies in the L2: neither inputs, nor weights, nor the memory of its outputs;
- the referee's clock, a pair of events on its own stream, runs from before the first content is
  written until it holds the last output, and beside the calls there is nothing in it but the
  referee's own work and changes between two contexts: a constant, some 330 us a call, that is seen
  in windows of eager;
- the host's work is not in it: all calls were asked for before the clock starts.

A part of the L2 that a context has set aside keeps lines which reading past them does not evict.
That part is taken back by the worker, for the context and its lines are the worker's: before a
window, when all its calls were asked for, and when they are over. A reset in the referee's context
would come once a window only, and CUDA does not say that it reaches another context's lines.

Nothing that a worker does gives it time. The two contexts never run at once: who works while the
referee writes or reads delays it by as much. Its process stands still until all turns are over; one
whose GPU needs its host by then gets its calls one by one. Outputs that do not lie in the block
that the referee has mapped, where torch allocates within a window (``MemPool``), the worker copies
there, in its turn; the copy is in a candidate's time, and not in a baseline's, unless nobody's
outputs can lie there. Before calls are asked for, and after the clock has stopped, the referee sees
that the GPU does nothing: a trivial kernel of its own takes a hundred times as long beside another
context's.

The ``event`` clock is a pair of the driver's events around forward, on the legacy default stream,
which is torch's own, less what a pair around nothing takes.

A forward that waits for the GPU cannot be asked for ahead, nor as many calls as there are launches
that the driver takes without waiting. Groups are then as small as need be. A context of which one
stream alone waits leaves the GPU to others; one of which several do takes its slice of time, two
milliseconds on an H100, and does nothing in it. Calls on several streams are so asked for one at a
time: what the referee does before such a turn fits into a slice of its own, and after it nothing
waits. In the end calls come one by one, as those of ``chained`` windows always do: the host's work
is in their time, and the worker is stopped, with every thread, whenever the clock does not run.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import gc
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar

import torch

from kwharness.attribution import trace
from kwharness.base.stats import median
from kwharness.base.tensors import DTYPES, Layout
from kwharness.machine import cuda_driver, nvml
from kwharness.machine.device import Gpu, GpuBlock, gpu
from kwharness.model.state import Carrier
from kwharness.timing import ceilings_cuda
from kwharness.timing.input_pool import row_views
from kwharness.timing.window_base import (
    GPU_BUSY,
    MALFORMED,
    CallFailed,
    Forward,
    Link,
    barred,
    check_outputs,
)
from kwharness.timing.window_base import now_ns as _now
from kwharness.timing.window_session import Session
from kwharness.timing.window_session import Took as _Took
from kwharness.timing.window_session import durations as _durations
from kwharness.timing.window_worker import Ready as _Ready
from kwharness.timing.window_worker import returned

BUSY_NS = 1_000_000  # a kernel that does nothing takes less, unless another context's is there
SPINS_NS = 250_000  # a part of another's slice, and more than a look takes
LOOKS = 20  # at a GPU that seems to be busy
REST_S = 0.1  # by then a GPU has done with what a process left that has ended
STRANGER_S = 1.0  # for so long one looks for work of others
PAIRS = 64  # of events around nothing, which take less than this:
NOTHING_NS = 20_000
COPY_NS = 1_000  # what is less is no copy
AHEAD_S = 0.1  # for so long a worker may ask for the calls of a window
ASKED = 800  # operations that the driver takes without waiting
STILL_S = 1.0  # for so long at least a window's turns may take without the worker's host
TURN_S = 10.0  # and the GPU may stand between the worker's answer and its last turn
FLAGS = 4096  # bytes at the end of the outputs' block: whose turn it is
SLICE_BYTES = 1 << 29  # that a GPU writes within a slice of time
READS, SETTLED, SETTLE_S = 8, 1.05, 0.25  # how its memory is seen to be at rest
ROOM = 64 << 20  # in it for what a forward allocates besides
_GO, _DONE = 0, 64  # bytes from there
READ_BLOCK = 512
BACKLOG = 5_000_000  # cycles that a GPU waits before a traced forward: some milliseconds


@functools.cache
def image() -> bytes:
    """Returns the kernel that reads, for the GPU of this process."""
    has = gpu().driver.attributes()
    return ceilings_cuda.compile_for(has["major"], has["minor"])


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
        self.begin()
        start, end = self.mark(), self.mark()
        self.wait()
        self._own = end.seconds_since(start)

    def mark(self) -> cuda_driver.Event:
        event = gpu().driver.event()
        event.record()
        return event

    def between(self, start: cuda_driver.Event, end: cuda_driver.Event) -> float:
        return max(end.seconds_since(start) - self._own, 0.0)

    def wait(self) -> None:
        gpu().synchronize()

    def begin(self) -> None:
        """Keeps the GPU busy for as long as the host needs to ask for a forward: what an event
        shows is then the GPU's time, and not the host's.
        """
        torch.cuda._sleep(BACKLOG)

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


class OnGpu:
    """The worker's side of a session."""

    def __init__(
        self, channel: Link, msg: dict[str, Any], fds: list[int], carrier: Carrier | None = None
    ) -> None:
        self._channel = channel
        self._carrier = carrier
        self._device = gpu()
        rows = int(msg["slots"])
        in_slot, out_slot = int(msg["in_slot"]), int(msg["out_slot"])
        self._outputs: Layout = msg["outputs"]
        self._block = self._device.received(fds.pop(0), int(msg["out_bytes"]))
        self._in = self._device.received(fds.pop(0), max(rows * in_slot, 1))
        out, given = self._block.bytes(), self._in.bytes()
        self._base = out.data_ptr()
        self._flags = self._base + out.numel() - FLAGS
        block = range(given.data_ptr(), given.data_ptr() + given.numel())
        self._apart = barred(msg, block)
        self._views = [
            row_views(out[r * out_slot : (r + 1) * out_slot], self._outputs) for r in range(rows)
        ]
        room = out[_whole(rows * out_slot) : out.numel() - FLAGS]
        self._room = range(room.data_ptr(), room.data_ptr() + room.numel())
        self._pool = _Pool(self._device, self._block, room)
        self._rows = [
            row_views(given[r * in_slot : (r + 1) * in_slot], msg["inputs"]) for r in range(rows)
        ]
        if carrier is not None:
            carrier.prepare(self._rows[0])  # what it needs lies in no window's memory
        driver = self._device.driver
        self._flush = _Flush(self._device, base64.b64decode(msg["image"]))
        self._pairs = [(driver.event(), driver.event()) for _ in range(max(rows, PAIRS))]
        self._copies = [(driver.event(), driver.event()) for _ in range(rows)]
        self._lasting: list[range] = []  # of the room, what was in use before a window
        self._ready = _Ready(channel)
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
        views = self._views[0][: returned(self._outputs, self._carrier)]
        return lambda _: [torch.empty_like(v) for v in views]

    def calls(self, n: int, forward: Forward, request: dict[str, Any]) -> dict[str, Any]:
        """Calls it with the first n rows. Returns what each took, ``event``, nanoseconds.

        ``turn``: the calls wait for their turns, from this one on. When all were asked for the
        referee is told where their outputs lie in the block: ``at``.
        """
        turn = int(request.get("turn", 0))
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
        given = list(self._rows[i])
        if turn:
            driver.await_word(self._flags + _GO, turn)
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
        check_outputs([*outputs, *after], self._views[i], self._apart)
        at: list[int] = []
        begin, copied = self._copies[i]
        if turn:
            begin.record()
        for view, got in zip(self._views[i], outputs, strict=False):
            if not got.numel():
                at.append(0)
            elif turn and self._fetched_from(got):
                at.append(got.data_ptr() - self._base)
            else:
                view.copy_(got)
                at.append(view.data_ptr() - self._base)
        if turn:
            copied.record()
            self._kept.append(outputs)
        for view, got in zip(self._views[i][len(outputs) :], after, strict=True):
            view.copy_(got)  # from the same place in every process: no part of what is compared
            at.append(view.data_ptr() - self._base if got.numel() else 0)
        if turn:
            driver.write_word(self._flags + _DONE, turn)
        return at

    def _fetched_from(self, got: torch.Tensor) -> bool:
        """Whether the referee may take an output from where it lies: made by this call, and not
        kept from an earlier window, since what lies there is wiped out before the clock starts.
        """
        at = got.data_ptr()
        return (
            at in self._room
            and not got.is_conj()
            and not got.is_neg()
            and not any(at in block for block in self._lasting)
        )

    def close(self) -> int:
        self._kept.clear()
        self._views, self._rows = [], []
        for start, end in (*self._pairs, *self._copies):
            start.destroy()
            end.destroy()
        self._pool.close()
        self._in.close()
        self._device.release()
        return torch.cuda.memory_reserved()


def _whole(n: int) -> int:
    """Returns n, rounded up to where torch's allocator may begin."""
    return -(-n // 512) * 512


class _NotAhead(Exception):
    """The worker cannot ask for so many calls before the first has its turn: for ``most``, where
    that is known.
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = most


@functools.cache
def sensors() -> nvml.Sensors:
    """Returns those of the GPU of this process."""
    return nvml.Sensors(gpu().driver.uuid())


class _Turns:
    """What all sessions of a referee take turns by: windows come one after the other."""

    def __init__(self, device: Gpu) -> None:
        driver = device.driver
        self.flush = _Flush(device, image())
        self.trifle = torch.zeros(1, device=device.torch)
        self.begun, self.over = driver.event(), driver.event()
        self.aside = driver.stream()
        # The referee's part waits for a word in the host's memory: asking for it is not timed.
        self._pinned = torch.zeros(16, dtype=torch.int32).pin_memory()
        self.gate = self._pinned.data_ptr()
        self._word = ctypes.c_uint32.from_address(self.gate)
        self.next = 1
        self._read_s = math.inf  # what reads have taken at least

    def take(self, n: int) -> int:
        """Returns the number of the first of n turns."""
        self.next += n
        return self.next - n

    def open(self, turn: int) -> None:
        """Lets the referee's stream begin."""
        self._word.value = turn

    def settle(self) -> None:
        """Waits, not for long, until the GPU's memory is read as fast as it has been: it may still
        be busy with what another process has freed when that has nothing to do any more.
        """
        end = time.monotonic() + SETTLE_S
        while True:
            took = math.inf
            for _ in range(3):
                self.begun.record()
                for _ in range(READS):
                    self.flush()
                self.over.record()
                took = min(took, self.over.seconds_since(self.begun))
            self._read_s = min(self._read_s, took)
            if took <= SETTLED * self._read_s or time.monotonic() > end:
                return
            time.sleep(1e-3)


@functools.cache
def _turns() -> _Turns:
    return _Turns(gpu())


def _trifle_ns() -> int:
    """Returns what a kernel that does nothing takes."""
    start = _now()
    _turns().trifle.add_(1.0)
    gpu().synchronize()
    return _now() - start


def at_work() -> bool:
    """Whether the GPU does something for another process, as long as one looks."""
    for _ in range(LOOKS):
        if _trifle_ns() < BUSY_NS:
            return False
        time.sleep(1e-3)
    return True


def strangers_at_work() -> bool:
    """Whether the GPU does something although whoever was timed has ended. A stranger may pause: it
    is looked for more than once.
    """
    time.sleep(REST_S)
    end = time.monotonic() + STRANGER_S
    while time.monotonic() < end:
        if at_work():
            return True
        time.sleep(1e-2)
    return False


def _at_work(how: str) -> CallFailed:
    return CallFailed({"type": GPU_BUSY, "message": f"while the clock stands still {how}"})


class GpuSession(Session):
    """The referee's side."""

    _looks = 16
    _out: torch.Tensor
    _in: torch.Tensor

    def _share(self) -> tuple[dict[str, Any], list[int]]:
        device = gpu()
        slots, rows = self.contents.slots, self.capacity
        # Twice what the outputs need, for torch allocates in pieces, and temporary tensors. Where
        # there is little, what they need: who finds no room has to copy them.
        wanted, free = rows * slots.out_slot + ROOM, device.free_bytes()
        room = min(2 * (rows * slots.out_slot + slots.bytes) + ROOM, max(free // 8, wanted))
        if room > free // 3:
            room = ROOM
        size = _whole(rows * slots.out_slot) + _whole(room) + FLAGS
        self._trust = bool(self._mode)  # a baseline's events are believed
        self._turns = _turns()
        self._flush = self._turns.flush
        self._most = ASKED // (4 + len(slots.outputs))
        self._given: Sequence[int] = []
        self._failed = 0  # attempts to ask for calls ahead, one after the other
        self._call_ns = 0  # what a call of the last window took
        blocks: list[GpuBlock] = []
        try:
            blocks += [device.create(size), device.create(max(rows * slots.in_slot, 1))]
            self._private = torch.zeros(
                rows, slots.out_slot, dtype=torch.uint8, device=device.torch
            )
        except BaseException:
            for block in blocks:
                block.close()
            raise
        self._out_block, self._in_block = blocks
        self._out, self._in = self._out_block.bytes(), self._in_block.bytes()
        self._flags = self._out.data_ptr() + size - FLAGS
        self._into = [row_views(private, slots.outputs) for private in self._private]
        device.synchronize()
        fds = [self._out_block.fd, self._in_block.fd]
        self._out_block.fd = self._in_block.fd = -1  # the caller's to close
        return {"image": base64.b64encode(image()).decode(), "out_bytes": size}, fds

    def _wakes(self, kind: str) -> bool:
        # Who takes turns is awake: it was asked for its calls before the clock starts.
        return kind == "chained" or self._windows == 1 or self.ahead == 0

    def _slowed(self) -> Sequence[str]:
        return sensors().slowed()

    # Calls that come one by one.

    def _put(self, group: Sequence[int]) -> None:
        self._out[: len(group) * self.contents.slots.out_slot].fill_(0xFF)
        if self.contents.large:  # before what is new can be seen
            for row in group:
                self.contents.row(row)
            self._turns.settle()
        self._write(group)
        self._flush()  # what has just been written must not be found in the L2
        gpu().synchronize()
        self._idle("before the clock starts")

    def _write(self, group: Sequence[int]) -> None:
        slot = self.contents.slots.in_slot
        for i, row in enumerate(group):
            self._in[i * slot : (i + 1) * slot].copy_(self.contents.row(row))
        self._given = group

    def _end(self, first: int, n: int) -> int:
        # Whatever still computes has the clock running until what it makes has been copied.
        slot = self.contents.slots.out_slot
        self._private[first : first + n].view(-1).copy_(self._out[: n * slot])
        gpu().synchronize()
        end = _now()
        self._stopped.stop()
        return end

    def _collect(self, first: int, n: int, at: object) -> None:
        self._idle("after it")
        # The worker's mapping is one that it may write to.
        slot = self.contents.slots.in_slot
        written = torch.zeros((), dtype=torch.bool, device=gpu().torch)
        for i, row in enumerate(self._given):
            has = self._in[i * slot : (i + 1) * slot].view(torch.int64)
            written |= (has != self.contents.row(row).view(torch.int64)).any()
        if written.item():
            raise CallFailed({"type": "OutputMismatch", "message": "forward writes to its input"})

    # Calls that take turns.

    def _timed(
        self,
        group: Sequence[int],
        first: int,
        call: dict[str, Any],
        look: Callable[[], None] | None = None,
    ) -> _Took:
        # A first call makes what later ones find: it may wait for the GPU.
        if call["alone"] or self._windows == 1:
            took = super()._timed(group, first, call, look)
            self._call_ns = took.ns // len(group)
            return took
        took = _Took()
        left = group
        while left:
            ahead = self._most if self.ahead is None else min(self.ahead, self._most)
            some, left = left[: max(ahead, 1)], left[max(ahead, 1) :]
            piece = call | {"n": len(some), "keeps": False, "more": call["more"] or bool(left)}
            if ahead == 0:
                took.add(super()._timed(some, first, piece | {"alone": True}))
            else:
                try:
                    took.add(self._in_turns(some, first, piece))
                except _NotAhead as e:
                    self._failed += 1
                    if e.most is not None:
                        self.ahead, self._failed = e.most, 0
                    elif self._failed == 2:  # the first time it may have made what it needs
                        self.ahead, self._failed = len(some) // 4, 0
                    left = [*some, *left]
                    continue
                self._failed = 0
            first += len(some)
        self._call_ns = took.ns // len(group)
        return took

    def _in_turns(self, group: Sequence[int], first: int, call: dict[str, Any]) -> _Took:
        driver, turns, n = gpu().driver, self._turns, len(group)
        slot = self.contents.slots.in_slot
        # One that is drawn again is there before anything waits in the referee's stream.
        contents = [self.contents.row(row) for row in group]
        if self.contents.large:
            self._turns.settle()
        turn = turns.take(n)
        self._idle("before the clock starts")
        try:
            self.worker.channel.send(call | {"turn": turn})
            self._stopped.go_on()
            places = self._places(turn, n)
            # All is asked for. No thread of it has the content of a call before its turn.
            self._stopped.stop()
            # What lies there is not what is expected, nor what anything is that was there before.
            for of_call in places:
                for place in of_call:
                    place.fill_(0xFF)
            gpu().synchronize()
            # Several streams of it that wait keep the GPU for whole slices of time.
            if (n > 1 or slot > SLICE_BYTES) and self._spins():
                self._let_go(turn, n)
                raise _NotAhead(most=1 if slot <= SLICE_BYTES else 0)
            driver.await_word(turns.gate, turn)
            turns.begun.record()
            self._given = group
            for i, content in enumerate(contents):
                self._in[i * slot : (i + 1) * slot].copy_(content)
                self._flush()
                driver.write_word(self._flags + _GO, turn + i)
                driver.await_word(self._flags + _DONE, turn + i)
                for place, to in zip(places[i], self._into[first + i], strict=True):
                    to.view(-1).view(torch.uint8).copy_(place)
            turns.over.record()
            turns.open(turn)
            still, answer = self._until_over(n)
            # The GPU's own clock, in this process: the host's may be late on a busy machine.
            took = _Took(round(1e9 * turns.over.seconds_since(turns.begun)), turns=True)
        except BaseException as e:
            if not isinstance(e, _NotAhead):
                self._release(turn + n - 1)
            raise
        self._stopped.go_on()
        answer = answer or self._answer()
        self._stopped.stop()
        self._collect(first, n, None)
        self._stopped.check()
        if not still:
            raise _NotAhead(most=0)
        took.event_ns = _durations(answer.get("event"), n)
        copied = _durations(answer.get("copied"), n)
        if self._trust and self._fetched:  # so others need not copy: what it does is no cost of its
            took.ns = max(took.ns - sum(copied), 0)
        else:  # what it copies, because the referee cannot see it, takes its time
            took.event_ns = [e + c for e, c in zip(took.event_ns, copied, strict=True)]
        return took

    def _release(self, last: int) -> None:
        """Has nobody wait any more: the worker is killed, or it might take back what is written."""
        turns, driver = self._turns, gpu().driver
        turns.open(last)
        self.worker.kill()
        with suppress(ProcessLookupError):
            os.kill(self.worker.pid, signal.SIGKILL)
        turns.over.record()
        end = time.monotonic() + TURN_S
        while not turns.over.over() and time.monotonic() < end:
            for at in (_GO, _DONE):
                driver.write_word(self._flags + at, last, turns.aside)
            time.sleep(1e-3)

    def _places(self, turn: int, n: int) -> list[list[torch.Tensor]]:
        """Returns the memory of the outputs of all calls, once they were asked for."""
        end = time.monotonic() + AHEAD_S
        while not self.worker.channel.pending():
            if time.monotonic() > end:
                self._let_go(turn, n, asked=False)
                raise _NotAhead
            time.sleep(20e-6)
        said = self._answer().get("at")
        sizes = [
            math.prod(e["shape"]) * DTYPES[e["dtype"]].itemsize for e in self.contents.slots.outputs
        ]
        least = self._out.numel() - FLAGS
        places: list[list[torch.Tensor]] = []
        for of_call in said if isinstance(said, list) and len(said) == n else [None]:
            if not isinstance(of_call, list) or len(of_call) != len(sizes):
                raise CallFailed({"type": "ValueError", "message": MALFORMED})
            for at, size in zip(of_call, sizes, strict=True):
                if type(at) is not int or not 0 <= at <= least - size:
                    raise CallFailed({"type": "ValueError", "message": MALFORMED})
            pairs = zip(of_call, sizes, strict=True)
            places.append([self._out[at : at + size] for at, size in pairs])
        return places

    def _let_go(self, turn: int, n: int, *, asked: bool = True) -> None:
        """Has all calls done that were asked for, and counts nothing. ``asked``: all were."""
        # Contents that it has met: what an index is must be one.
        self._write([0] * n)
        gpu().synchronize()
        gpu().driver.write_word(self._flags + _GO, turn + n - 1, self._turns.aside)
        self._stopped.go_on()
        for _ in range(1 if asked else 2):
            self._answer()
        self._stopped.stop()
        self._idle("after it")

    def _until_over(self, n: int) -> tuple[bool, dict[str, Any] | None]:
        """Returns when the GPU has done all turns: whether the worker stood still until then, and
        its answer if it has come.
        """
        answer: dict[str, Any] | None = None
        patience_s = max(STILL_S, 8 * n * self._call_ns / 1e9)
        begun = time.monotonic()
        still, by, looked = True, math.inf, 0
        while not self._turns.over.over():
            looked += 1
            if looked % 64:
                continue
            now = time.monotonic()
            if still and now - begun > patience_s:  # its GPU may need its host, or has failed
                still, by = False, min(self._end_s(), now + self.timeout_s)
                self._stopped.go_on()
            if still:
                continue
            if answer is None and (now > by or self.worker.channel.pending()):
                answer, by = self._answer(), now + TURN_S
            elif now > by:
                raise _at_work("a turn of it is not over")
        return still, answer

    def _idle(self, when: str) -> None:
        """Raises CallFailed where the GPU does something while the worker is stopped."""
        if at_work():
            raise _at_work(f"the GPU is at work {when}")

    def _spins(self) -> bool:
        """Whether another context takes slices of the GPU's time: the first look finds a whole one,
        those after it parts. A referee that loses its core once sees that once.
        """
        if _trifle_ns() < BUSY_NS:
            return False
        return median([float(_trifle_ns()) for _ in range(5)]) > SPINS_NS

    def close(self) -> int | None:
        has = super().close()
        self._out_block.close()
        self._in_block.close()
        self._out = self._in = torch.empty(0)  # or they stay mapped for as long as this is there
        return has

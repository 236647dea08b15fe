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
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from kwharness.base.operations import Failure, WindowCalls, Windows
from kwharness.base.stats import median
from kwharness.machine import nvml
from kwharness.machine.gpu import Gpu, GpuBlock, gpu
from kwharness.timing.gpu_flush import Flush, image
from kwharness.timing.gpu_worker import DONE, FLAGS, GO, whole
from kwharness.timing.input_pool import row_views
from kwharness.timing.window import Took, durations
from kwharness.timing.window_base import GPU_BUSY, MALFORMED, CallFailed, now_ns
from kwharness.timing.window_session import Session

BUSY_NS = 1_000_000  # a kernel that does nothing takes less, unless another context's is there
SPINS_NS = 250_000  # a part of another's slice, and more than a look takes
LOOKS = 20  # at a GPU that seems to be busy
REST_S = 0.1  # by then a GPU has done with what a process left that has ended
STRANGER_S = 1.0  # for so long one looks for work of others
AHEAD_S = 0.1  # for so long a worker may ask for the calls of a window
ASKED = 800  # operations that the driver takes without waiting
STILL_S = 1.0  # for so long at least a window's turns may take without the worker's host
TURN_S = 10.0  # and the GPU may stand between the worker's answer and its last turn
SLICE_BYTES = 1 << 29  # that a GPU writes within a slice of time
READS, SETTLED, SETTLE_S = 8, 1.05, 0.25  # how its memory is seen to be at rest
ROOM = 64 << 20  # in it for what a forward allocates besides


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
        self.flush = Flush(device, image())
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
    start = now_ns()
    _turns().trifle.add_(1.0)
    gpu().synchronize()
    return now_ns() - start


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
    return CallFailed(Failure(GPU_BUSY, f"while the clock stands still {how}"))


class GpuSession(Session):
    """The referee's side of windows on a GPU; gpu_worker.py has the worker's."""

    _looks = 16
    _out: torch.Tensor
    _in: torch.Tensor

    def _share(self, request: Windows) -> tuple[Windows, list[int]]:
        device = gpu()
        slots, rows = self.contents.slots, self.capacity
        # Twice what the outputs need, for torch allocates in pieces, and temporary tensors. Where
        # there is little, what they need: who finds no room has to copy them.
        wanted, free = rows * slots.out_slot + ROOM, device.free_bytes()
        room = min(2 * (rows * slots.out_slot + slots.bytes) + ROOM, max(free // 8, wanted))
        if room > free // 3:
            room = ROOM
        size = whole(rows * slots.out_slot) + whole(room) + FLAGS
        self._trust = bool(self.options.mode)  # a baseline's events are believed
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
        return replace(request, image=base64.b64encode(image()).decode(), out_bytes=size), fds

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
        end = now_ns()
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
            raise CallFailed(Failure("OutputMismatch", "forward writes to its input"))

    # Calls that take turns.

    def _timed(
        self,
        group: Sequence[int],
        first: int,
        call: WindowCalls,
        look: Callable[[], None] | None = None,
    ) -> Took:
        # A first call makes what later ones find: it may wait for the GPU.
        if call.alone or self._windows == 1:
            took = super()._timed(group, first, call, look)
            self._call_ns = took.ns // len(group)
            return took
        took = Took()
        left = group
        while left:
            ahead = self._most if self.ahead is None else min(self.ahead, self._most)
            some, left = left[: max(ahead, 1)], left[max(ahead, 1) :]
            piece = replace(call, n=len(some), more=call.more or bool(left))
            if ahead == 0:
                took.add(super()._timed(some, first, replace(piece, alone=True)))
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

    def _in_turns(self, group: Sequence[int], first: int, call: WindowCalls) -> Took:
        driver, turns, n = gpu().driver, self._turns, len(group)
        slot = self.contents.slots.in_slot
        # One that is drawn again is there before anything waits in the referee's stream.
        contents = [self.contents.row(row) for row in group]
        if self.contents.large:
            self._turns.settle()
        turn = turns.take(n)
        self._idle("before the clock starts")
        try:
            self.worker.channel.send(replace(call, turn=turn).asked())
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
                driver.write_word(self._flags + GO, turn + i)
                driver.await_word(self._flags + DONE, turn + i)
                for place, to in zip(places[i], self._into[first + i], strict=True):
                    to.view(-1).view(torch.uint8).copy_(place)
            turns.over.record()
            turns.open(turn)
            still, answer = self._until_over(n)
            # The GPU's own clock, in this process: the host's may be late on a busy machine.
            took = Took(round(1e9 * turns.over.seconds_since(turns.begun)), turns=True)
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
        took.event_ns = durations(answer.get("event"), n)
        copied = durations(answer.get("copied"), n)
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
            for at in (GO, DONE):
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
        sizes = [e.numel * e.itemsize for e in self.contents.slots.outputs]
        least = self._out.numel() - FLAGS
        places: list[list[torch.Tensor]] = []
        for of_call in said if isinstance(said, list) and len(said) == n else [None]:
            if not isinstance(of_call, list) or len(of_call) != len(sizes):
                raise CallFailed(Failure("ValueError", MALFORMED))
            for at, size in zip(of_call, sizes, strict=True):
                if type(at) is not int or not 0 <= at <= least - size:
                    raise CallFailed(Failure("ValueError", MALFORMED))
            pairs = zip(of_call, sizes, strict=True)
            places.append([self._out[at : at + size] for at, size in pairs])
        return places

    def _let_go(self, turn: int, n: int, *, asked: bool = True) -> None:
        """Has all calls done that were asked for, and counts nothing. ``asked``: all were."""
        # Contents that it has met: what an index is must be one.
        self._write([0] * n)
        gpu().synchronize()
        gpu().driver.write_word(self._flags + GO, turn + n - 1, self._turns.aside)
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
                still, by = False, min(self._end_s(), now + self.options.timeout_s)
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

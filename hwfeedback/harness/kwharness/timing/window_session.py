"""Timed windows: how K calls of a forward are timed from outside the process that makes them.

There are two sides. ``serve`` (window_worker.py) is the worker's: it answers one ``window`` request
and stays in its own loop until ``end``. ``Session`` is the referee's: it drives the worker of one
session through windows and holds the clock that nobody else can touch.

A call's inputs are a row of a ``Contents`` pool in the referee's private memory. The worker has one
block for them, mapped read-only for the whole session, and one for its outputs. The clock runs
while the worker may run and the content is there, and at no other time: the referee stops the
worker (SIGSTOP, every thread of it), writes the contents of the next window, starts its clock and
lets the worker go on; when the worker says that it is done it is stopped again, and the clock with
it. What the outputs' memory holds then is what it gave. So neither a thread that works on, nor
one that has begun early, has any time of its own, and nothing but the calls themselves lies between
the two readings of the clock. The kinds of window:

- ``fresh``: K contents at once, each at an address, and in tensors, that held another content in
  the window before. Whoever remembers by pointer, by object or by version counter is stale.
- ``varied``: the same to the worker, but some of the contents are those on which it was verified:
  of input families that look different. Who computes another way when timed fails on them.
- ``repeat``: contents that this process has met before, now at other addresses.
- ``chained``: one content at a time, always at the same address, and the k+1st is not written
  before the referee holds a private copy of output k. One launch cannot serve the whole batch.

Outputs of a window of several calls are copied by the worker, each into a place of its own: what
that costs is seen in eager's windows. An output of a call that comes alone, in a ``chained`` window
or where outputs are large, stays where the worker made it, and the referee fetches it from there
once the worker stands still. Nothing is then left out of the clock that could hide work, and a call
that computes into the block for outputs, or while they are copied, is as slow as it is.

Only ``fresh`` windows count towards the time. Being faster in a ``repeat`` window is a finding:
hardware does not know that content was seen before.

Before the clock starts the worker is made ready (``_Ready``): the threads of its OpenMP pool, the
candidate's as well as torch's, run a trivial region until they are awake, each on a core, and the
worker waits for its message without sleeping. Threads woken by the first timed call are often put
on one core, where they wait milliseconds for each other, and a core of a virtual machine that has
halted takes 0.4 ms to come back, or 10: that says nothing about the code.

What stopping, going on and messages cost is seen in windows of eager, whose own clock is trusted,
and subtracted; what processor time they cost, in identity windows (``identity=True``: forward
returns preallocated outputs without computing). Every output of every timed call is handed on to be
checked.

State of the caches, the same for whoever is timed: the referee reads twice the last-level cache, on
all processors, before each window and writes contents past the caches, so inputs come from memory,
and neither their size nor K decides whether they are warm. Where outputs are small, the memory that
they will get is then warmed, and weights are warm after the first call. Where they are large
(``Slots.large``) they and the weights are cold too, and a window is one call: a second one would
find its output's memory warm from the first, and a time would depend on K again.
Inputs are mapped with their page tables filled, read-only: writing into one kills the worker. They
lie on 4 KiB pages of shared memory for everybody.

State of the allocator, likewise: what is freed is kept and given out again (allocator.py).

The ``event`` clock is the worker's monotonic clock, bound when this module is imported, before any
candidate. It covers forward and, where another call follows, the release of what it returned:
allocating and freeing outputs is part of the price, paid by baselines and candidates alike.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from kwharness.base import process_memory
from kwharness.base.operations import Failure, WindowCalls, WindowReady, Windows, WindowsEnd
from kwharness.clients.errors import read_failure
from kwharness.machine.device import CPU, Device
from kwharness.machine.perf_counters import Counters
from kwharness.timing import input_pool, process_use, window_base
from kwharness.timing.stopped import Stopped
from kwharness.timing.window import Took, Window, durations

LOOKS, LOOK_NS = 24, 50_000  # into a window, and between two of them at least


class TimedWorker(Protocol):
    """A worker that is loaded, initialised, and answers ``window`` with ``serve``."""

    @property
    def channel(self) -> window_base.Link: ...

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def took_memory(self) -> bool: ...

    def how_it_ended(self) -> str: ...


class Redrawn(input_pool.Contents):
    """Contents so large that none is kept: each is drawn again, and what eager makes of it computed
    again, whenever it is needed. Windows are of one call.
    """

    large = True

    def __init__(
        self,
        slots: window_base.Slots,
        draw: Callable[[int], Sequence[torch.Tensor]],
        eager: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
        device: Device = CPU,
        asked: window_base.Asked = lambda what: what(),
    ) -> None:
        """``draw(i)`` gives the same whenever it is asked; ``eager`` computes outputs. Both, and
        reading what varies, go through ``asked``.
        """
        super().__init__(slots, draw, device)
        self._eager, self._asked = eager, asked
        self._few: list[Sequence[torch.Tensor]] = []
        self._one = self._pool(1, slots.in_slot)
        self._at: int | None = None  # the row that lies there

    def vary(self, varied: Sequence[Sequence[torch.Tensor]]) -> None:
        self._few = list(varied)
        self._at = None

    def grow(self, count: int, deadline_ns: int | None = None) -> None:
        self._known.extend([True] * (count - len(self)))

    @property
    def varied(self) -> range:
        return range(-len(self._few), 0)

    def row(self, row: int) -> torch.Tensor:
        if row != self._at:
            self._at = None
            with self._again():
                drawn = self._asked(
                    lambda: list(self._few[-1 - row] if row < 0 else self._draw(row))
                )
                self._fill(self._one, 0, drawn)
            self._at = row
        return self._one[0]

    def inputs(self, rows: Sequence[int]) -> list[torch.Tensor]:
        (row,) = rows
        self.row(row)
        return window_base.stack(self._one, self.slots.inputs)

    def expected(self, rows: Sequence[int]) -> list[torch.Tensor]:
        inputs = [t[0] for t in self.inputs(rows)]
        with self._again():
            return [t.unsqueeze(0) for t in self._asked(lambda: list(self._eager(inputs)))]

    def set_expected(self, window: Window) -> None:
        """It is computed again."""

    @contextmanager
    def _again(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.again_s += time.monotonic() - began


@dataclass(frozen=True)
class Options:
    """How a session's worker is asked."""

    evict: Callable[[], None] | None = None  # empties a processor's caches
    mode: str = ""  # the name of a baseline
    cold: bool = False  # the memory of outputs is left as the emptied caches leave it
    timeout_s: float = 60.0  # of an answer


DEFAULT = Options()
_random = random.SystemRandom()


class Session:
    """The referee's side of one worker's windows. Close it before other requests to the worker.

    ``ahead`` is how many calls a worker is known to ask for before the GPU has done the first; None
    where nothing is known.
    """

    ahead: int | None = None
    _looks = 4  # windows between looks for processes of the worker's

    def __init__(
        self,
        worker: TimedWorker,
        contents: input_pool.Contents,
        capacity: int,
        options: Options = DEFAULT,
    ) -> None:
        """``capacity`` is the largest K. Raises CallFailed, or what the channel raises."""
        self.worker = worker
        self.contents = contents
        self.capacity = capacity
        self.options = options
        # Of the monotonic clock, less ``again_s`` of the contents: no answer may take longer.
        self.until = math.inf
        self._windows = 0
        self._call_ns = math.inf  # of the quickest window so far
        self._pids: list[int] = []
        self._stopped = Stopped(worker.pid)
        # A GPU's memory is no process'.
        self._fetches = contents.device.on_cores and process_memory.readable(worker.pid)
        slots = contents.slots
        request = Windows(
            inputs=slots.inputs,
            in_slot=slots.in_slot,
            outputs=slots.outputs,
            out_slot=slots.out_slot,
            slots=capacity,
            mode=options.mode,
            cold=options.cold,
        )
        request, fds = self._share(request)
        try:
            worker.channel.send(request.asked(), fds)
            # Whether outputs are fetched from where they were made: a baseline's word.
            self._fetched = self._answer().get("fetched") is True
        finally:
            for fd in fds:
                os.close(fd)

    # What differs where the tensors lie elsewhere: see windows_cuda.py.

    def _share(self, request: Windows) -> tuple[Windows, list[int]]:
        """Makes the blocks. Returns the request with what the worker must know of them, and their
        descriptors.
        """
        slots = self.contents.slots
        self._out = _Shared("outputs", self.capacity * slots.out_slot)
        self._in = _Shared("inputs", self.capacity * slots.in_slot, window_base.F_SEAL_FUTURE_WRITE)
        self._private = torch.zeros(self.capacity, slots.out_slot, dtype=torch.uint8)
        return request, [self._out.fd, self._in.fd]

    def _put(self, group: Sequence[int]) -> None:
        """Writes the contents of the next calls, and wipes out the block for their outputs."""
        if len(group) > 1 or not self._fetches:
            ctypes.memset(self._out.at, 0xFF, len(group) * self.contents.slots.out_slot)
        self.contents.write(group, self._in.at)
        if not input_pool.PAST_CACHES and self.options.evict is not None:
            self.options.evict()

    def _wakes(self, kind: str) -> bool:
        """Whether the worker is woken before a window of this kind, outside of its time."""
        return True

    def _slowed(self) -> Sequence[str]:
        """Returns why the device has slowed itself down."""
        return ()

    def _end(self, first: int, n: int) -> int:
        """Stops the worker and returns when the clock stops."""
        return self._stopped.stop()

    def _collect(self, first: int, n: int, at: object) -> None:
        """Copies the outputs of n calls into the referee's own memory.

        ``at`` is where the worker claims that it keeps them, where it does.
        """
        slot = self.contents.slots.out_slot
        if n == 1 and self._fetches:
            self._fetch(self._private.data_ptr() + first * slot, at)
            return
        ctypes.memmove(self._private.data_ptr() + first * slot, self._out.at, n * slot)

    def _fetch(self, to: int, at: object) -> None:
        """Copies the outputs of a call from the worker's memory to an address."""
        layout = self.contents.slots.outputs
        if not isinstance(at, list) or len(at) != len(layout):
            raise window_base.CallFailed(Failure("ValueError", window_base.MALFORMED))
        for i, (entry, address) in enumerate(zip(layout, at, strict=True)):
            size = entry.numel * entry.itemsize
            if not size:
                continue
            known = type(address) is int and 0 < address < 1 << 63
            code = (
                process_memory.fetch(self.worker.pid, address, to + entry.offset, size)
                if known
                else -1
            )
            if code and self._stopped.gone():
                self.worker.channel.recv(1.0)  # says so
            if code:
                message = f"output {i} lies in memory that cannot be read"
                raise window_base.CallFailed(Failure(window_base.OutputMismatch.__name__, message))

    def _look(self, look: Callable[[], None], calls: int) -> None:
        """Stops the worker again and again until it answers, and looks each time."""
        known_ns = self._call_ns if math.isfinite(self._call_ns) else 0.0
        between_s = max(known_ns * calls / LOOKS, LOOK_NS) / 1e9
        for _ in range(2 * LOOKS):
            time.sleep(_random.expovariate(1.0 / between_s))
            if self.worker.channel.pending() or time.monotonic() > self._end_s():
                return
            self._stopped.stop()
            look()
            self._stopped.go_on()

    def _end_s(self) -> float:
        """Returns until when answers are waited for, by the monotonic clock."""
        return self.until + self.contents.again_s

    def _answer(self) -> dict[str, Any]:
        left = max(round(self._end_s() - time.monotonic(), 1), 0.1)
        msg, fds = self.worker.channel.recv(min(self.options.timeout_s, left))
        for fd in fds:
            os.close(fd)
        if not msg.get("ok"):
            raise window_base.CallFailed(read_failure(msg.get("error")))
        return msg

    def run(
        self,
        kind: str,
        rows: Sequence[int],
        *,
        identity: bool = False,
        look: Callable[[], None] | None = None,
    ) -> Window:
        """Runs one window over these contents. Raises CallFailed, and what the channel raises.

        ``look`` is called now and then while the worker has just been stopped in its calls, at
        moments that nobody knows before: such a window has no time of its own.
        """
        n = len(rows)
        if not 0 < n <= self.capacity:
            raise ValueError(f"a window of {n} calls in a session for {self.capacity}")
        groups = [[r] for r in rows] if kind == "chained" else [rows]
        self._stopped.stop()
        if self.options.evict is not None:
            self.options.evict()
        if self._windows % self._looks == 0:  # looking through /proc takes milliseconds
            self._pids = process_use.tree(self.worker.pid)
        self._windows += 1
        took: list[Took] = []
        first = 0
        try:
            if self._wakes(kind):
                self._stopped.go_on()
                self.worker.channel.send(WindowReady().asked())
                self._answer()
                self._stopped.stop()
            for group in groups:
                more = first + len(group) < n
                call = WindowCalls(identity=identity, alone=kind == "chained", more=more)
                took.append(self._timed(group, first, call, look))
                first += len(group)
            self._call_ns = min(self._call_ns, sum(t.ns for t in took) / n)
        except BaseException:
            self._stopped.go_on()  # who asks it something else must not wait
            raise
        return Window(
            kind=kind,
            rows=rows,
            walls_ns=[t.ns for t in took],
            event_ns=[e for t in took for e in t.event_ns],
            raw=self._private,
            slots=self.contents.slots,
            cpu_ns=sum(t.cpu_ns for t in took),
            waiting_ns=sum(t.waiting_ns for t in took),
            steal=sum(t.steal for t in took),
            alone=any(t.alone for t in took),
            turns=all(t.turns for t in took),
            slowed=self._slowed(),
        )

    def _timed(
        self,
        group: Sequence[int],
        first: int,
        call: WindowCalls,
        look: Callable[[], None] | None = None,
    ) -> Took:
        """Has these contents computed while the clock runs, by a worker that has been stopped, and
        collects the outputs: they are the window's from the ``first`` on.
        """
        n = len(group)
        self._put(group)
        before, ticks = process_use.usage(self._pids), process_use.steal_ticks()
        self._stopped.check()
        spent = process_use.processor_time(self.worker.pid)
        keeps = self._fetches and n == 1
        self.worker.channel.send(replace(call, n=n, keeps=keeps).asked())
        start = window_base.now_ns()
        self._stopped.go_on()
        if look is not None:
            self._look(look, n)
        answer = self._answer()
        took = Took(self._end(first, n) - start, alone=call.alone)
        after = process_use.usage(self._pids)
        took.cpu_ns = max(process_use.processor_time(self.worker.pid) - spent, 0)
        took.waiting_ns = process_use.waited(before, after, took.ns, self.worker.pid)
        took.steal = process_use.steal_ticks() - ticks
        self._collect(first, n, answer.get("at"))
        self._stopped.check()
        took.event_ns = durations(answer.get("event"), n)
        return took

    def count(self, rows: range) -> dict[str, float]:
        """Runs a window under the counters and returns what a call of it does, by name."""
        counting = Counters(process_use.tree(self.worker.pid))
        try:
            with counting:
                self.run("repeat", rows)
            found = counting.read()
        finally:
            counting.close()
        return {name: value / len(rows) for name, value in found.items()}

    def close(self) -> int | None:
        """Ends the session; the worker answers other requests again. Where memory is scarce that is
        when it has given back the session's. Returns how many bytes it says that it still has of
        the device's, if it can tell.
        """
        self._stopped.go_on()
        self.worker.channel.send(WindowsEnd(self.contents.large).asked())
        has = self._answer().get("has")
        return has if type(has) is int and has >= 0 else None


class _Shared:
    """A memfd that is mapped here, and whose size is fixed."""

    def __init__(self, name: str, size: int, seals: int = 0) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, max(size, 1))
            self._map = mmap.mmap(self.fd, max(size, 1), flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            seals |= fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(self.fd)
            raise
        self.at = ctypes.addressof(ctypes.c_byte.from_buffer(self._map))

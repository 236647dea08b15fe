"""Timed windows: how K calls of a forward are timed from outside the process that makes them.

Two sides live here. ``serve`` is the worker's: it answers one ``window`` request and stays in its
own loop until ``end``. ``Session`` is the referee's: it drives the worker of one session through
windows and holds the clock that nobody else can touch.

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
import functools
import gc
import math
import mmap
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kwharness.base import process_memory, trees
from kwharness.base.tensors import ALIGNMENT, DTYPES, Layout, laid_out, layout_of
from kwharness.machine.device import CPU, Device
from kwharness.machine.perf_counters import Counters
from kwharness.model.state import Carrier
from kwharness.process.policy import SandboxError

Forward = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
Asked = Callable[[Callable[[], list[torch.Tensor]]], list[torch.Tensor]]

PAGE = mmap.PAGESIZE
KINDS = ("fresh", "varied", "repeat", "chained")

_now = time.perf_counter_ns
_F_SEAL_FUTURE_WRITE = 0x0010  # linux/fcntl.h; the fcntl module of Python 3.11 lacks it
AWAKE_NS = 50_000_000
REGION_NS = 100_000
PAUSE_S = 10e-6
STOP_NS = 2_000_000_000  # by then every thread of a process has stopped, and
PATIENCE_NS = 20_000_000_000  # by then where the machine is so busy that it gets no core to do so
RUNS = 0.05  # of the time: a process that was told to stop and runs for so long does not mean to
RAN_ON = "RanOn"  # the type of the error of a worker that runs while it is stopped
GPU_BUSY = "GpuBusy"  # of one during whose stop its GPU is at work: for it, or for a stranger
TOOK_MEMORY = "TookMemory"  # of one that leaves the GPU without
MALFORMED = "the worker's answer is malformed"
COMPUTES = 0.2  # of a window's time: a thread that uses less of it waits for its turn to do nothing
LOOKS, LOOK_NS = 24, 50_000  # into a window, and between two of them at least
WAKE_NS = 600_000  # a woken thread may wait for so long beside the one that woke it

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
# allocator.cpp's, where it is preloaded.
PAST_CACHES = hasattr(_libc, "kernelwright_copy_past_caches")
_copy_past_caches = _libc.kernelwright_copy_past_caches if PAST_CACHES else _libc.memmove
_copy_past_caches.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memchr.restype = ctypes.c_void_p
_libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


class Link(Protocol):
    """What is needed of protocol.Channel."""

    def send(self, msg: dict[str, Any], fds: Sequence[int] = ()) -> None: ...

    def recv(self, timeout: float | None = None) -> tuple[dict[str, Any], list[int]]: ...

    def pending(self) -> bool: ...


class TimedWorker(Protocol):
    """A worker that is loaded, initialised, and answers ``window`` with ``serve``."""

    @property
    def channel(self) -> Link: ...

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def took_memory(self) -> bool: ...

    def how_it_ended(self) -> str: ...


class CallFailed(Exception):
    """The worker answered that a call failed: its forward raised, or its outputs do not fit."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('type', 'error')}: {error.get('message', '')}")
        self.error = error


@dataclass(frozen=True)
class Slots:
    """Where the tensors of one call lie: one row for its inputs, one for its outputs.

    Rows of inputs are whole pages, so that each can be mapped on its own.
    """

    inputs: Layout
    in_slot: int
    outputs: Layout
    out_slot: int

    @classmethod
    def of(
        cls,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        orders: Sequence[Sequence[int]] = (),
    ) -> Slots:
        """Returns the slots for tensors of these dtypes and shapes. Meta tensors will do.

        ``orders`` are the inputs': see tensors.layout_of.
        """
        in_layout, in_size = layout_of(inputs, orders=orders)
        out_layout, out_size = layout_of(outputs)
        return cls(in_layout, _round(in_size, PAGE), out_layout, _round(out_size, ALIGNMENT))

    @property
    def bytes(self) -> int:
        return self.in_slot + self.out_slot

    def large(self, llc_bytes: int) -> bool:
        """Whether the outputs are too large for their memory to be warm for certain."""
        return 32 * self.out_slot > llc_bytes


def _round(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def _check_errno(address: int | None, what: str) -> int:
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return address


def _tensor_at(address: int, entry: dict[str, Any]) -> torch.Tensor:
    dtype = DTYPES[entry["dtype"]]
    shape = entry["shape"]
    count = 1
    for d in shape:
        count *= d
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = count * dtype.itemsize
    raw = (ctypes.c_byte * size).from_address(address + entry["offset"])
    return laid_out(torch.frombuffer(raw, dtype=dtype, count=count), entry)


# The worker's side.


class _Inputs:
    """The rows of inputs in the worker: mapped once, read-only, always the same tensors.

    The referee changes their content while this process is stopped.
    """

    def __init__(self, fd: int, layout: Layout, slot: int, rows: int) -> None:
        self._size = max(slot * rows, PAGE)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        base = _check_errno(_libc.mmap(None, self._size, mmap.PROT_READ, flags, fd, 0), "map")
        self._base = base
        self.block = range(base, base + self._size)  # addresses
        self.rows = [[_tensor_at(base + r * slot, e) for e in layout] for r in range(rows)]

    def close(self) -> None:
        self.rows = []
        _libc.munmap(self._base, self._size)


class OutputMismatch(ValueError):
    """A forward returned something else than the task's outputs."""


def barred(msg: dict[str, Any], block: range) -> list[range]:
    """Returns where each output may not lie: in ``block``, the inputs', unless ``aliases`` says
    that the reference's lies there. A baseline's may.
    """
    n = len(msg["outputs"])
    aliases = msg.get("aliases")
    if aliases is None:
        return [range(0)] * n
    return [range(0) if a >= 0 else block for a in [*aliases, *[-1] * n][:n]]


def _store(
    outputs: Sequence[torch.Tensor], views: list[torch.Tensor], apart: Sequence[range]
) -> None:
    check_outputs(outputs, views, apart)
    for got, view in zip(outputs, views, strict=True):
        if got.is_contiguous() and not got.is_conj() and not got.is_neg():
            # Not copy_: it would wake threads, and those of the next call would wait for them.
            ctypes.memmove(view.data_ptr(), got.data_ptr(), got.numel() * got.element_size())
        else:
            view.copy_(got)


def check_outputs(
    outputs: Sequence[torch.Tensor], views: list[torch.Tensor], apart: Sequence[range]
) -> None:
    """Raises OutputMismatch for what are not the task's outputs."""
    if len(outputs) != len(views):
        raise OutputMismatch(f"forward returned {len(outputs)} tensors, the task has {len(views)}")
    for i, (got, view) in enumerate(zip(outputs, views, strict=True)):
        if got.shape != view.shape or got.dtype != view.dtype:
            raise OutputMismatch(
                f"output {i} is {got.dtype} {list(got.shape)}, "
                f"the task has {view.dtype} {list(view.shape)}"
            )
        if type(got) not in (torch.Tensor, torch.nn.Parameter) or got.layout is not torch.strided:
            raise OutputMismatch(f"output {i} is a {type(got).__name__}, not a plain tensor")
        if got.device != view.device:
            raise OutputMismatch(f"output {i} is on {got.device}, the task's is on {view.device}")
        if got.data_ptr() in apart[i]:
            raise OutputMismatch(f"output {i} lies in the memory of an input, the task's does not")


def _warmed(outputs: Layout) -> None:
    """Has memory for the outputs in the cache, where the allocator will find it."""
    ready = [torch.zeros(e["shape"], dtype=DTYPES[e["dtype"]]) for e in outputs]
    del ready


def forward_of(model: Callable[..., Any], tree: Any, wanted: Any) -> Forward:
    """Returns a forward over flat lists for a model whose inputs go in one tree, and whose outputs
    come in the tree ``wanted``.

    Baselines and candidates are called by the same one: what it takes counts.
    """
    build, flatten = trees.build, trees.flatten
    parts = tree.get("list")
    plain = parts is not None and parts == [{"t": i} for i in range(len(parts))]

    def forward(given: list[torch.Tensor]) -> list[torch.Tensor]:
        out = model(*given) if plain else model(*build(tree, given))
        if type(out) is torch.Tensor:
            return [out]
        mine, found = flatten(out, numbers=True)
        if not trees.same_shape(trees.renumbered(mine), wanted):
            raise OutputMismatch("forward returns another structure than the task's")
        return [found[i] for i in trees.ordered_like(mine, wanted)]

    return forward


class Host:
    """The worker's side of a session whose tensors lie in the machine's memory."""

    fetched = False

    def __init__(
        self, channel: Link, msg: dict[str, Any], fds: list[int], carrier: Carrier | None = None
    ) -> None:
        rows = int(msg["slots"])
        out_slot = int(msg["out_slot"])
        self._carrier = carrier
        self._cold = bool(msg.get("cold"))
        self._outputs: Layout = msg["outputs"]
        self._inputs = _Inputs(fds[1], msg["inputs"], int(msg["in_slot"]), rows)
        self._apart = barred(msg, self._inputs.block)
        if carrier is not None:
            carrier.prepare(self._inputs.rows[0])  # what it needs is there before the clock starts
        self._ready = _Ready(channel)
        self._block = mmap.mmap(fds[0], rows * out_slot, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        base = ctypes.addressof(ctypes.c_byte.from_buffer(self._block))
        self._views = [
            [_tensor_at(base + r * out_slot, e) for e in self._outputs] for r in range(rows)
        ]
        self._identity: Forward | None = None
        self._kept: list[torch.Tensor] = []  # the outputs of a call that came alone

    def ready(self) -> None:
        """Comes before each window."""
        self._kept.clear()
        if not self._cold:
            _warmed(self._outputs)
        self._ready.wake()

    def wait(self) -> None:
        """Waits for a message without sleeping."""
        self._ready.wait()

    def identity(self) -> Forward:
        """Returns a forward that computes nothing."""
        if self._identity is None:
            self._identity = _identity(self._outputs[: returned(self._outputs, self._carrier)])
        return self._identity

    def calls(self, n: int, forward: Forward, request: dict[str, Any]) -> dict[str, Any]:
        """Calls it with the first n rows. Returns what each took, ``event``, nanoseconds.

        ``keeps``: the outputs of a call that comes alone stay where they are, until the next one;
        ``at`` are then their addresses.
        """
        keeps = bool(request["keeps"])
        kept = self._kept if keeps else None
        rows = self._inputs.rows[:n]
        event = _calls(rows, self._views, forward, self._apart, kept, carrier=self._carrier)
        return {"event": event, "at": [t.data_ptr() for t in self._kept] if keeps else []}

    def close(self) -> None:
        self._inputs.close()


class Side(Protocol):
    """The worker's side of a session: what ``Host`` does.

    ``fetched``: whether the referee can take the outputs of several calls from where forward makes
    them.
    """

    fetched: bool

    def ready(self) -> None: ...

    def wait(self) -> None: ...

    def identity(self) -> Forward: ...

    def calls(self, n: int, forward: Forward, request: dict[str, Any]) -> dict[str, Any]: ...

    def close(self) -> int | None:
        """Returns how many bytes of the device's memory torch still has for this process, None
        where only the referee can tell.
        """


def returned(outputs: Sequence[Any], carrier: Carrier | None) -> int:
    """Returns how many of a call's outputs forward returns: behind them is what it carries."""
    return len(outputs) if carrier is None else carrier.carried.returned


def serve(
    channel: Link,
    msg: dict[str, Any],
    fds: list[int],
    forward: Forward,
    make: Callable[[Link, dict[str, Any], list[int], Carrier | None], Side] = Host,
    carrier: Carrier | None = None,
) -> None:
    """Answers one ``window`` request: a session of windows, until the referee sends ``end``.

    ``msg`` has inputs, in_slot, outputs, out_slot, slots, cold and, for a candidate, aliases;
    ``fds`` are the blocks for outputs and for inputs. ``forward`` takes and returns flat lists of
    tensors. An output that is not contiguous is made so within the call's time. To put in
    what a model carries, and to collect it, is part of the call: no other process sees where one
    ends and the other begins. A call that raises is reported and the session goes on. Raises what
    the channel raises when the referee is gone.
    """
    side: Side | None = None
    try:
        side = make(channel, msg, fds, carrier)
        channel.send({"ok": True, "fetched": side.fetched})
        awake = False
        while True:
            if awake:
                side.wait()
            request, more = channel.recv()
            for fd in more:
                os.close(fd)
            op = request.get("op")
            if op == "end":
                has = None
                if request.get("frees"):
                    has = side.close()
                    side = None
                channel.send({"ok": True, "has": has})
                return
            try:
                if op == "ready":
                    side.ready()
                    reply: dict[str, Any] = {"ok": True}
                    awake = True
                elif op == "calls":
                    called = side.identity() if request.get("identity") else forward
                    reply = {"ok": True, **side.calls(int(request["n"]), called, request)}
                    awake = bool(request["more"])
                else:
                    raise ValueError(f"unknown operation {op!r} in a session of windows")
            except Exception as e:
                reply = _failure(e)
            channel.send(reply)
    except (KeyError, TypeError, ValueError, OSError) as e:
        if side is not None:
            raise
        channel.send(_failure(e))
    finally:
        if side is not None:
            side.close()
        for fd in fds:
            os.close(fd)


@contextmanager
def _spread_out() -> Iterator[None]:
    """Puts the threads of this process on cores of their own. They are free again afterwards."""
    cores = sorted(os.sched_getaffinity(0))
    threads = sorted(int(t) for t in os.listdir("/proc/self/task"))
    before: dict[int, set[int]] = {}
    # With more threads than cores nobody knows which of them will compute.
    for thread, core in zip(threads, cores, strict=False) if len(threads) <= len(cores) else ():
        with suppress(OSError):  # it has just ended
            mask = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, {core})
            before[thread] = mask
    try:
        yield
    finally:
        for thread, mask in before.items():
            with suppress(OSError):
                os.sched_setaffinity(thread, mask)


class _Ready:
    """Has the worker's threads awake and on cores of their own when the clock starts."""

    def __init__(self, channel: Link) -> None:
        self._channel = channel
        self._threads = torch.get_num_threads()
        self._data = torch.empty(0)

    def wake(self) -> None:
        """Runs parallel regions until one takes no longer than threads that are awake need."""
        if self._threads == 1:
            return
        if not len(self._data):
            # An element-wise operator gives each thread 2^15 elements at least.
            self._data = torch.zeros(self._threads << 15)
        end = _now() + AWAKE_NS
        quick = 0
        with _spread_out():
            while quick < 3 and _now() < end:
                start = _now()
                self._data.add_(1.0)
                quick = quick + 1 if _now() - start < REGION_NS else 0

    def wait(self) -> None:
        """Waits for a message without sleeping."""
        end = _now() + AWAKE_NS
        while not self._channel.pending() and _now() < end:
            pass


def _failure(e: BaseException) -> dict[str, Any]:
    return {
        "ok": False,
        "error": {
            "type": type(e).__name__,
            "message": str(e)[:2000],
            "traceback": traceback.format_exc()[-8000:],
        },
    }


def _identity(outputs: Layout) -> Forward:
    ready = [torch.zeros(e["shape"], dtype=DTYPES[e["dtype"]]) for e in outputs]
    return lambda _: ready


def _calls(
    rows: Sequence[Sequence[torch.Tensor]],
    views: list[list[torch.Tensor]],
    forward: Forward,
    apart: Sequence[range],
    kept: list[torch.Tensor] | None,
    now: Callable[[], int] = _now,
    *,
    carrier: Carrier | None = None,
) -> list[int]:
    """``kept`` are the outputs of the last call, which are released now, and then those of this
    one; None: outputs are stored.
    """
    events: list[int] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad():
            for row, view in zip(rows, views, strict=False):
                t0 = now()
                if kept is not None:
                    kept.clear()
                given = list(row) if carrier is None else carrier.prepare(row)
                outputs = forward(given)
                if not all(t.is_contiguous() for t in outputs):
                    outputs = [t.contiguous() for t in outputs]
                if kept is not None:
                    kept.extend(t.resolve_conj().resolve_neg() for t in outputs)
                if carrier is not None:
                    after = [t.contiguous() for t in carrier.collect(given)]
                    outputs = [*outputs, *after]
                    if kept is not None:
                        kept.extend(after)
                    del after
                t1 = now()
                if kept is not None:
                    check_outputs(outputs, view, apart)
                    events.append(t1 - t0)
                    continue
                _store(outputs, view, apart)
                t2 = now()
                del outputs
                t3 = now()
                events.append(t1 - t0 + t3 - t2)
    finally:
        if collecting:
            gc.enable()
    return events


# The referee's side.


@dataclass
class Usage:
    """What a process and its descendants have used, read from outside."""

    cpu_ns: int = 0
    waiting_ns: int = 0  # runnable, but not given a core


def tree(pid: int) -> list[int]:
    """Returns the pid and those of its descendants that exist now."""
    parent: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                fields = f.read().rpartition(b")")[2].split()
            parent[int(name)] = int(fields[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just gone
    found = [pid]
    for p in found:
        found.extend(child for child, of in parent.items() if of == p)
    return found


def usage(pids: Iterable[int]) -> dict[int, Usage]:
    """Returns what each thread that exists now has used. Empty for a process that is gone."""
    found: dict[int, Usage] = {}
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as f:
                    run, wait, _ = f.read().split()
            except (OSError, ValueError):
                continue
            found[int(thread)] = Usage(int(run), int(wait))
    return found


def waited(before: dict[int, Usage], after: dict[int, Usage], wall_ns: int, calls: int = 0) -> int:
    """Returns how long threads that computed were kept waiting, nanoseconds: idle ones wait for
    nothing. The thread that is called, ``calls``, has something to do even where it got no core.
    """
    total = 0
    for thread, now in after.items():
        then = before.get(thread, Usage())
        if thread == calls or now.cpu_ns - then.cpu_ns >= COMPUTES * wall_ns:
            total += max(now.waiting_ns - then.waiting_ns, 0)
    return total


def _processor_time(pid: int) -> int:
    """Returns what a process has used, nanoseconds, those of its threads included that have ended.

    By its processor clock (time(7), CPUCLOCK_SCHED of linux/posix-timers.h). 0 for one that is
    gone.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def steal_ticks() -> int:
    """Returns what the hypervisor took from this machine, in ticks of 10 ms of all cores."""
    try:
        with open("/proc/stat", "rb") as f:
            return int(f.readline().split()[8])
    except (OSError, IndexError, ValueError):
        return 0


class Evictor:
    """Reads twice the last-level cache, on all processors that may be used: what a core has in a
    cache of its own, or a group of cores, nobody else drives out. Reading leaves no dirty lines
    behind, writing would.
    """

    def __init__(self, llc_bytes: int, processors: Sequence[int]) -> None:
        self.size = max(2 * llc_bytes, 1)
        self._block = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # in pages of 4 KiB it takes up to four times as long
            self._block.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_byte.from_buffer(self._block))
        # Untouched pages would all be the one zero page.
        ctypes.memset(address, 2, self.size)
        self._parts: list[tuple[ThreadPoolExecutor, int, int]] = []
        for group in sharing(processors):
            share = -(-self.size // len(group))
            for i, processor in enumerate(group):
                pool = ThreadPoolExecutor(1, initializer=_stay, initargs=(processor,))
                begin = min(i * share, self.size)
                self._parts.append((pool, address + begin, min(share, self.size - begin)))

    def __call__(self) -> None:
        for done in [pool.submit(_libc.memchr, at, 1, n) for pool, at, n in self._parts]:
            done.result()


def _stay(processor: int) -> None:
    """Has this thread run on one processor, where that is allowed."""
    with suppress(OSError):
        os.sched_setaffinity(0, [processor])


def sharing(processors: Sequence[int]) -> list[list[int]]:
    """Returns the processors in groups that share a last-level cache, as the system shows it."""
    groups: dict[str, list[int]] = {}
    for p in processors:
        name = ""
        with suppress(OSError, ValueError):
            base = f"/sys/devices/system/cpu/cpu{p}/cache"
            last = max(i for i in os.listdir(base) if i.startswith("index"))
            with open(f"{base}/{last}/shared_cpu_list") as f:
                name = f.read()
        groups.setdefault(name, []).append(p)
    return list(groups.values())


@functools.cache
def evictor(llc_bytes: int, processors: tuple[int, ...]) -> Evictor:
    """Returns the one of this process: its memory takes longer to come by than to read."""
    return Evictor(llc_bytes, processors)


class Contents:
    """The pool of contents of a task in the referee's private memory, and what eager makes of them.

    ``draw(i)`` returns the inputs of content i, which no worker may be able to predict. A worker
    process meets each content at most once, ``repeat`` windows aside: ``take`` deals them out in
    order, ``new_process`` starts again.
    """

    large = False  # whether there is room for the blocks of one worker at a time

    def __init__(
        self,
        slots: Slots,
        draw: Callable[[int], Sequence[torch.Tensor]],
        device: Device = CPU,
    ) -> None:
        self.slots = slots
        self.device = device
        self.again_s = 0.0  # in which some were drawn, or computed, while a worker waited
        self._draw = draw
        self._varied = self._pool(0, slots.in_slot)
        self._inputs = self._pool(0, slots.in_slot)
        self._outputs = self._pool(0, slots.out_slot)
        self._known: list[bool] = []  # whether the row of _outputs is filled
        self._next = 0

    def __len__(self) -> int:
        return len(self._known)

    def drawn_by(self, draw: Callable[[int], Sequence[torch.Tensor]]) -> Contents:
        """Returns this pool, where ``draw`` gives what it grows by."""
        self._draw = draw
        return self

    def vary(self, varied: Sequence[Sequence[torch.Tensor]]) -> None:
        """Adds further inputs: rows -1, -2 and so on, which ``take`` never deals out."""
        self._varied = self._pool(len(varied), self.slots.in_slot)
        for i, tensors in enumerate(varied):
            self._fill(self._varied, i, tensors)

    def grow(self, count: int, deadline_ns: int | None = None) -> None:
        """Draws until there are ``count`` contents, or until the deadline."""
        have = len(self._known)
        if count <= have:
            return
        inputs = self._pool(count, self.slots.in_slot)
        outputs = self._pool(count, self.slots.out_slot)
        inputs[:have].copy_(self._inputs[:have])
        outputs[:have].copy_(self._outputs[:have])
        self._inputs, self._outputs = inputs, outputs
        for i in range(have, count):
            self._fill(inputs, i, self._draw(i))
            self._known.append(False)
            if deadline_ns is not None and _now() > deadline_ns:
                return

    def _pool(self, rows: int, slot: int) -> torch.Tensor:
        return torch.empty(rows, slot, dtype=torch.uint8, device=self.device.torch)

    def _fill(self, pool: torch.Tensor, row: int, tensors: Sequence[torch.Tensor]) -> None:
        for view, t in zip(row_views(pool[row], self.slots.inputs), tensors, strict=True):
            view.copy_(t)

    @property
    def varied(self) -> range:
        """The rows of the varied inputs."""
        return range(-len(self._varied), 0)

    def new_process(self) -> None:
        """The next worker has met nothing yet."""
        self._next = 0

    def left(self) -> int:
        """Returns how many contents the current process has not met."""
        return len(self) - self._next

    def take(self, n: int) -> range:
        """Returns up to n contents that the current process has not met."""
        got = range(self._next, min(self._next + n, len(self)))
        self._next += len(got)
        return got

    def met(self, n: int) -> range:
        """Returns up to n contents that the current process has met, the latest ones."""
        return range(max(self._next - n, 0), self._next)

    def row(self, row: int) -> torch.Tensor:
        """Returns the bytes of one row."""
        return self._inputs[row] if row >= 0 else self._varied[-1 - row]

    def write(self, rows: Sequence[int], target: int) -> None:
        """Copies these rows to memory at an address, past the caches."""
        slot = self.slots.in_slot
        for i, row in enumerate(rows):
            _copy_past_caches(target + i * slot, self.row(row).data_ptr(), slot)

    def inputs(self, rows: Sequence[int]) -> list[torch.Tensor]:
        """Returns inputs that were drawn, each tensor with the call as its first dimension."""
        return _stack(_rows(self._inputs, rows), self.slots.inputs)

    def expected(self, rows: Sequence[int]) -> list[torch.Tensor]:
        """Returns what eager made of them, the call as the first dimension."""
        if not all(self._known[r] for r in rows):
            raise LookupError("contents without expected outputs")
        return _stack(_rows(self._outputs, rows), self.slots.outputs)

    def set_expected(self, window: Window) -> None:
        """Keeps the outputs of a window of the eager baseline as what its contents give."""
        for i, r in enumerate(window.rows):
            self._outputs[r].copy_(window.raw[i])
            self._known[r] = True


class Redrawn(Contents):
    """Contents so large that none is kept: each is drawn again, and what eager makes of it computed
    again, whenever it is needed. Windows are of one call.
    """

    large = True

    def __init__(
        self,
        slots: Slots,
        draw: Callable[[int], Sequence[torch.Tensor]],
        eager: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
        device: Device = CPU,
        asked: Asked = lambda what: what(),
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
        return _stack(self._one, self.slots.inputs)

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


def row_views(raw: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """Returns the tensors of one row. ``raw`` is uint8 [slot]."""
    out = []
    for entry in layout:
        dtype, shape = DTYPES[entry["dtype"]], [int(d) for d in entry["shape"]]
        size = math.prod(shape) * dtype.itemsize
        if not size:
            out.append(torch.empty(shape, dtype=dtype, device=raw.device))
            continue
        flat = raw[entry["offset"] : entry["offset"] + size].view(dtype)
        out.append(laid_out(flat, entry))
    return out


def _rows(raw: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Returns rows of a matrix: a view where they lie together, else a copy."""
    if isinstance(rows, range):
        return raw[rows.start : rows.stop]
    return raw[torch.tensor(list(rows), dtype=torch.int64, device=raw.device)]


def _stack(raw: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """Returns the tensors of all rows as strided views. ``raw`` is uint8 [rows, slot]."""
    rows, slot = raw.shape
    out: list[torch.Tensor] = []
    for entry in layout:
        dtype = DTYPES[entry["dtype"]]
        shape = [int(d) for d in entry["shape"]]
        strides = entry.get("strides") or [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        if math.prod(shape) == 0 or rows == 0:
            out.append(torch.empty([rows, *shape], dtype=dtype, device=raw.device))
            continue
        # as_strided takes its offset in elements from the start of the storage, not of the view.
        flat = raw.view(-1).view(dtype)
        start = flat.storage_offset() + entry["offset"] // dtype.itemsize
        out.append(flat.as_strided([rows, *shape], [slot // dtype.itemsize, *strides], start))
    return out


@dataclass
class Window:
    """What one window gave. Times are nanoseconds; ``raw`` is good until the next window."""

    kind: str
    rows: Sequence[int]
    walls_ns: list[int]  # of the window, or of each call where they come one by one
    event_ns: list[int]
    raw: torch.Tensor
    slots: Slots
    cpu_ns: int = 0
    waiting_ns: int = 0
    steal: int = 0
    alone: bool = False  # each call came alone, with the host's work
    turns: bool = False  # calls took turns with the referee on a GPU
    slowed: Sequence[str] = ()  # why the GPU had slowed itself down

    @property
    def calls(self) -> int:
        return len(self.event_ns)

    @property
    def wall_ns(self) -> int:
        return sum(self.walls_ns)

    @property
    def event_mean_ns(self) -> float:
        """A mean: a first call that does the work of all would hide in a median."""
        return sum(self.event_ns) / len(self.event_ns)

    def outputs(self) -> list[torch.Tensor]:
        """Returns the outputs as views, each tensor with the call as its first dimension."""
        return _stack(self.raw[: self.calls], self.slots.outputs)

    def disturbed(self) -> bool:
        """Whether others took the cores: waiting over 3 % of the window, or stolen time. Or whether
        a GPU had slowed itself down.

        What a wake-up by a message may wait for the sender's core is nobody else's doing.
        """
        messages = self.calls if self.alone else 1
        waited = self.waiting_ns > 0.03 * self.wall_ns + messages * WAKE_NS
        return waited or self.steal > 0 or bool(self.slowed)


class Stopped:
    """Stops a process, all threads of it, from outside, and has it go on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def stop(self) -> int:
        """Returns when no thread of it ran any more. Does nothing for one that is gone.

        Raises CallFailed for one that does not let itself be stopped, SandboxError where it gets no
        core to stop on.
        """
        began = _now()
        end = began + STOP_NS
        ran: int | None = None  # until who stands at once is known not to
        while True:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGSTOP)
            for _ in range(100):
                if self._stands():
                    return _now()
                time.sleep(PAUSE_S)  # a thread may need this core to be stopped on
            now = _now()
            if ran is None:
                began, ran, end = now, self._ran_ns(), now + STOP_NS
            if now < end:
                continue
            runs = self._ran_ns() - ran > RUNS * (now - began)
            if not runs and now < began + PATIENCE_NS:
                end = now + STOP_NS
                continue
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if runs:
                raise _ran_on("it does not let itself be stopped")
            seconds = (now - began) / 1e9
            raise SandboxError(f"a process did not stop in {seconds:.0f} s, nor did it run")

    def _ran_ns(self) -> int:
        """Returns for how long its threads have run."""
        return sum(u.cpu_ns for u in usage([self.pid]).values())

    def _stands(self) -> bool:
        folder = f"/proc/{self.pid}/task"
        try:
            for thread in os.listdir(folder):
                fd = os.open(f"{folder}/{thread}/stat", os.O_RDONLY)
                try:
                    state = os.read(fd, 512).rpartition(b")")[2][1:2]
                finally:
                    os.close(fd)
                if state not in b"TtZXx":
                    return False
        except (FileNotFoundError, ProcessLookupError):
            return not os.path.exists(folder)  # a thread has just ended: look again
        return True

    def gone(self) -> bool:
        """Whether it has ended."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as f:
                return f.read().rpartition(b")")[2][1:2] in b"ZX"
        except OSError:
            return True

    def check(self) -> None:
        """Raises CallFailed where it has not stayed stopped: who was woken stays awake."""
        if not self._stands():
            raise _ran_on("its threads run")

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


@dataclass
class _Took:
    """What a group of calls has used. Times are nanoseconds."""

    ns: int = 0
    event_ns: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    waiting_ns: int = 0
    steal: int = 0
    alone: bool = False
    turns: bool = False

    def add(self, other: _Took) -> None:
        self.ns += other.ns
        self.event_ns.extend(other.event_ns)
        self.cpu_ns += other.cpu_ns
        self.waiting_ns += other.waiting_ns
        self.steal += other.steal
        self.alone = self.alone or other.alone
        self.turns = not self.alone


def _ran_on(how: str) -> CallFailed:
    return CallFailed({"type": RAN_ON, "message": f"while the clock stands still {how}"})


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
        contents: Contents,
        capacity: int,
        *,
        evict: Callable[[], None] | None = None,
        mode: str = "",
        cold: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        """``capacity`` is the largest K. Raises CallFailed, or what the channel raises.

        ``cold``: whether the memory of outputs is left as the emptied caches leave it.
        """
        self.worker = worker
        self.contents = contents
        self.capacity = capacity
        self.timeout_s = timeout_s
        # Of the monotonic clock, less ``again_s`` of the contents: no answer may take longer.
        self.until = math.inf
        self._evict = evict
        self._mode = mode
        self._windows = 0
        self._call_ns = math.inf  # of the quickest window so far
        self._random = random.SystemRandom()
        self._pids: list[int] = []
        self._stopped = Stopped(worker.pid)
        # A GPU's memory is no process'.
        self._fetches = contents.device.kind == "cpu" and process_memory.readable(worker.pid)
        slots = contents.slots
        request = {
            "op": "window",
            "inputs": slots.inputs,
            "in_slot": slots.in_slot,
            "outputs": slots.outputs,
            "out_slot": slots.out_slot,
            "slots": capacity,
            "mode": mode,
            "cold": cold,
        }
        more, fds = self._share()
        try:
            worker.channel.send(request | more, fds)
            # Whether outputs are fetched from where they were made: a baseline's word.
            self._fetched = self._answer().get("fetched") is True
        finally:
            for fd in fds:
                os.close(fd)

    # What differs where the tensors lie elsewhere: see windows_cuda.py.

    def _share(self) -> tuple[dict[str, Any], list[int]]:
        """Makes the blocks. Returns what the worker must know of them and their descriptors."""
        slots = self.contents.slots
        self._out = _Shared("outputs", self.capacity * slots.out_slot)
        self._in = _Shared("inputs", self.capacity * slots.in_slot, _F_SEAL_FUTURE_WRITE)
        self._private = torch.zeros(self.capacity, slots.out_slot, dtype=torch.uint8)
        return {}, [self._out.fd, self._in.fd]

    def _put(self, group: Sequence[int]) -> None:
        """Writes the contents of the next calls, and wipes out the block for their outputs."""
        if len(group) > 1 or not self._fetches:
            ctypes.memset(self._out.at, 0xFF, len(group) * self.contents.slots.out_slot)
        self.contents.write(group, self._in.at)
        if not PAST_CACHES and self._evict is not None:
            self._evict()

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
            raise CallFailed({"type": "ValueError", "message": MALFORMED})
        for i, (entry, address) in enumerate(zip(layout, at, strict=True)):
            size = math.prod(entry["shape"]) * DTYPES[entry["dtype"]].itemsize
            if not size:
                continue
            known = type(address) is int and 0 < address < 1 << 63
            code = (
                process_memory.fetch(self.worker.pid, address, to + entry["offset"], size)
                if known
                else -1
            )
            if code and self._stopped.gone():
                self.worker.channel.recv(1.0)  # says so
            if code:
                message = f"output {i} lies in memory that cannot be read"
                raise CallFailed({"type": OutputMismatch.__name__, "message": message})

    def _look(self, look: Callable[[], None], calls: int) -> None:
        """Stops the worker again and again until it answers, and looks each time."""
        known_ns = self._call_ns if math.isfinite(self._call_ns) else 0.0
        between_s = max(known_ns * calls / LOOKS, LOOK_NS) / 1e9
        for _ in range(2 * LOOKS):
            time.sleep(self._random.expovariate(1.0 / between_s))
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
        msg, fds = self.worker.channel.recv(min(self.timeout_s, left))
        for fd in fds:
            os.close(fd)
        if not msg.get("ok"):
            error = msg.get("error")
            raise CallFailed(error if isinstance(error, dict) else {"message": str(error)})
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
        if self._evict is not None:
            self._evict()
        if self._windows % self._looks == 0:  # looking through /proc takes milliseconds
            self._pids = tree(self.worker.pid)
        self._windows += 1
        took: list[_Took] = []
        first = 0
        try:
            if self._wakes(kind):
                self._stopped.go_on()
                self.worker.channel.send({"op": "ready"})
                self._answer()
                self._stopped.stop()
            for group in groups:
                call = {"op": "calls", "identity": identity, "alone": kind == "chained"}
                last = first + len(group) == n
                took.append(self._timed(group, first, call | {"more": not last}, look))
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
        call: dict[str, Any],
        look: Callable[[], None] | None = None,
    ) -> _Took:
        """Has these contents computed while the clock runs, by a worker that has been stopped, and
        collects the outputs: they are the window's from the ``first`` on.
        """
        n = len(group)
        self._put(group)
        before, ticks = usage(self._pids), steal_ticks()
        self._stopped.check()
        spent = _processor_time(self.worker.pid)
        keeps = self._fetches and n == 1
        self.worker.channel.send(call | {"n": n, "keeps": keeps})
        start = _now()
        self._stopped.go_on()
        if look is not None:
            self._look(look, n)
        answer = self._answer()
        took = _Took(self._end(first, n) - start, alone=call["alone"])
        after = usage(self._pids)
        took.cpu_ns = max(_processor_time(self.worker.pid) - spent, 0)
        took.waiting_ns = waited(before, after, took.ns, self.worker.pid)
        took.steal = steal_ticks() - ticks
        self._collect(first, n, answer.get("at"))
        self._stopped.check()
        took.event_ns = _durations(answer.get("event"), n)
        return took

    def count(self, rows: range) -> dict[str, float]:
        """Runs a window under the counters and returns what a call of it does, by name."""
        counting = Counters(tree(self.worker.pid))
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
        self.worker.channel.send({"op": "end", "frees": self.contents.large})
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


def _durations(value: object, n: int) -> list[int]:
    """Returns what a worker claims that its calls took. Fails the call if it is nonsense."""
    if isinstance(value, list) and len(value) == n:
        durations = [v for v in value if type(v) is int and 0 <= v < 1 << 62]
        if len(durations) == n:
            return durations
    raise CallFailed({"type": "ValueError", "message": "the worker's event times are malformed"})

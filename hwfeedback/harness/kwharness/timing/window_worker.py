"""The worker's side of a timed window: it makes the calls.

``serve`` answers one ``window`` request and stays in its own loop until ``end``; see
window_session.py for the protocol.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from kwharness.base import trees
from kwharness.base.operations import Failure, Trees, WindowCalls, WindowReady, Windows, WindowsEnd
from kwharness.base.tensors import DTYPES, Layout
from kwharness.model.state import Carrier
from kwharness.timing import window_base

AWAKE_NS = 50_000_000
REGION_NS = 100_000
PAUSE_S = 10e-6


def _warmed(outputs: Layout) -> None:
    """Has memory for the outputs in the cache, where the allocator will find it."""
    ready = [torch.zeros(e.shape, dtype=DTYPES[e.dtype]) for e in outputs]
    del ready


def forward_of(model: Callable[..., Any], timed: Trees) -> window_base.Forward:
    """Returns a forward over flat lists for a model.

    Baselines and candidates are called by the same one: what it takes counts.
    """
    build, flatten = trees.build, trees.flatten
    tree, wanted = timed.tree, timed.output_tree
    parts = tree.get("list")
    plain = parts is not None and parts == [{"t": i} for i in range(len(parts))]

    def forward(given: list[torch.Tensor]) -> list[torch.Tensor]:
        out = model(*given) if plain else model(*build(tree, given))
        if type(out) is torch.Tensor:
            return [out]
        mine, found = flatten(out, numbers=True)
        if not trees.same_shape(trees.renumbered(mine), wanted):
            raise window_base.OutputMismatch("forward returns another structure than the task's")
        return [found[i] for i in trees.ordered_like(mine, wanted)]

    return forward


class Host:
    """The worker's side of a session whose tensors lie in the machine's memory."""

    fetched = False

    def __init__(
        self,
        channel: window_base.Link,
        request: Windows,
        fds: list[int],
        carrier: Carrier | None = None,
    ) -> None:
        rows, out_slot = request.slots, request.out_slot
        self._carrier = carrier
        self._cold = request.cold
        self._outputs = request.outputs
        self._inputs = window_base.Inputs(fds[1], request.inputs, request.in_slot, rows)
        self._apart = window_base.barred(request, self._inputs.block)
        if carrier is not None:
            carrier.prepare(self._inputs.rows[0])  # what it needs is there before the clock starts
        self._ready = Ready(channel)
        self._block = mmap.mmap(fds[0], rows * out_slot, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        base = ctypes.addressof(ctypes.c_byte.from_buffer(self._block))
        self._views = [
            [window_base.tensor_at(base + r * out_slot, e) for e in self._outputs]
            for r in range(rows)
        ]
        self._identity: window_base.Forward | None = None
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

    def identity(self) -> window_base.Forward:
        """Returns a forward that computes nothing."""
        if self._identity is None:
            self._identity = _identity(self._outputs[: returned(self._outputs, self._carrier)])
        return self._identity

    def calls(self, forward: window_base.Forward, request: WindowCalls) -> dict[str, list[int]]:
        """Calls it. Returns what each took, ``event``, nanoseconds, and ``at``, the addresses of
        outputs that it keeps.
        """
        kept = self._kept if request.keeps else None
        rows = self._inputs.rows[: request.n]
        event = _calls(rows, self._views, forward, self._apart, kept, carrier=self._carrier)
        return {"event": event, "at": [t.data_ptr() for t in kept or ()]}

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

    def identity(self) -> window_base.Forward: ...

    def calls(self, forward: window_base.Forward, request: WindowCalls) -> dict[str, list[int]]: ...

    def close(self) -> int | None:
        """Returns how many bytes of the device's memory torch still has for this process, None
        where only the referee can tell.
        """


MakeSide = Callable[[window_base.Link, Windows, list[int], Carrier | None], Side]


def returned(outputs: Sequence[Any], carrier: Carrier | None) -> int:
    """Returns how many of a call's outputs forward returns: behind them is what it carries."""
    return len(outputs) if carrier is None else carrier.carried.returned


def serve(
    channel: window_base.Link,
    request: Windows,
    fds: list[int],
    forward: window_base.Forward,
    make: MakeSide = Host,
    carrier: Carrier | None = None,
) -> None:
    """Answers one ``window`` request: a session of windows, until the referee sends ``end``.

    ``fds`` are the blocks for outputs and for inputs. ``forward`` takes and returns flat lists of
    tensors. An output that is not contiguous is made so within the call's time. To put in
    what a model carries, and to collect it, is part of the call: no other process sees where one
    ends and the other begins. A call that raises is reported and the session goes on. Raises what
    the channel raises when the referee is gone.
    """
    side: Side | None = None
    try:
        side = make(channel, request, fds, carrier)
        channel.send({"ok": True, "fetched": side.fetched})
        awake = False
        while True:
            if awake:
                side.wait()
            msg, more = channel.recv()
            for fd in more:
                os.close(fd)
            op = msg.get("op")
            if op == WindowsEnd.op:
                has = None
                if WindowsEnd.from_json(msg).frees:
                    has = side.close()
                    side = None
                channel.send({"ok": True, "has": has})
                return
            try:
                if op == WindowReady.op:
                    side.ready()
                    reply: dict[str, Any] = {"ok": True}
                    awake = True
                elif op == WindowCalls.op:
                    calls = WindowCalls.from_json(msg)
                    called = side.identity() if calls.identity else forward
                    reply = {"ok": True, **side.calls(called, calls)}
                    awake = calls.more
                else:
                    raise ValueError(f"unknown operation {op!r} in a session of windows")
            except Exception as e:
                reply = failure_of(e)
            channel.send(reply)
    except (KeyError, TypeError, ValueError, OSError) as e:
        if side is not None:
            raise
        channel.send(failure_of(e))
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


class Ready:
    """Has the worker's threads awake and on cores of their own when the clock starts."""

    def __init__(self, channel: window_base.Link) -> None:
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
        end = window_base.now_ns() + AWAKE_NS
        quick = 0
        with _spread_out():
            while quick < 3 and window_base.now_ns() < end:
                start = window_base.now_ns()
                self._data.add_(1.0)
                quick = quick + 1 if window_base.now_ns() - start < REGION_NS else 0

    def wait(self) -> None:
        """Waits for a message without sleeping."""
        end = window_base.now_ns() + AWAKE_NS
        while not self._channel.pending() and window_base.now_ns() < end:
            pass


def failure_of(e: BaseException) -> dict[str, Any]:
    """Returns the message of a call that failed."""
    failure = Failure(type(e).__name__, str(e)[:2000], traceback.format_exc()[-8000:])
    return {"ok": False, "error": failure.to_json()}


def _identity(outputs: Layout) -> window_base.Forward:
    ready = [torch.zeros(e.shape, dtype=DTYPES[e.dtype]) for e in outputs]
    return lambda _: ready


def _calls(
    rows: Sequence[Sequence[torch.Tensor]],
    views: list[list[torch.Tensor]],
    forward: window_base.Forward,
    apart: Sequence[range],
    kept: list[torch.Tensor] | None,
    now: Callable[[], int] = window_base.now_ns,
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
                    window_base.check_outputs(outputs, view, apart)
                    events.append(t1 - t0)
                    continue
                window_base.store(outputs, view, apart)
                t2 = now()
                del outputs
                t3 = now()
                events.append(t1 - t0 + t3 - t2)
    finally:
        if collecting:
            gc.enable()
    return events

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import forked
import pytest
import torch
from forked import Forked

from kwharness.base import protocol
from kwharness.process.policy import SandboxError
from kwharness.timing import (
    cache_flush,
    input_pool,
    process_use,
    window_base,
    window_session,
    window_worker,
)
from kwharness.timing import stopped as stops
from kwharness.timing.stopped import Stopped
from kwharness.timing.window import Window, durations


def doubled() -> window_base.Forward:
    return lambda args: [args[0] * 2]


@contextmanager
def session(
    make: forked.Make, shape: tuple[int, ...] = (33, 5), count: int = 24, **options
) -> Iterator[tuple[window_session.Session, input_pool.Contents, Forked]]:
    draw = forked.draw(shape)
    contents = input_pool.Contents(window_base.Slots.of(draw(0), draw(0)), draw)
    contents.grow(count)
    worker = Forked(make)
    given = window_session.Options(timeout_s=120, **options)
    try:
        yield (
            window_session.Session(worker, contents, 8, given),
            contents,
            worker,
        )
    finally:
        worker.kill()


def wrong(seen: Window, contents: input_pool.Contents) -> int:
    """Returns how many calls of a window did not double their content."""
    (x,), (y,) = contents.inputs(seen.rows), seen.outputs()
    return sum(not torch.equal(2 * a, b) for a, b in zip(x, y, strict=True))


@pytest.mark.alone
@pytest.mark.parametrize("kind", window_base.KINDS)
def test_every_output_of_every_kind_comes_back(kind: str) -> None:
    with session(doubled) as (s, contents, _):
        contents.take(8)
        for _ in range(2):
            rows = contents.met(8) if kind in ("repeat", "varied") else contents.take(8)
            window = s.run(kind, rows)
            assert window.calls == 8 and wrong(window, contents) == 0
            assert 0 < sum(window.event_ns) < window.wall_ns
        s.close()


@pytest.mark.alone
def test_contents_are_dealt_once_to_a_process() -> None:
    draw = forked.draw((3,))
    contents = input_pool.Contents(window_base.Slots.of(draw(0), draw(0)), draw)
    contents.grow(10)
    assert list(contents.take(4)) == [0, 1, 2, 3]
    assert list(contents.met(2)) == [2, 3]
    assert list(contents.take(9)) == [4, 5, 6, 7, 8, 9]
    assert contents.left() == 0 and len(contents.take(1)) == 0
    contents.new_process()
    first = [t.clone() for t in contents.inputs(contents.take(2))]
    contents.grow(30)
    assert torch.equal(first[0], contents.inputs(range(2))[0])
    with pytest.raises(LookupError):
        contents.expected(range(2))


def test_tensors_of_many_kinds_travel() -> None:
    def draw(i: int) -> list[torch.Tensor]:
        return [
            torch.arange(5) + i,
            torch.tensor(i % 2 == 0),
            torch.empty(0, 3),
            torch.full((2, 3), float(i), dtype=torch.float64),
            torch.full((7,), i, dtype=torch.bfloat16),
        ]

    contents = input_pool.Contents(window_base.Slots.of(draw(0), draw(0)), draw)
    contents.grow(6)
    worker = Forked(lambda: lambda args: [a.clone() for a in args])
    try:
        s = window_session.Session(worker, contents, 6)
        for kind in ("chained", "fresh"):
            window = s.run(kind, range(1, 6))
            for got, put in zip(window.outputs(), contents.inputs(window.rows), strict=True):
                assert torch.equal(got, put)
            contents.set_expected(window)
            some = range(2, 4)
            for a, b in zip(contents.expected(some), contents.inputs(some), strict=True):
                assert torch.equal(a, b)
    finally:
        worker.kill()


def by_pointer() -> window_base.Forward:
    seen: dict[int, torch.Tensor] = {}

    def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
        key = args[0].data_ptr()
        if key not in seen:
            seen[key] = args[0] * 2
        return [seen[key]]

    return forward


def by_object_and_version() -> window_base.Forward:
    seen: dict[tuple[int, int], torch.Tensor] = {}

    def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
        key = (id(args[0]), args[0]._version)
        if key not in seen:
            seen[key] = args[0] * 2
        return [seen[key]]

    return forward


@pytest.mark.alone
@pytest.mark.parametrize("make", [by_pointer, by_object_and_version])
def test_what_is_remembered_by_address_is_stale_at_the_same_address(make: forked.Make) -> None:
    with session(make) as (s, contents, _):
        assert wrong(s.run("fresh", contents.take(4)), contents) == 0
        assert wrong(s.run("fresh", contents.take(8)), contents) == 4
    with session(make) as (s, contents, _):
        assert wrong(s.run("chained", contents.take(8)), contents) == 7


@pytest.mark.alone
def test_work_that_is_left_to_a_thread_is_not_in_the_output() -> None:
    def make() -> window_base.Forward:
        goes_on: list[threading.Event] = []

        def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
            out, after = torch.zeros_like(args[0]), threading.Event()
            for event in goes_on:  # of the call before
                event.set()
            goes_on[:] = [after]

            def later() -> None:
                after.wait()
                out.copy_(args[0] * 2)

            threading.Thread(target=later, daemon=True).start()
            return [out]

        return forward

    with session(make) as (s, contents, _):
        assert wrong(s.run("fresh", contents.take(8)), contents) == 8


@pytest.mark.alone
def test_the_referees_clock_sees_what_the_workers_does_not() -> None:
    def make() -> window_base.Forward:
        honest = window_base.now_ns
        start = honest()
        # A candidate that reaches for the clock: every call of it advances by one nanosecond.
        ticks = iter(range(start, start + 10_000_000))
        window_worker._calls.__defaults__ = (lambda: next(ticks),)
        return forked.spinning(0.005)()

    with session(make) as (s, contents, _):
        window = s.run("fresh", contents.take(4))
        assert wrong(window, contents) == 0
        assert window.event_mean_ns < 1000
        assert window.wall_ns / 4 > 4_500_000


def pages_with_content(args: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns how many pages of the block for inputs hold anything, in an output's shape."""
    with open("/proc/self/maps") as f:
        line = next(line for line in f if "memfd:inputs" in line)
    low, high = (int(x, 16) for x in line.split()[0].split("-"))
    pages = (ctypes.string_at(at, window_base.PAGE) for at in range(low, high, window_base.PAGE))
    return [torch.full_like(args[0], float(sum(any(page) for page in pages)))]


@pytest.mark.alone
@pytest.mark.parametrize("lie", [[4096], [-1], ["a"], [1 << 80], [], "a", [True], None])
def test_an_output_that_cannot_be_fetched_fails_the_call(lie: Any) -> None:
    def make() -> window_base.Forward:
        real = window_worker.Host.calls
        window_worker.Host.calls = lambda *given: {**real(*given), "at": lie}  # type: ignore
        return doubled()

    with session(make) as (s, contents, _):
        with pytest.raises(window_base.CallFailed):
            s.run("chained", contents.take(1))
        assert wrong(s.run("fresh", contents.take(8)), contents) == 0


@pytest.mark.alone
def test_what_is_computed_while_an_output_is_copied_counts_in_no_call_that_comes_alone() -> None:
    def make() -> window_base.Forward:
        given: list[torch.Tensor] = []

        def store(_outputs: object, views: list[torch.Tensor], _apart: object) -> None:
            views[0].copy_(given[-1] * 2)

        def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
            given.append(args[0])
            return [torch.zeros_like(args[0])]

        window_base.store = store
        return forward

    with session(make) as (s, contents, _):
        assert wrong(s.run("fresh", contents.take(8)), contents) == 0
        assert wrong(s.run("chained", contents.take(8)), contents) == 8
        assert wrong(s.run("fresh", contents.take(1)), contents) == 1  # as large outputs come


@pytest.mark.alone
def test_the_next_content_does_not_exist_in_a_chained_window() -> None:
    with session(lambda: pages_with_content) as (s, contents, _):
        (pages,) = s.run("chained", contents.take(8)).outputs()
        assert pages.unique().tolist() == [1.0]
        (pages,) = s.run("fresh", contents.take(8)).outputs()
        assert pages.unique().tolist() == [8.0]


@pytest.mark.alone
def test_nothing_runs_while_the_clock_does_not() -> None:
    def make() -> window_base.Forward:
        count = torch.zeros((), dtype=torch.float64)

        def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
            if not count:
                threading.Thread(target=on_and_on, daemon=True).start()
            return [torch.full_like(args[0], float(count))]

        def on_and_on() -> None:
            while True:
                count.add_(1)

        return forward

    with session(make) as (s, contents, worker):
        s.run("fresh", contents.take(1))
        with open(f"/proc/{worker.pid}/stat") as f:
            assert f.read().rpartition(")")[2].split()[0] == "T"
        before = process_use.usage([worker.pid])
        time.sleep(0.1)
        assert process_use.usage([worker.pid]) == before


@pytest.mark.alone
def test_varied_rows_come_among_the_others() -> None:
    draw = forked.draw((33, 5))
    odd = [draw(100), draw(101)]
    contents = input_pool.Contents(window_base.Slots.of(draw(0), draw(0)), draw)
    contents.vary(odd)
    contents.grow(8)
    worker = Forked(doubled)
    try:
        s = window_session.Session(worker, contents, 8)
        assert list(contents.varied) == [-2, -1]
        (got,) = s.run("varied", [3, -2, 0, -1]).outputs()
        for y, x in zip(got, (draw(3), odd[1], draw(0), odd[0]), strict=True):
            assert torch.equal(y, 2 * x[0])
    finally:
        worker.kill()


@pytest.mark.alone
def test_a_layout_that_is_left_to_the_copy_is_paid_for() -> None:
    took = {}
    for name, made in (("view", (512, 512)), ("dense", (512, 512))):

        def make(name: str = name, made: tuple[int, int] = made) -> window_base.Forward:
            ones = torch.ones(made)
            return lambda args: [ones.t() if name == "view" else ones]

        with session(make, (512, 512), count=8) as (s, contents, _):
            window = s.run("fresh", contents.take(8))
            assert bool((window.outputs()[0] == 1).all())
            took[name] = min(window.event_ns)
    assert took["view"] > 2 * took["dense"]


@pytest.mark.alone
def test_a_process_that_wakes_itself_is_found() -> None:
    def make() -> window_base.Forward:
        # SIGCONT from timers of the kernel's, which need no thread that runs. (The sandbox refuses
        # them; these workers have none.) Each fires once: one that fires again and again dies with
        # the first SIGSTOP that finds its signal waiting.
        signal.signal(signal.SIGCONT, lambda *_: None)
        libc = ctypes.CDLL(None, use_errno=True)
        event = (ctypes.c_int * 16)(0, 0, int(signal.SIGCONT), 0)
        for i in range(4000):
            timer, after = ctypes.c_void_p(), divmod(250_000 * (i + 1), 10**9)
            assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
            assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, *after), None) == 0
        threading.Thread(target=forked.busy, args=(60,), daemon=True).start()
        return lambda args: [args[0] * 2]

    with (
        session(make) as (s, contents, _),
        pytest.raises(window_base.CallFailed, match="while the clock stands still"),
    ):
        for _ in range(400):
            contents.new_process()
            s.run("fresh", contents.take(8))


@pytest.mark.alone
def test_threads_that_have_ended_count() -> None:
    def make() -> window_base.Forward:
        def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
            thread = threading.Thread(target=forked.at_work, args=(0.01,))
            thread.start()
            thread.join()
            return [args[0] * 2]

        return forward

    with session(make) as (s, contents, _):
        assert s.run("fresh", contents.take(4)).cpu_ns > 30_000_000


@pytest.mark.alone
def test_only_plain_tensors_are_taken() -> None:
    class Lazy(torch.Tensor):
        pass

    with (
        session(lambda: lambda args: [args[0].as_subclass(Lazy)]) as (s, contents, _),
        pytest.raises(window_base.CallFailed, match="Lazy, not a plain tensor"),
    ):
        s.run("fresh", contents.take(1))


@pytest.mark.alone
def test_inputs_cannot_be_written() -> None:
    def make() -> window_base.Forward:
        return lambda args: [args[0].mul_(2)]

    with (
        session(make) as (s, contents, _),
        pytest.raises((protocol.Closed, ConnectionError)),
    ):
        s.run("fresh", contents.take(1))


@pytest.mark.alone
def test_outputs_may_be_the_workers_own_buffer() -> None:
    def make() -> window_base.Forward:
        own = torch.empty(33, 5)
        return lambda args: [torch.mul(args[0], 2, out=own)]

    with session(make) as (s, contents, _):
        for kind in ("fresh", "chained"):
            assert wrong(s.run(kind, contents.take(8)), contents) == 0


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lambda args: [args[0].double()], "float64"),
        (lambda: lambda args: [args[0][:1]], "[1, 5]"),
        (lambda: lambda args: [], "0 tensors"),
        (lambda: lambda args: [1 // 0], "division"),
    ],
)
def test_a_call_that_fails_is_said_and_the_session_goes_on(make: forked.Make, said: str) -> None:
    with session(make) as (s, contents, _):
        for _ in range(2):
            with pytest.raises(window_base.CallFailed) as caught:
                s.run("fresh", contents.take(2))
            assert said in str(caught.value)
        s.close()


def test_event_times_that_make_no_sense_fail_the_call() -> None:
    for claimed in (None, [1], [1, -5], [1, 2.5], [1, True], [1, 1 << 63]):
        with pytest.raises(window_base.CallFailed):
            durations(claimed, 2)


@pytest.mark.parametrize(
    ("cpu_ms", "waited_ms", "counts", "of_the_called"),
    [(90, 5, 5, 5), (10, 70, 0, 70), (0, 95, 0, 95), (1, 2, 0, 2), (0, 0, 0, 0), (30, 0, 0, 0)],
)
def test_who_waits_for_a_core(cpu_ms: int, waited_ms: int, counts: int, of_the_called: int) -> None:
    """Of a window of 100 ms, in which somebody else may have had all cores: then the thread that is
    called computes next to nothing. Others are woken to do next to nothing, and wait for that.
    """
    before = {7: process_use.Usage(5_000_000, 3_000_000)}
    after = {7: process_use.Usage(5_000_000 + cpu_ms * 10**6, 3_000_000 + waited_ms * 10**6)}
    assert process_use.waited(before, after, 100_000_000) == counts * 10**6
    assert process_use.waited(before, after, 100_000_000, 7) == of_the_called * 10**6


@pytest.mark.alone
def test_a_worker_that_dies_is_not_waited_for() -> None:
    with (
        session(lambda: lambda args: os._exit(3)) as (s, contents, _),
        pytest.raises((protocol.Closed, ConnectionError)),
    ):
        s.run("fresh", contents.take(1))


@pytest.mark.alone
def test_the_identity_computes_nothing() -> None:
    with session(lambda: lambda args: os._exit(3)) as (s, contents, _):
        window = s.run("fresh", contents.take(8), identity=True)
        assert window.outputs()[0].abs().sum() == 0


@pytest.mark.alone
def test_descendants_are_counted() -> None:
    pid = os.fork()
    if pid == 0:
        os.fork()
        time.sleep(600)
        os._exit(0)
    try:
        deadline = time.monotonic() + 120
        while len(process_use.tree(pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(process_use.tree(pid)) == 2
        assert len(process_use.tree(os.getpid())) >= 3
    finally:
        for p in reversed(process_use.tree(pid)):
            os.kill(p, 9)
        os.waitpid(pid, 0)


def test_threads_are_spread_out_and_then_free_again() -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2 or len(os.listdir("/proc/self/task")) > len(cores):
        pytest.skip("more threads than cores")
    with window_worker._spread_out():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == cores


@pytest.mark.alone
@pytest.mark.parametrize(("share", "error"), [(0.5, window_base.CallFailed), (0.0, SandboxError)])
def test_who_gets_no_core_to_stop_on_has_not_refused(
    monkeypatch: pytest.MonkeyPatch, share: float, error: type[Exception]
) -> None:
    monkeypatch.setattr(stops, "STOP_NS", 20_000_000)
    monkeypatch.setattr(stops, "PATIENCE_NS", 100_000_000)
    with subprocess.Popen(["sleep", "60"]) as child:
        stopped = Stopped(child.pid)
        monkeypatch.setattr(stopped, "_stands", lambda: False)
        monkeypatch.setattr(stopped, "_ran_ns", lambda: int(share * time.perf_counter_ns()))
        with pytest.raises(error):
            stopped.stop()
        assert child.wait(120) == -signal.SIGKILL


@pytest.mark.alone
def test_what_a_process_ran_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            stopped = Stopped(child.pid)
            while stopped._ran_ns() < 20_000_000:
                time.sleep(0.01)
            stopped.stop()
            ran = -1
            while stopped._ran_ns() != ran:  # it stands a moment before its core is free
                ran = stopped._ran_ns()
                time.sleep(0.05)
        finally:
            child.kill()  # or it is waited for


def test_processors_are_told_apart_by_the_cache_that_they_share() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    groups = cache_flush.sharing(allowed)
    assert sorted(p for g in groups for p in g) == allowed
    assert cache_flush.sharing([1 << 20, (1 << 20) + 1]) == [[1 << 20, (1 << 20) + 1]], (
        "unknown ones"
    )


@pytest.mark.alone
def test_all_of_the_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By each group that shares a cache, on processors of its own."""
    read: list[tuple[int, int, int, set[int]]] = []
    allowed = sorted(os.sched_getaffinity(0))
    other = 1 << 20  # of no machine: what is to run there runs anywhere
    monkeypatch.setattr(cache_flush, "sharing", lambda _: [allowed, [other]])
    evict = cache_flush.Evictor(3 * window_base.PAGE + 5, [*allowed, other])
    real = window_base.libc.memchr

    def memchr(at: int, byte: int, n: int) -> object:
        read.append((at, n, real(at, byte, n) or 0, os.sched_getaffinity(0)))
        return None

    monkeypatch.setattr(window_base, "libc", types.SimpleNamespace(memchr=memchr))
    evict()
    *parts, whole = sorted(read, key=lambda r: (r[1] == evict.size, r[0]))
    assert whole[1:3] == (evict.size, 0), "all of it, and no byte looked for is there"
    assert [p[0] for p in parts] == [
        whole[0] + sum(q[1] for q in parts[:i]) for i in range(len(parts))
    ]
    assert sum(p[1] for p in parts) == evict.size == 2 * (3 * window_base.PAGE + 5)
    assert [p[3] for p in parts] == [{p} for p in allowed]

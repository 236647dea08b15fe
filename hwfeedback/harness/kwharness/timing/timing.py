"""The timing protocol: which windows are run, of whom, in which order, and what follows from them.

How the referee uses it, per evaluation::

    timing = Timing(draw=..., outputs=..., check=..., spawn_baseline=..., level="quick", threads=2)
    timing.prepare()                    # no candidate process may exist yet
    timed = timing.measure(spawn_candidate)

- ``draw(i)`` returns the inputs of content i. Contents must differ, and no worker may be able to
  predict them. They are drawn outside every clock, but drawing costs the evaluation time.
- ``outputs`` are tensors (meta will do) of the dtypes and shapes of one forward.
- ``check(inputs, outputs, expected)`` gets the calls of one window, each tensor with the call as
  its first dimension, and returns None or one sentence saying what is wrong. ``expected`` is what
  the eager baseline made of the same contents, in float32 or whatever the reference computes in.
  The tensors are views that die with the next window.
- ``vary(inputs, check)`` adds inputs that the candidate was verified on; ``check(i, outputs)`` is
  asked of the i-th of them.
- ``spawn_baseline(name)`` and ``spawn_candidate()`` return a ``TimedWorker``: loaded, initialised,
  with the weights of this evaluation. Its ``window`` request carries ``mode``, the name of the
  baseline. Timing calls ``kill`` on every worker that it was given, once. Every call must give a
  new process and ``kill`` must end it: that no candidate exists while a baseline is timed rests
  on it.
- A candidate that fails raises ``CallFailed`` or what its channel raises; a baseline that fails
  when it is measured alone is noted and left out, except for eager. Eager's failure, and that of
  one that takes turns with a candidate, is ``BaselineFailed``.
- ``Timed.learned`` goes into the cache and comes back as ``known`` for the same task, device,
  versions, precision.

The time of a participant is the ``event`` clock where the referee's ``wall`` agrees with it within
10 % + 2 us and what wall may be off by, else it is ``wall``, and the participant is marked unless
the noise of single windows may be the cause. A baseline is trusted: its time is always ``event``.
Both clocks come from ``fresh`` windows; the other kinds (window_session.py) are there to be checked
and compared. A win has to be seen by both clocks: the lower end of a speedup's interval is the
lesser of what either gives; and calls made one by one have to show it as well. So a worker that
shortens its own clock by less than the tolerance wins nothing. Where most windows of either side
were disturbed, or too few were not, nobody wins and nobody loses: the interval holds 1. The sample
is a window's mean, never a call's median, which would hide a first call that does the work of all.

From wall is taken what a window costs. At ``certify`` that is seen in the baselines' windows of the
same round, and what is uncertain about it is in the interval, which is made of rounds. At
``quick`` it was seen before: as little is taken off as in the quietest session, and the lower end
is lowered by what noise leaves open where that is much.

``quick``: the candidate, in one process, against baselines measured earlier. A short measurement of
eager at the start is the sentinel: where it agrees with the cached one (within 2 %, or within the
95 % interval of the two, which is what a noisy machine can tell) the baselines stand. Where not,
they are scaled by the drift and the interval is widened to hold both the scaled and the unscaled
speedup. Past 25 % the baselines are measured again. On a GPU the interval also holds what a kernel
takes more or less in the next process. Where the candidate seems to win, and the
machine is noisy or its calls one by one took longer than they should, a few rounds as at
``certify`` decide.

``certify``: rounds of A B B A, each candidate visit a new process, against the fastest baselines.
Rounds go on, within bounds, while the interval is wider than 2 % either way: a rule that looks at
the width alone favours nobody. A baseline that runs over 3 % above its own solo time was slowed by
something: the lower end of the interval pays for it.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kwharness.attribution.stack_samples import Sampler, Seen
from kwharness.base import stats
from kwharness.base.protocol import Closed
from kwharness.clients.errors import WorkerError, ill, ran_out
from kwharness.machine import nvml, perf_counters
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import CPU, Device
from kwharness.timing import baselines, budgets, clocks, window_samples, windows_cuda
from kwharness.timing.baselines import EAGER, BaselineFailed
from kwharness.timing.cache_flush import Evictor, evictor
from kwharness.timing.input_pool import Contents
from kwharness.timing.window_base import TOOK_MEMORY, CallFailed, Slots
from kwharness.timing.window_session import Redrawn, Session, Stopped, TimedWorker, Window

Check = Callable[[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]], str | None]
CheckVaried = Callable[[int, list[torch.Tensor]], str | None]
Log = Callable[[str], None]

# Nine fresh windows of twelve; the rest look for what a time alone would not show. Varied windows
# come between them, nobody knows where.
PATTERN = (
    "fresh", "fresh", "chained", "fresh", "fresh", "fresh",
    "repeat", "fresh", "chained", "fresh", "fresh", "fresh",
)  # fmt: skip
# On a GPU each call costs a third of a millisecond beside what it takes.
GPU_CONTENTS = {"quick": 128, "certify": 1024}
GPU_WINDOWS = 12
QUICK_COLD = 8  # contents of a task with large outputs at quick: each costs several milliseconds
# Contents of a task whose contents are not kept: each costs many times a call.
REDRAWN = {"quick": 8, "certify": 16}
REPETITIONS = 50
VARIED_WINDOWS = 4  # of a visit
WATCHED = {"quick": 4, "certify": 16}  # windows of a process
WATCHED_PROCESSES = 8  # at most: more than one while it is not sure what was seen
MORE_CORES = 1.5  # times its threads: who uses more of them was not timed like the baselines
SOLO = 0.03
ROUNDS = 6
LARGE_ROUNDS = 4  # of a task whose contents are not kept: its calls take milliseconds each
MAX_ROUNDS = 16
QUICK_ROUNDS = 3  # where a noisy machine shows a win
NARROW = 0.02  # half-width of a speedup at which certify stops: wins of 10 % are then seen
# A candidate's windows are waited for so long, all together, and for what so many calls may take.
PATIENCE_S, PATIENCE_CALLS, PATIENCE_EAGERS = 90.0, 256, 200.0
SLOW_SPAWN_S = 1.0  # a baseline this slow to start lives for half of the rounds,
STAYS_S = 6.0  # and one this slow for all of them: max-autotune compiles for half a minute
ASIDE_BYTES = 3 << 29  # that a process may have which stays although there is little room


def measurement(
    visits: window_samples.Visits,
    overhead: window_samples.Overhead,
    clock: str = "event",
    seed: int = 0,
) -> dict[str, Any]:
    """Returns a Measurement. Raises ValueError when there are no fresh windows."""
    blocks = visits.times(clock, overhead)
    interval = stats.time_interval(blocks, seed)
    pooled = [t for b in blocks for t in b]
    fresh = visits.kind("fresh")
    found: dict[str, Any] = {
        "median_ms": interval.value,
        "p25_ms": stats.quantile(pooled, 0.25),
        "p75_ms": stats.quantile(pooled, 0.75),
        "low_ms": interval.low,
        "high_ms": interval.high,
        "repetitions": sum(s.calls for s in fresh),
        "clock": "event" if clock == "event" else "wall",
        "event_ms": stats.median([s.event for s in fresh]) / 1e6,
        "wall_ms": stats.median([overhead.wall(s) for s in window_samples.quieter(fresh)]) / 1e6,
    }
    alone = visits.kind("chained")
    if alone and overhead.turns:
        found["latency_ms"] = window_samples.typical("chained", [s.event for s in alone]) / 1e6
    return found


@dataclass
class Timed:
    """What ``measure`` gives. ``wrong`` says what check found; then nothing else counts."""

    report: dict[str, Any]  # TimingReport
    speedups: dict[str, dict[str, Any]]  # by baseline
    speedup: dict[str, Any] | None  # against the fastest
    learned: dict[str, Any]  # {"baselines": {name: ...}}
    metrics: dict[str, float]
    wrong: str | None = None
    hides: str = ""  # one sentence where it hides work from its own clock
    excess: str = ""  # one sentence where it uses more cores than it was given
    seen: Seen = field(default_factory=Seen)  # whose code was at work in its calls


class Timing:
    """One evaluation's timing. See the module."""

    def __init__(
        self,
        *,
        draw: Callable[[int], Sequence[torch.Tensor]],
        outputs: Sequence[torch.Tensor],
        check: Check,
        spawn_baseline: Callable[[str], TimedWorker],
        level: str,
        threads: int,
        want: Sequence[str] = baselines.NAMES,
        known: dict[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        llc_bytes: int | None = None,
        log: Log = lambda _: None,
        learn: Callable[[dict[str, Any]], None] = lambda _: None,
        leave: Callable[[str, TimedWorker], None] = lambda *_: None,
        seed: int = 0,
        contents: Contents | None = None,
        budget: budgets.Budget | None = None,
        orders: Sequence[Sequence[int]] = (),
        device: Device = CPU,
    ) -> None:
        """``contents`` of a former Timing of the same task save drawing again.

        ``known`` is the ``learned`` of a former evaluation. ``sources`` are the hashes of named
        baselines' sources by their names: a time of another source is none. ``llc_bytes`` is the
        size of the last-level cache; None reads it from the system. ``learn`` is given what is
        ``learned`` so far whenever a baseline has been measured. ``leave`` is given a baseline's
        name and its process, between windows, when it has been timed. ``orders`` are the inputs':
        see tensors.layout_of.
        """
        self._leave = leave
        self.level = level
        self.threads = threads
        self.want = [EAGER, *(w for w in want if w != EAGER)]
        self.device = device
        on_gpu = device.kind == "cuda"
        self.budget = budget or budgets.budget_of(level, device)
        self.log = log
        self._learn_now = learn
        self.seed = seed
        self.notes: list[str] = []
        self._sources = dict(sources or {})
        usable = baselines.usable(known, threads)
        self.records = {
            n: r
            for n, r in usable.items()
            if n in self.want and r.get("source", "") == self._sources.get(n, "")
        }
        self.measured: set[str] = set()  # those measured in this evaluation
        self._check = check
        self._spawn_baseline = spawn_baseline
        if contents is None:
            contents = Contents(Slots.of(draw(0), outputs, orders), draw, device)
        self.contents = contents
        self._evict: Evictor | None = None
        self._cold = False  # a GPU's caches are emptied before each call
        self._ahead: int | None = None  # how many calls eager is known to ask for at once
        # Seconds by baseline that was measured alone, from where its process is there: it compiles.
        self.spent_s: dict[str, float] = {}
        if not on_gpu:
            llc = last_level_cache() if llc_bytes is None else llc_bytes
            self._evict = evictor(llc, tuple(sorted(os.sched_getaffinity(0))))
            self._cold = contents.slots.large(llc)
        self._overhead = window_samples.Overhead(turns=on_gpu)
        self._plan = budgets.Plan(1, 1)
        self._warm = 1
        self._drift = 1.0
        self._usual = window_samples.Alone()
        self._random = random.SystemRandom()
        self._noted: list[str] = []  # before any candidate was met
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of a candidate yet."""
        self._check_varied: CheckVaried | None = None
        self._since = 1.0  # the drift again, of those that took turns with the candidate
        self._shown: dict[str, dict[str, Any]] = {}  # measurements newer than the records
        self._recalibrated = False
        self._wrong_output: str | None = None
        self._last: Window | None = None  # to be checked when its process is gone
        self._seen = Seen()
        self._patience_s: float | None = None  # what is left of it; begins with a candidate
        self._counts: dict[str, float] = {}  # of one call of the candidate

    def for_another(
        self,
        *,
        check: Check,
        spawn_baseline: Callable[[str], TimedWorker],
        log: Log,
        learn: Callable[[dict[str, Any]], None],
    ) -> Timing:
        """Returns this, prepared, for another candidate of the same task and weights.

        It is timed on the same contents and against the same sentinel, at ``quick``.
        """
        self._check, self._spawn_baseline, self.log, self._learn_now = (
            check,
            spawn_baseline,
            log,
            learn,
        )
        self.notes = list(self._noted)
        self._leave = lambda *_: None  # of the evaluation before; no baseline is measured now
        self._forget()
        return self

    # Before any candidate exists.

    def prepare(self) -> None:
        """Calibrates, draws, learns expected outputs, and measures the baselines or the sentinel.

        Raises BaselineFailed when eager fails.
        """
        with _one_thread():
            self._prepare()
        self._noted = list(self.notes)

    def _prepare(self) -> None:
        with ThreadPoolExecutor(1) as beside:
            spawning = beside.submit(self._spawn_baseline, EAGER)
            cached = self.records.get(EAGER)
            try:
                if cached is not None:  # drawing and starting a process keep one core busy each
                    self._size(1e6 * cached["measurement"]["median_ms"], float(cached["window_ns"]))
            except BaseException:
                with suppress(Exception):
                    spawning.result().kill()
                raise
            worker = spawning.result()
        try:
            if cached is None:
                self._size(*self._a_call(worker))
            sentinel = self._sentinel(worker)
            if cached and not self._stands(sentinel):
                self.notes.clear()  # the second word counts
                if not self._stands(self._again(worker)):
                    self.records.clear()
            missing = [w for w in self.want if w not in self.records]
            if EAGER in missing:
                self._learn(
                    EAGER,
                    window_samples.Visits([*sentinel.blocks, *self._solo(worker, EAGER).blocks]),
                )
        except Exception as e:
            raise BaselineFailed(f"eager could not be timed: {_said(e, worker)}") from e
        finally:
            worker.kill()
        for name in missing:
            if name != EAGER:
                self._measure_baseline(name)
            self._learn_now(self._learned())

    def _events(self, visits: window_samples.Visits) -> list[list[float]]:
        return visits.times("event", self._overhead)

    def _sentinel(self, worker: TimedWorker) -> window_samples.Visits:
        """Times the worker without work, and eager over all contents."""
        session = self._session(worker, EAGER, self._plan.capacity)
        if self.device.kind == "cpu":
            self._calibrate_cpu(session)
        visits = self._expect(session)
        self._ahead = session.ahead
        session.close()
        return visits

    def _again(self, worker: TimedWorker) -> window_samples.Visits:
        """Times eager once more: a disturbance lasts less long than all baselines take."""
        session = self._session(worker, EAGER, self._plan.capacity)
        visits = self._expect(session)
        session.close()
        return visits

    def _a_call(self, worker: TimedWorker) -> tuple[float, float]:
        """Returns what a call of eager takes, and with all that its window costs, nanoseconds."""
        pool = self.contents
        pool.grow(3)
        pool.new_process()
        session = self._session(worker, EAGER, 1)
        # The referee, too, loads what it uses when it is first used.
        first = [
            session.run("fresh", [i % 3]) for i in range(3 if self.device.kind == "cpu" else 6)
        ]
        self._ahead = session.ahead
        session.close()
        call, cost = min(w.event_mean_ns for w in first[1:]), min(w.wall_ns for w in first[1:])
        return call, cost

    def _size(self, call: float, cost: float) -> None:
        """Sets calls per window, and draws the contents."""
        pool = self.contents
        chosen = budgets.plan(call, pool.slots, self.budget)
        seconds = max(self.budget.candidate_s, self.budget.visit_s * 2)
        # Writing, mapping and checking a content costs about as much again as its call's wall.
        enough = max(int(seconds * 1e9 / max(2 * cost, 1)), REPETITIONS if cost < 2e6 else 1)
        windows = 3 * len(PATTERN)
        total = min(enough, windows * chosen.fresh, 8192)
        total = max(total, window_samples.MIN_FRESH + 4)
        if self.device.kind == "cuda":
            total = min(total, GPU_CONTENTS[self.level])
            chosen = budgets.Plan(
                min(chosen.fresh, budgets.TURNS.fresh), min(chosen.other, budgets.TURNS.other)
            )
        elif self.level == "quick" and self._cold:
            total = min(total, QUICK_COLD)
        if isinstance(pool, Redrawn):
            total, chosen = min(total, REDRAWN[self.level]), budgets.Plan(1, 1)
        else:
            total = min(total, _pool_bytes(self.budget, self.device) // pool.slots.bytes)
        total = max(total, 4)
        deadline = time.perf_counter_ns() + int(self.budget.draw_s * 1e9)
        pool.grow(self._warm + min(total, window_samples.MIN_FRESH + 4))
        pool.grow(self._warm + total, deadline)
        drawn = len(pool) - self._warm
        # Fewer calls a window rather than fewer windows: an interval needs windows.
        if self._cold or isinstance(pool, Redrawn):
            chosen = budgets.Plan(1, 1)
        other = max(min(chosen.other, drawn // 8), 1)
        windows = window_samples.MIN_FRESH if self.device.kind == "cpu" else GPU_WINDOWS
        self._plan = budgets.Plan(max(min(chosen.fresh, (drawn - 2 * other) // windows), 1), other)
        self._warm = max(1, min(self._plan.other, drawn // 8))

    def _calibrate_cpu(self, session: Session) -> None:
        for i in range(2):
            self.contents.new_process()
            window = session.run("fresh", self.contents.take(self._plan.fresh), identity=True)
            if i > 0:  # the first touches what the others find touched
                self._overhead.add_identity(window)

    def _assess(self, visits: window_samples.Visits) -> clocks.Assessed:
        """Judges a candidate. No candidate process may exist."""
        assessed = clocks.assess_clocks(visits, self._overhead, self._usual)
        if not (assessed.marked or assessed.off) or self._recalibrated:
            return assessed
        self._recalibrated = True
        # Was the machine another one when eager was timed? Time it again: if the cost of windows
        # has changed, its noise now says so.
        with _of_a_baseline():
            worker = self._spawn_baseline(EAGER)
            try:
                self._again(worker)
            finally:
                worker.kill()
        return clocks.assess_clocks(visits, self._overhead, self._usual)

    def _expect(self, session: Session) -> window_samples.Visits:
        """Runs eager over every content: expected outputs, and the sentinel."""
        pool = self.contents
        pool.new_process()
        samples: list[window_samples.Sample] = []
        window = session.run("fresh", pool.take(self._warm))
        pool.set_expected(window)
        while pool.left():
            window = session.run("fresh", pool.take(self._plan.fresh))
            pool.set_expected(window)
            if 2 * window.calls >= self._plan.fresh:
                seen = window_samples.Sample.of(window)
                self._overhead.add(seen)
                samples.extend(seen)
        for _ in range(4):
            pool.new_process()
            window = session.run("chained", pool.take(self._plan.other))
            seen = window_samples.Sample.of(window)
            self._overhead.add(seen)
            samples.extend(seen)
        visits = window_samples.Visits([samples])
        self._usual = window_samples.Alone.of(samples)
        self._overhead.end_session()
        return visits

    def _stands(self, sentinel: window_samples.Visits) -> bool:
        """Compares eager now with eager then, and sets the drift. False: measure again."""
        found = baselines.drift(self._events(sentinel), self.records[EAGER], self.seed)
        if found.note:
            self.notes.append(found.note)
        self._drift = found.ratio
        return not found.again

    def _measure_baseline(self, name: str) -> None:
        blocks: list[list[window_samples.Sample]] = []
        spent = 0.0
        # A second process tells how much processes differ; not where starting one takes long.
        while len(blocks) < 2 and (not blocks or spent < 3.0):
            start = time.perf_counter()
            self.log(f"timing {name}")
            try:
                worker = self._spawn_baseline(name)
            except Exception as e:
                self._leave_out(e, f"baseline {name} could not start: {e}")
                return
            began = time.perf_counter() - self.contents.again_s
            try:
                blocks.extend(self._solo(worker, name).blocks)
                self._leave(name, worker)
            except Exception as e:
                self._leave_out(e, f"baseline {name} could not be timed: {_said(e, worker)}")
                return
            finally:
                worker.kill()
                took = time.perf_counter() - self.contents.again_s - began
                self.spent_s[name] = self.spent_s.get(name, 0.0) + took
            spent = time.perf_counter() - start
        self._learn(name, window_samples.Visits(blocks))

    def _leave_out(self, e: Exception, note: str) -> None:
        """Notes why there is one baseline less. A GPU that does not work is no baseline's own."""
        if self.device.kind == "cuda" and ill(e):
            raise BaselineFailed(note) from e
        self.notes.append(note)

    def _solo(self, worker: TimedWorker, name: str) -> window_samples.Visits:
        """Times a baseline with no other participant running."""
        session = self._session(worker, name, self._plan.capacity)
        self._warm_up(session, trusted=True)
        block = self._visit(session, self.budget.solo_s, checked=False, trusted=True)
        session.close()
        return window_samples.Visits([block])

    def _learn(self, name: str, visits: window_samples.Visits) -> None:
        assessed = clocks.assess_clocks(visits, self._overhead, self._usual)
        self.notes.extend(f"{name}: {n}" for n in assessed.notes)
        self.records[name] = baselines.record(
            measurement(visits, self._overhead, seed=self.seed),
            self._events(visits),
            self.threads,
            stats.median([s.outer for s in visits.kind("fresh")]),
        )
        if name in self._sources:
            self.records[name]["source"] = self._sources[name]
        self.measured.add(name)

    # With a candidate.

    def vary(self, varied: Sequence[Sequence[torch.Tensor]], check: CheckVaried) -> None:
        """Has inputs that the candidate was verified on come among its timed calls."""
        self.contents.vary(varied)
        self._check_varied = check

    def measure(self, spawn_candidate: Callable[[], TimedWorker], traced: float = 0.0) -> Timed:
        """Times the candidate. Raises CallFailed, or what its channel raises, when it fails.

        ``traced``: PyTorch's share of the time of a forward whose operators were listed.
        """
        if not self.records:
            raise BaselineFailed("no baseline: prepare comes first")
        self._seen.traced = traced
        with _one_thread():
            while True:
                try:
                    if self.level == "certify":
                        least = LARGE_ROUNDS if self.contents.large else ROUNDS
                        timed = self._interleaved(spawn_candidate, least, MAX_ROUNDS)
                    else:
                        timed = self._quick(spawn_candidate)
                    if timed.wrong is None and self.device.kind == "cpu":
                        wrong = self._look_into(spawn_candidate)
                        if wrong is not None:
                            return self._wrong(wrong, timed.report["protocol"])
                    return timed
                except _Lost as e:  # is not the candidate's fault
                    if e.name == EAGER:
                        raise BaselineFailed(f"{e}") from e
                    self._leave_out(e, f"{e}, and is left out")
                    del self.records[e.name]

    def _look_into(self, spawn_candidate: Callable[[], TimedWorker]) -> str | None:
        """Sees whose code is at work, in as many processes as it takes to be sure. Returns what is
        wrong in an output.
        """
        for _ in range(WATCHED_PROCESSES):
            _, wrong = self._candidate(spawn_candidate, 0.0, watched=True)
            if wrong is not None or not self._seen.unsure():
                return wrong
        return None

    def _quick(self, spawn_candidate: Callable[[], TimedWorker]) -> Timed:
        protocol = "baselines measured just before" if self.measured else "cached baselines"
        block, wrong = self._candidate(spawn_candidate, self.budget.candidate_s)
        visits = window_samples.Visits([block])
        if wrong is not None or not visits.kind("fresh"):
            return self._wrong(wrong or "no window could be timed", protocol)
        assessed = self._assess(visits)
        speedups = {n: self._against_cached(n, visits, assessed.clock) for n in self.records}
        wins = min(speedups.values(), key=lambda s: s["value"])["low"] > 1
        # Others on the machine may have left while it ran, and one process may be slower to wake
        # than another: only turns can tell.
        unsure = assessed.noisy or clocks.WAKES <= assessed.alone < 1
        if wins and unsure and self.device.kind == "cpu":
            return self._interleaved(spawn_candidate, QUICK_ROUNDS, QUICK_ROUNDS)
        return self._result(visits, assessed, speedups, protocol)

    def _against_cached(
        self, name: str, visits: window_samples.Visits, clock: str
    ) -> dict[str, Any]:
        ratio = self._ratio(name)
        by = {
            c: baselines.against(
                name, self.records[name], visits.times(c, self._overhead), ratio, self.seed
            )
            for c in {clock, "most"}
        }
        fresh = visits.kind("fresh")
        off = self._overhead.unresolved(fresh)
        low = min(by[clock]["low"], by["most"]["low"] / off)
        # One process of it is all that there is.
        of_one = of_a_process(fresh) if self.device.kind == "cuda" else 1.0
        return {**by[clock], "low": low / of_one, "high": by[clock]["high"] * of_one}

    def _interleaved(
        self, spawn_candidate: Callable[[], TimedWorker], least: int, most: int
    ) -> Timed:
        names = baselines.contenders(self.records)
        rounds: dict[str, list[stats.Round]] = {n: [] for n in names}
        wall: dict[str, list[stats.Round]] = {n: [] for n in names}
        base: dict[str, window_samples.Visits] = {n: window_samples.Visits() for n in names}
        pairs: list[window_samples.Pair] = []
        candidate = window_samples.Visits()
        held: dict[str, _Held] = {}
        assessed = clocks.Assessed("event")
        end = time.perf_counter() + self.budget.rounds_s
        try:
            for r in range(most):
                self.log(f"round {r + 1}")
                with _of_a_baseline():
                    before = {n: _of(n, self._in_turn, held, n, r) for n in names}
                first, wrong = self._candidate(
                    spawn_candidate, 2 * self.budget.visit_s, REPETITIONS // ROUNDS
                )
                if wrong is not None:
                    candidate.blocks.append(first)
                    return self._wrong(wrong, "interleaved")
                with _of_a_baseline():
                    after = {n: _of(n, self._second_turn, held, n, r) for n in reversed(names)}
                candidate.blocks.append(first)
                pairs.append(window_samples.Pair(before, first, after))
                pairs[-1].pay()
                for n in names:
                    base[n].blocks.append(pairs[-1].of(n))
                if r + 1 < least:
                    continue
                overhead = self._overhead.paired(pairs)
                usual = [
                    window_samples.Alone.of([s for p in pairs for s in p.of(n)]) for n in names
                ]
                busiest = max(usual, key=lambda u: u.more_ns)
                # On a GPU calls one by one are held against eager's.
                assessed = clocks.assess_clocks(
                    candidate, overhead, self._usual if overhead.turns else busiest
                )
                rounds = {n: _rounds(pairs, n, assessed.clock, overhead) for n in names}
                wall = {n: _rounds(pairs, n, "wall", overhead) for n in names}
                widths = [_half_width(stats.paired_speedup(rounds[n], self.seed)) for n in names]
                if max(widths) <= NARROW or time.perf_counter() > end:
                    break
        finally:
            for h in held.values():
                h.worker.kill()
        speedups: dict[str, dict[str, Any]] = {}
        for visits in base.values():
            loud = [s.disturbed for s in visits.kind("fresh")]
            assessed.busy = assessed.busy or 2 * sum(loud) > len(loud)
        for n in names:
            interval = stats.paired_speedup(rounds[n], self.seed)
            low = min(interval.low, stats.paired_speedup(wall[n], self.seed).low)
            low /= self._above_solo(n, base[n])
            speedups[n] = {
                "value": interval.value,
                "low": low,
                "high": interval.high,
                "against": n,
            }
        for n in names:
            self._shown[n] = measurement(base[n], self._overhead, seed=self.seed)
        known = self._current(names[0])
        self._since = stats.speedup(self._events(base[names[0]]), known, self.seed).value
        for n in self.records:
            if n not in speedups:
                speedups[n] = self._against_cached(n, candidate, assessed.clock)
        return self._result(candidate, assessed, speedups, "interleaved")

    def _ratio(self, name: str) -> float:
        """Returns what a baseline would take now over what is known of it."""
        return self._since * (1.0 if name in self.measured else self._drift)

    def _current(self, name: str) -> stats.Blocks:
        """Returns what is known of a baseline, as long as it would take now."""
        ratio = self._ratio(name)
        return [[t * ratio for t in b] for b in self.records[name]["blocks"]]

    def _in_turn(
        self, held: dict[str, _Held], name: str, round_: int
    ) -> list[window_samples.Sample]:
        """Returns a visit of a baseline, whose process stays where there is room for it."""
        visit = self._hold(held, name, round_)
        self._put_aside(held, name)
        return visit

    def _second_turn(
        self, held: dict[str, _Held], name: str, round_: int
    ) -> list[window_samples.Sample]:
        if name not in held:
            return self._in_turn(held, name, round_)
        visit = self._held_visit(held[name], name)
        self._put_aside(held, name)
        return visit

    def _held_visit(self, h: _Held, name: str) -> list[window_samples.Sample]:
        if h.session is None:
            h.stopped.go_on()
            h.session = self._session(h.worker, name, self._plan.capacity)
        self._warm_up(h.session, trusted=True)
        return self._baseline_visit(h.session)

    def _put_aside(self, held: dict[str, _Held], name: str) -> None:
        """Where there is room for the blocks of one worker at a time, takes a baseline's away. Its
        process stays, with what it has compiled, unless that has much memory of its own.
        """
        h = held[name]
        if not self.contents.large:
            return
        assert h.session is not None
        has = h.session.close()
        h.session = None
        if h.has is None:
            self._leave(name, h.worker)
        h.stopped.stop()
        # What is less than before the reference may have, which keeps more as it goes.
        if has is not None:
            h.has = has
        elif h.has is None:
            h.has = h.room - self.device.unused_bytes()
        if h.has > ASIDE_BYTES:
            held.pop(name).worker.kill()

    def _hold(self, held: dict[str, _Held], name: str, round_: int) -> list[window_samples.Sample]:
        """Returns a visit of a baseline, in a new process where one is due."""
        h = held.get(name)
        half = round_ == ROUNDS // 2 and h is not None and h.spawn_s <= STAYS_S
        if h is not None and (h.spawn_s <= SLOW_SPAWN_S or half):
            h.worker.kill()
            del held[name]
            h = None
        if h is not None:
            return self._held_visit(h, name)
        start, room = time.perf_counter() - self.contents.again_s, self.device.unused_bytes()
        worker = self._spawn_baseline(name)
        try:
            session = self._session(worker, name, self._plan.capacity)
            self._warm_up(session, trusted=True)
        except BaseException:
            worker.kill()
            raise
        spawn_s = time.perf_counter() - self.contents.again_s - start
        held[name] = _Held(worker, session, spawn_s, room, Stopped(worker.pid))
        return self._baseline_visit(session)

    def _baseline_visit(self, session: Session) -> list[window_samples.Sample]:
        owed = REPETITIONS // ROUNDS
        return self._visit(session, self.budget.visit_s, checked=False, trusted=True, owed=owed)

    def _above_solo(self, name: str, interleaved: window_samples.Visits) -> float:
        """Returns by how much a baseline was slower than alone, where that is over the limit."""
        ratio = stats.speedup(self._events(interleaved), self._current(name), self.seed)
        above = ratio.value
        if above <= 1 + SOLO or ratio.low <= 1.0:
            return 1.0
        self.notes.append(
            f"{name} ran {100 * (above - 1):.0f} % above its solo time: "
            "the interval's lower end is lowered by as much"
        )
        return above

    def _candidate(
        self,
        spawn: Callable[[], TimedWorker],
        seconds: float,
        owed: int = REPETITIONS,
        *,
        watched: bool = False,
    ) -> tuple[list[window_samples.Sample], str | None]:
        """``watched``: what it does is looked at, in a process that cannot tell itself from those
        that are timed; stopping it again and again disturbs what comes after.
        """
        worker = spawn()
        if self._patience_s is None:
            eager_s = 1e-3 * float(self.records[EAGER]["measurement"]["median_ms"])
            self._patience_s = PATIENCE_S + PATIENCE_CALLS * PATIENCE_EAGERS * eager_s
        began = time.monotonic() - self.contents.again_s
        try:
            session = self._session(worker, "", self._plan.capacity)
            session.until = began + self._patience_s
            wrong = self._warm_up(session, trusted=False)
            if wrong is not None:
                return [], wrong
            self._wrong_output = self._last = None
            if watched:
                return [], self._watch(session)
            block = self._visit(session, seconds, checked=True, trusted=False, owed=owed)
            if self._wrong_output is None:
                if not self._counts and self.device.kind == "cpu":
                    self._counts = session.count(self.contents.met(self._plan.other))
                session.close()
            last, self._last = self._last, None
            if last is not None and self._wrong_output is None:
                worker.kill()  # there may be no room for what is expected beside it
                self._wrong_output = self._said(last)
            return block, self._wrong_output
        except (torch.OutOfMemoryError, CudaError, WorkerError) as e:
            # The reference's worker may say so: it draws, and computes what is expected.
            if not ran_out(e) or not worker.took_memory():
                raise
            error = {"type": TOOK_MEMORY, "message": "the GPU's memory ran out"}
            raise CallFailed(error) from e
        finally:
            self._patience_s -= time.monotonic() - self.contents.again_s - began
            worker.kill()

    # Windows.

    def _session(self, worker: TimedWorker, mode: str, capacity: int) -> Session:
        # A baseline may compile at its first call; a candidate was verified before it is timed.
        timeout = 600.0 if mode else 60.0
        kind = windows_cuda.GpuSession if self.device.kind == "cuda" else Session
        session = kind(
            worker,
            self.contents,
            capacity,
            evict=self._evict,
            mode=mode,
            cold=self._cold,
            timeout_s=timeout,
        )
        session.ahead = self._ahead
        return session

    def _warm_up(self, session: Session, *, trusted: bool) -> str | None:
        """Runs calls that count for nothing, on contents that no timed call will get."""
        self.contents.new_process()
        rows = self.contents.take(self._warm)
        last = math.inf
        end = time.perf_counter() + self.budget.warm_s
        for i in range(20):
            window = session.run("fresh", rows)
            if not trusted and i == 0:
                wrong = self._check_window(window)
                if wrong is not None:
                    return wrong
            # Caches of code, allocator and branch predictor have settled when it stops falling.
            steady = window.event_mean_ns > 0.95 * last
            last = window.event_mean_ns
            if (steady and (i + 1) * window.calls >= 3) or time.perf_counter() > end:
                break
        return None

    def _said(self, window: Window) -> str | None:
        wrong = self._check_window(window)
        return None if wrong is None else f"in a timed call: {wrong}"

    def _check_window(self, window: Window) -> str | None:
        rows, outputs = window.rows, window.outputs()
        drawn = [i for i, row in enumerate(rows) if row >= 0]
        if len(drawn) < len(rows):
            for i, row in enumerate(rows):
                if row < 0 and self._check_varied is not None:
                    wrong = self._check_varied(-1 - row, [t[i] for t in outputs])
                    if wrong is not None:
                        return wrong
            rows, outputs = [rows[i] for i in drawn], [t[drawn] for t in outputs]
        if not drawn:
            return None
        return self._check(self.contents.inputs(rows), outputs, self.contents.expected(rows))

    def _varied(self) -> list[list[int]]:
        """Returns the varied rows, in no order, by the window that they come in.

        A window of some calls has as many others, so that nobody can tell it by its first call.
        """
        n = self._plan.fresh
        # Some windows at least, so that they are spread over a visit.
        some = max(math.ceil(len(self.contents.varied) / VARIED_WINDOWS), 1)
        own = min(n if n < 4 else n // 2, some)
        left = list(self.contents.varied)
        self._random.shuffle(left)
        if self.level == "certify":
            left = left[: math.ceil(len(left) / 2)]  # there are as many visits as rounds
        return [left[i : i + own] for i in range(0, len(left), own)]

    def _watch(self, session: Session) -> str | None:
        """Looks, in fresh windows, at whose code is at work. Returns what is wrong in an output."""
        sampler, pool = Sampler(session.worker.pid, self._seen), self.contents
        for _ in range(WATCHED[self.level]):
            rows = pool.take(self._plan.fresh)
            if not rows:
                break
            wrong = self._said(session.run("fresh", rows, look=sampler.look))
            if wrong is not None:
                return wrong
        session.close()
        return None

    def _visit(
        self,
        session: Session,
        seconds: float,
        *,
        checked: bool,
        trusted: bool,
        owed: int = REPETITIONS,
    ) -> list[window_samples.Sample]:
        """Runs the pattern for about this long, after ``_warm_up``.

        A trusted worker may meet contents again; an untrusted one stops when they are used up.
        ``owed`` repetitions are made even if they take longer, but not thrice as long.
        """
        pool = self.contents
        samples: list[window_samples.Sample] = []
        fresh = calls = extra = 0
        now = time.perf_counter()
        end = now + seconds
        hard = end + 2 * seconds
        varied = self._varied() if checked else []
        # One of them comes when the visit is over, the others when nobody knows.
        due = sorted(now + seconds * self._random.random() for _ in varied[1:])
        kinds = itertools.cycle(PATTERN)
        over = False
        while True:
            now = time.perf_counter()
            over = over or (
                now > end and fresh >= window_samples.MIN_FRESH and (calls >= owed or now > hard)
            )
            if over and not varied:
                break
            if over or (due and now > due[0]):
                kind = "varied"
                del due[:1]
            else:
                kind = next(kinds)
            n = self._plan.calls(kind)
            rows: Sequence[int]
            if kind == "repeat":
                rows = pool.met(n)
            elif kind == "varied":
                some = varied.pop() if varied else []
                rows = [*some, *(pool.take(n - len(some)) if n >= 4 else ())]
                self._random.shuffle(rows)
            elif pool.left() < n and not trusted:
                over = True
                continue
            else:
                if pool.left() < n:
                    pool.new_process()
                    pool.take(self._warm)
                rows = pool.take(n)
            if not rows:
                continue
            window = session.run(kind, rows)
            if checked and pool.large and kind == "varied" and over and not varied:
                # Its instructions are counted after it, on a CPU, in further windows.
                own = window.raw.clone() if self.device.kind == "cpu" else window.raw
                self._last = replace(window, raw=own)
            elif checked:
                self._wrong_output = self._said(window)
                if self._wrong_output is not None:
                    break
            samples.extend(window_samples.Sample.of(window))
            if kind != "fresh":
                continue
            if window.disturbed() and extra < 2 * window_samples.MIN_FRESH:
                extra += 1  # measured again by not counting it
                continue
            fresh += 1
            calls += n
        return samples

    # Results.

    def _wrong(self, wrong: str, protocol: str) -> Timed:
        return Timed(
            report={"candidate": _nothing(), **self._report(protocol)},
            speedups={},
            speedup=None,
            learned=self._learned(),
            metrics={},
            wrong=wrong,
        )

    def _report(self, protocol: str) -> dict[str, Any]:
        return {
            "baselines": {n: self._now(n) for n in self.records},
            "threads": self.threads,
            "protocol": protocol,
            "marked": False,
            "notes": list(self.notes),
        }

    def _now(self, name: str) -> dict[str, Any]:
        known = self.records[name]["measurement"]
        if name in self._shown:
            return self._shown[name]
        ratio = self._ratio(name)
        if name in self.measured and ratio == 1.0:
            return known
        return baselines.earlier(known, ratio)

    def _result(
        self,
        visits: window_samples.Visits,
        assessed: clocks.Assessed,
        speedups: dict[str, dict[str, Any]],
        protocol: str,
    ) -> Timed:
        report = {
            "candidate": measurement(visits, self._overhead, assessed.clock, self.seed),
            **self._report(protocol),
        }
        report["marked"] = assessed.marked
        report["disturbed"] = assessed.disturbed
        report["notes"] = [*self.notes, *assessed.notes]
        speedups = {n: bounded(s, assessed) for n, s in speedups.items()}
        if assessed.disturbed:  # it took no longer than that, and may take as long as the fastest
            least = min(self._now(n)["median_ms"] for n in self.records)
            report["candidate"]["low_ms"] = min(report["candidate"]["low_ms"], least)
        if assessed.busy and not assessed.disturbed:
            report["notes"].append("the machine was busy while baselines were timed")
        # The fastest baseline is the one against which the speedup is least.
        fastest = min(speedups.values(), key=lambda s: s["value"])
        fresh = visits.kind("fresh")
        metrics = {"threads": float(self.threads)}
        quiet = [s for s in fresh if not s.disturbed]
        cpu = stats.median([self._overhead.cpu(s) for s in quiet or fresh])
        time_ = stats.median([s.event for s in quiet or fresh])
        metrics |= perf_counters.metrics(self._counts, report["candidate"]["median_ms"])
        if self.device.kind == "cuda":
            metrics |= _felt(windows_cuda.sensors().read(), fresh)
        excess = ""
        if (
            time_ > 100_000 and self.device.kind == "cpu"
        ):  # below, what the window itself uses drowns the call
            if quiet and cpu > 0:
                metrics["core_use"] = min(cpu / time_ / max(self.threads, 1), 1.0)
            used = [cores(s, self._overhead.most(s), self.threads) for s in quiet]
            at_once = stats.median(used) if len(used) >= window_samples.MIN_FRESH else 0.0
            if at_once > MORE_CORES * self.threads and self.threads < (os.cpu_count() or 1):
                excess = (
                    f"it computes on {at_once:.1f} cores at once where the baselines "
                    f"have {self.threads}"
                )
        return Timed(
            report=report,
            speedups=speedups,
            speedup=fastest,
            learned=self._learned(),
            metrics=metrics,
            hides=assessed.hides,
            excess=excess,
            seen=self._seen,
        )

    def _learned(self) -> dict[str, Any]:
        return {"baselines": dict(self.records)}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps the referee to one thread: a pool of its own would spin beside a timed call."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _said(e: Exception, worker: TimedWorker) -> str:
    """Returns what is to be said of a baseline that failed."""
    if isinstance(e, Closed):
        return f"its process {worker.how_it_ended()}"
    return str(e).strip().partition("\n")[0]  # torch's errors go on with advice


class _Lost(Exception):
    """A baseline failed while it took turns with the candidate."""

    def __init__(self, name: str, why: Exception) -> None:
        super().__init__(f"baseline {name} failed while it was timed: {why}")
        self.name = name


def _of(
    name: str, visit: Callable[..., list[window_samples.Sample]], *given: Any
) -> list[window_samples.Sample]:
    try:
        return visit(*given)
    except Exception as e:
        raise _Lost(name, e) from e


@contextmanager
def _of_a_baseline() -> Iterator[None]:
    """What fails here is no candidate's fault."""
    try:
        yield
    except (BaselineFailed, _Lost):
        raise
    except Exception as e:
        raise BaselineFailed(f"a baseline that was timed before failed: {e}") from e


@dataclass
class _Held:
    worker: TimedWorker
    session: Session | None
    spawn_s: float
    room: int  # bytes of memory that were free before it was there
    stopped: Stopped
    has: int | None = None  # bytes of its own, without contents


def _rounds(
    pairs: Sequence[window_samples.Pair],
    name: str,
    clock: str,
    overhead: window_samples.Overhead,
) -> list[stats.Round]:
    """Returns the rounds of one baseline."""
    out: list[stats.Round] = []
    for p in pairs:
        a = window_samples.times_of(p.before[name], "event", overhead)
        b = window_samples.times_of(p.after[name], "event", overhead)
        c = window_samples.times_of(p.candidate, clock, overhead)
        if a and b and c:
            out.append(stats.Round(a, c, b))
    return out


def bounded(speedup: dict[str, Any], assessed: clocks.Assessed) -> dict[str, Any]:
    """Returns a speedup with what its interval cannot exclude: see the module."""
    low, high = speedup["low"] * assessed.alone, speedup["high"]
    if assessed.doubtful or assessed.busy:
        low = min(low, 1.0)
    if assessed.busy:
        high = max(high, 1.0)
    return {**speedup, "low": low, "high": high}


def _felt(now: nvml.Reading, fresh: Sequence[window_samples.Sample]) -> dict[str, float]:
    """Returns what a GPU's sensors show when it has been timed."""
    felt = {"sm_mhz": float(now.sm_mhz), "celsius": float(now.celsius)}
    slowed = sum(bool(s.slowed) for s in fresh) / max(len(fresh), 1)
    return {k: v for k, v in felt.items() if v} | ({"slowed_share": slowed} if slowed else {})


def cores(s: window_samples.Sample, wall_ns: float, threads: int) -> float:
    """Returns how many cores the calls of a window had at work at least.

    ``wall_ns`` is what a call took by the referee's clock. However much of a window is not its
    calls', so many threads cannot use more processor time than passes for each of them: what was
    used beyond that others used, while calls ran.
    """
    beyond = max(s.cpu - threads * s.outer, 0.0)
    return threads + beyond / max(s.event, wall_ns, 1.0)


def of_a_process(fresh: Sequence[window_samples.Sample]) -> float:
    """Returns the factor by which the times of two processes may be off, 95 % of the time."""
    scatter = window_samples.PROCESSES_NS / max(stats.median([s.event for s in fresh]), 1.0)
    if any(s.alone for s in fresh):
        scatter = math.hypot(scatter, window_samples.PROCESSES_ALONE)
    return math.exp(1.96 * math.sqrt(2) * scatter)


def _half_width(interval: stats.Interval) -> float:
    return math.sqrt(interval.high / interval.low) - 1


def _nothing() -> dict[str, Any]:
    zero = dict.fromkeys(("median_ms", "p25_ms", "p75_ms", "low_ms", "high_ms"), 0.0)
    return {**zero, "repetitions": 0, "clock": "", "event_ms": 0.0, "wall_ms": 0.0}


def _pool_bytes(budget: budgets.Budget, device: Device) -> int:
    if device.kind == "cuda":
        return min(budget.pool_bytes, device.free_bytes() // 4)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(budget.pool_bytes, available // 8)


def last_level_cache() -> int:
    """Returns the bytes of the largest cache of core 0, or 32 MiB where the system is silent."""
    base = "/sys/devices/system/cpu/cpu0/cache"
    largest = 0
    try:
        for index in os.listdir(base):
            if not index.startswith("index"):
                continue
            with open(f"{base}/{index}/size") as f:
                text = f.read().strip()
            unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
            largest = max(largest, int(text.rstrip("KM")) * unit)
    except (OSError, ValueError):
        pass  # no such folder in some virtual machines
    return largest or 32 << 20

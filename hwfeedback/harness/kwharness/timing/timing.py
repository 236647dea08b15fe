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
- ``Timed.records`` go into the cache and come back as ``known`` for the same task, device,
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

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from kwharness.base import stats
from kwharness.base.learned import Record
from kwharness.base.protocol import Closed
from kwharness.base.verdicts import Speedup, TimingReport
from kwharness.clients.errors import ill
from kwharness.machine import perf_counters
from kwharness.machine.device import CPU, Device
from kwharness.timing import (
    baselines,
    budgets,
    clocks,
    device_timing,
    measurement,
    milestones,
    rounds,
    window_samples,
)
from kwharness.timing.baselines import EAGER, BaselineFailed
from kwharness.timing.candidate_visits import CandidateVisits
from kwharness.timing.input_pool import Contents
from kwharness.timing.known_baselines import KnownBaselines
from kwharness.timing.measurement import Timed
from kwharness.timing.sentinel import Sentinel
from kwharness.timing.turns import ROUNDS, Lost, Turns
from kwharness.timing.visit import Visit
from kwharness.timing.window_base import Slots
from kwharness.timing.window_runner import Check, Checks, CheckVaried, Runner
from kwharness.timing.window_session import TimedWorker

Log = Callable[[str], None]
Learn = Callable[[dict[str, Record]], None]

MORE_CORES = 1.5  # times its threads: who uses more of them was not timed like the baselines


@dataclass
class Hooks:
    """What an evaluation has a Timing call: see Timing."""

    spawn_baseline: Callable[[str], TimedWorker]
    log: Log
    learn: Learn
    leave: Callable[[str, TimedWorker], None]


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
        known: Mapping[str, Record] | None = None,
        sources: Mapping[str, str] | None = None,
        llc_bytes: int | None = None,
        log: Log = lambda _: None,
        learn: Learn = lambda _: None,
        leave: Callable[[str, TimedWorker], None] = lambda *_: None,
        seed: int = 0,
        contents: Contents | None = None,
        budget: budgets.Budget | None = None,
        orders: Sequence[Sequence[int]] = (),
        device: Device = CPU,
    ) -> None:
        """``contents`` of a former Timing of the same task save drawing again.

        ``known`` are the ``records`` of a former evaluation. ``sources`` are the hashes of named
        baselines' sources by their names: a time of another source is none. ``llc_bytes`` is the
        size of the last-level cache; None reads it from the system. ``learn`` is given the
        ``records`` so far whenever a baseline has been measured. ``leave`` is given a baseline's
        name and its process, between windows, when it has been timed. ``orders`` are the inputs':
        see tensors.layout_of.
        """
        self._hooks = Hooks(spawn_baseline, log, learn, leave)
        self.level = level
        self.threads = threads
        self.want = [EAGER, *(w for w in want if w != EAGER)]
        self.device = device
        self.seed = seed
        self.notes: list[str] = []
        self._noted: list[str] = []  # before any candidate was met
        self._known = KnownBaselines(known or {}, self.want, sources, threads, seed)
        if contents is None:
            contents = Contents(Slots.of(draw(0), outputs, orders), draw, device)
        budget = budget or device_timing.of(device).budget(level)
        self._runner = Runner(level, device, budget, contents, Checks(contents, check), llc_bytes)
        self._sentinel = Sentinel(self._runner)
        # Seconds by baseline that was measured alone, from where its process is there: it compiles.
        self.spent_s: dict[str, float] = {}

    @property
    def contents(self) -> Contents:
        return self._runner.contents

    @property
    def records(self) -> dict[str, Record]:
        """What is known of each baseline."""
        return self._known.records

    def for_another(
        self,
        *,
        check: Check,
        spawn_baseline: Callable[[str], TimedWorker],
        log: Log,
        learn: Learn,
    ) -> Timing:
        """Returns this, prepared, for another candidate of the same task and weights.

        It is timed on the same contents and against the same sentinel, at ``quick``.
        """
        # Nobody is told of a baseline's process: none is measured now.
        self._hooks = Hooks(spawn_baseline, log, learn, lambda *_: None)
        self._runner.checks = Checks(self.contents, check)
        self.notes = list(self._noted)
        self._known.forget()
        self._sentinel.forget()
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
        cached = self.records.get(EAGER)
        worker = self._start_eager(cached)
        try:
            if cached is None:
                self._runner.size(*self._runner.first_calls(worker))
            sentinel = self._sentinel.first(worker)
            if cached and not self._stands(sentinel):
                self.notes.clear()  # the second word counts
                if not self._stands(self._sentinel.again(worker)):
                    self.records.clear()
            missing = [w for w in self.want if w not in self.records]
            if EAGER in missing:
                solo = self._solo(worker, EAGER)
                self._learn(EAGER, window_samples.Visits([*sentinel.blocks, *solo.blocks]))
        except Exception as e:
            raise BaselineFailed(f"eager could not be timed: {_said(e, worker)}") from e
        finally:
            worker.kill()
        for name in missing:
            if name != EAGER:
                self._measure_baseline(name)
            self._hooks.learn(dict(self.records))

    def _start_eager(self, cached: Record | None) -> TimedWorker:
        """Starts eager, and draws meanwhile where it is known how much: either keeps one core
        busy.
        """
        with ThreadPoolExecutor(1) as beside:
            spawning = beside.submit(self._hooks.spawn_baseline, EAGER)
            try:
                if cached is not None:
                    call = 1e6 * cached.measurement.median_ms
                    self._runner.size(call, cached.window_ns)
            except BaseException:
                with suppress(Exception):
                    spawning.result().kill()
                raise
            return spawning.result()

    def _stands(self, sentinel: window_samples.Visits) -> bool:
        """Compares eager now with eager then. False: measure again."""
        now = sentinel.times("event", self._sentinel.overhead)
        stands, note = self._known.stands(now)
        if note:
            self.notes.append(note)
        return stands

    def _measure_baseline(self, name: str) -> None:
        blocks: list[list[window_samples.Sample]] = []
        spent = 0.0
        # A second process tells how much processes differ; not where starting one takes long.
        while len(blocks) < 2 and (not blocks or spent < 3.0):
            start = time.perf_counter()
            self._hooks.log(f"timing {name}")
            try:
                worker = self._hooks.spawn_baseline(name)
            except Exception as e:
                self._leave_out(e, f"baseline {name} could not start: {e}")
                return
            began = time.perf_counter() - self.contents.again_s
            try:
                blocks.extend(self._solo(worker, name).blocks)
                self._hooks.leave(name, worker)
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
        if self.device.has_driver and ill(e):
            raise BaselineFailed(note) from e
        self.notes.append(note)

    def _solo(self, worker: TimedWorker, name: str) -> window_samples.Visits:
        """Times a baseline with no other participant running."""
        session = self._runner.session(worker, name)
        self._runner.warm_up(session, trusted=True)
        visit = Visit(self._runner, session, checked=False, trusted=True)
        block = visit.run(self._runner.budget.solo_s)
        session.close()
        return window_samples.Visits([block])

    def _learn(self, name: str, visits: window_samples.Visits) -> None:
        overhead = self._sentinel.overhead
        assessed = clocks.assess_clocks(visits, overhead, self._sentinel.usual)
        self.notes.extend(f"{name}: {n}" for n in assessed.notes)
        self._known.learn(name, visits, overhead)

    # With a candidate.

    def vary(self, varied: Sequence[Sequence[torch.Tensor]], check: CheckVaried) -> None:
        """Has inputs that the candidate was verified on come among its timed calls."""
        self.contents.vary(varied)
        self._runner.checks.varied = check

    def measure(self, spawn_candidate: Callable[[], TimedWorker], traced: float = 0.0) -> Timed:
        """Times the candidate. Raises CallFailed, or what its channel raises, when it fails.

        ``traced``: PyTorch's share of the time of a forward whose operators were listed.
        """
        if not self.records:
            raise BaselineFailed("no baseline: prepare comes first")
        candidate = CandidateVisits(self._runner, spawn_candidate, self._known.eager_s())
        candidate.seen.traced = traced
        with _one_thread():
            while True:
                try:
                    timed = self._measure(candidate)
                    if timed.wrong is None and self.device.on_cores:
                        wrong = candidate.look_into()
                        if wrong is not None:
                            return self._wrong(wrong, timed.report.protocol or "")
                    return timed
                except Lost as e:  # is not the candidate's fault
                    if e.name == EAGER:
                        raise BaselineFailed(f"{e}") from e
                    self._leave_out(e, f"{e}, and is left out")
                    del self.records[e.name]

    def _measure(self, candidate: CandidateVisits) -> Timed:
        if self.level == "certify":
            least = rounds.LARGE_ROUNDS if self.contents.large else ROUNDS
            return self._interleaved(candidate, least, rounds.MAX_ROUNDS)
        return self._quick(candidate)

    def _quick(self, candidate: CandidateVisits) -> Timed:
        known = self._known
        protocol = "baselines measured just before" if known.measured else "cached baselines"
        budget = self._runner.budget
        settled = self._settled if budget.milestone else None
        block, wrong = candidate.visit(budget.candidate_s, settled=settled)
        visits = window_samples.Visits([block])
        if wrong is not None or not visits.kind("fresh"):
            return self._wrong(wrong or "no window could be timed", protocol)
        assessed = self._sentinel.assess(visits, self._hooks.spawn_baseline)
        overhead = self._sentinel.overhead
        speedups = {n: known.against(n, visits, assessed.clock, overhead) for n in self.records}
        wins = min(speedups.values(), key=lambda s: s.value).low > 1
        # Others on the machine may have left while it ran, and one process may be slower to wake
        # than another: only turns can tell.
        unsure = assessed.noisy or clocks.WAKES <= assessed.alone < 1
        if wins and unsure and self.device.on_cores:
            return self._interleaved(candidate, rounds.QUICK_ROUNDS, rounds.QUICK_ROUNDS)
        return self._result(candidate, visits, assessed, speedups, protocol)

    def _settled(self, block: list[window_samples.Sample]) -> bool:
        """Whether it is certain of each baseline that matters whether it is beaten by the
        milestone: where eager is not, no other does.
        """
        if any(s.disturbed for s in block):
            return False
        visits, overhead = window_samples.Visits([block]), self._sentinel.overhead
        names = sorted(self.records, key=lambda n: n != EAGER)
        for name in names:
            s = self._known.against(name, visits, "event", overhead)
            beaten = milestones.beaten(s, self._runner.budget.milestone)
            if beaten is None or (name == EAGER and not beaten):
                return beaten is not None
        return True

    def _interleaved(self, candidate: CandidateVisits, least: int, most: int) -> Timed:
        turns = Turns(self._runner, self._hooks.spawn_baseline, self._hooks.leave)
        r = rounds.Rounds(turns, self._known, self._sentinel, candidate, self.seed)
        budget = self._runner.budget
        wrong = r.run(budget.visit_s, budget.rounds_s, least, most, self._hooks.log)
        if wrong is not None:
            return self._wrong(wrong, "interleaved")
        speedups, notes = r.speedups()
        self.notes += notes
        return self._result(candidate, r.visits, r.assessed, speedups, "interleaved")

    # Results.

    def _wrong(self, wrong: str, protocol: str) -> Timed:
        return Timed(
            report=self._report(protocol),
            speedups={},
            speedup=None,
            records=dict(self.records),
            metrics={},
            wrong=wrong,
        )

    def _report(self, protocol: str) -> TimingReport:
        return TimingReport(
            baselines={n: self._known.now(n) for n in self.records},
            threads=self.threads,
            protocol=protocol,
            marked=False,
            notes=list(self.notes),
        )

    def _result(
        self,
        candidate: CandidateVisits,
        visits: window_samples.Visits,
        assessed: clocks.Assessed,
        speedups: dict[str, Speedup],
        protocol: str,
    ) -> Timed:
        found = measurement.measurement(visits, self._sentinel.overhead, assessed.clock, self.seed)
        report = self._report(protocol)
        report.candidate, report.marked = found, assessed.marked
        report.disturbed = assessed.disturbed
        report.note(*assessed.notes)
        speedups = {n: measurement.bounded(s, assessed) for n, s in speedups.items()}
        if assessed.disturbed:  # it took no longer than that, and may take as long as the fastest
            least = min(self._known.now(n).median_ms for n in self.records)
            found.low_ms = min(found.low_ms, least)
        if assessed.busy and not assessed.disturbed:
            report.note("the machine was busy while baselines were timed")
        # The fastest baseline is the one against which the speedup is least.
        fastest = min(speedups.values(), key=lambda s: s.value)
        metrics = {"threads": float(self.threads)}
        metrics |= perf_counters.metrics(candidate.counts, found.median_ms)
        fresh = visits.kind("fresh")
        metrics |= self._runner.how.sensed(fresh)
        used, excess = self._cores(fresh)
        return Timed(
            report=report,
            speedups=speedups,
            speedup=fastest,
            records=dict(self.records),
            metrics=metrics | used,
            hides=assessed.hides,
            excess=excess,
            seen=candidate.seen,
        )

    def _cores(self, fresh: Sequence[window_samples.Sample]) -> tuple[dict[str, float], str]:
        """Returns which share of its cores a candidate used, and one sentence where it used more
        than it was given.
        """
        overhead = self._sentinel.overhead
        quiet = [s for s in fresh if not s.disturbed]
        cpu = stats.median([overhead.cpu(s) for s in quiet or fresh])
        time_ = stats.median([s.event for s in quiet or fresh])
        # Below, what the window itself uses drowns the call.
        if time_ <= 100_000 or not self.device.on_cores:
            return {}, ""
        metrics: dict[str, float] = {}
        if quiet and cpu > 0:
            metrics["core_use"] = min(cpu / time_ / max(self.threads, 1), 1.0)
        used = [measurement.cores(s, overhead.most(s), self.threads) for s in quiet]
        at_once = stats.median(used) if len(used) >= window_samples.MIN_FRESH else 0.0
        if at_once > MORE_CORES * self.threads and self.threads < (os.cpu_count() or 1):
            return metrics, (
                f"it computes on {at_once:.1f} cores at once where the baselines "
                f"have {self.threads}"
            )
        return metrics, ""


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

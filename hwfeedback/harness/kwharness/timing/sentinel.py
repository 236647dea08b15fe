"""Eager as the sentinel: what it takes now, what a window costs, and what its outputs are."""

from __future__ import annotations

from collections.abc import Callable

from kwharness.timing import clocks, window_samples
from kwharness.timing.baselines import EAGER
from kwharness.timing.turns import of_a_baseline
from kwharness.timing.window_runner import Runner
from kwharness.timing.window_session import Session, TimedWorker


class Sentinel:
    """Eager, which is trusted, and what its windows show of the machine."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.overhead = window_samples.Overhead(turns=runner.how.turns)
        self.usual = window_samples.Alone()
        self._recalibrated = False

    def forget(self) -> None:
        """No candidate has been assessed yet."""
        self._recalibrated = False

    def first(self, worker: TimedWorker) -> window_samples.Visits:
        """Times the worker without work, and eager over all contents."""
        session = self._runner.session(worker, EAGER)
        if self._runner.device.on_cores:
            self._calibrate(session)
        visits = self._expect(session)
        self._runner.ahead = session.ahead
        session.close()
        return visits

    def again(self, worker: TimedWorker) -> window_samples.Visits:
        """Times eager once more: a disturbance lasts less long than all baselines take."""
        session = self._runner.session(worker, EAGER)
        visits = self._expect(session)
        session.close()
        return visits

    def _calibrate(self, session: Session) -> None:
        for i in range(2):
            self._runner.contents.new_process()
            window = session.run(
                "fresh", self._runner.contents.take(self._runner.plan.fresh), identity=True
            )
            if i > 0:  # the first touches what the others find touched
                self.overhead.add_identity(window)

    def _expect(self, session: Session) -> window_samples.Visits:
        """Runs eager over every content: expected outputs, and the sentinel."""
        pool = self._runner.contents
        pool.new_process()
        samples: list[window_samples.Sample] = []
        window = session.run("fresh", pool.take(self._runner.warm))
        pool.set_expected(window)
        while pool.left():
            window = session.run("fresh", pool.take(self._runner.plan.fresh))
            pool.set_expected(window)
            if 2 * window.calls >= self._runner.plan.fresh:
                seen = window_samples.Sample.of(window)
                self.overhead.add(seen)
                samples.extend(seen)
        for _ in range(4):
            pool.new_process()
            window = session.run("chained", pool.take(self._runner.plan.other))
            seen = window_samples.Sample.of(window)
            self.overhead.add(seen)
            samples.extend(seen)
        visits = window_samples.Visits([samples])
        self.usual = window_samples.Alone.of(samples)
        self.overhead.end_session()
        return visits

    def assess(
        self, visits: window_samples.Visits, spawn: Callable[[str], TimedWorker]
    ) -> clocks.Assessed:
        """Assesses the clocks of a candidate, no process of which may exist."""
        assessed = clocks.assess_clocks(visits, self.overhead, self.usual)
        if not (assessed.marked or assessed.off) or self._recalibrated:
            return assessed
        self._recalibrated = True
        # Was the machine another one when eager was timed? Time it again: if the cost of windows
        # has changed, its noise now says so.
        with of_a_baseline():
            worker = spawn(EAGER)
            try:
                self.again(worker)
            finally:
                worker.kill()
        return clocks.assess_clocks(visits, self.overhead, self.usual)

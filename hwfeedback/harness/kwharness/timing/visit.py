"""One visit of a process: windows of the pattern, for about so long."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kwharness.timing import window_samples
from kwharness.timing.window import Window
from kwharness.timing.window_runner import PATTERN, REPETITIONS, Runner
from kwharness.timing.window_session import Session

Settled = Callable[[list[window_samples.Sample]], bool]


class Visit:
    """Windows of a session, after ``Runner.warm_up``, and what they gave.

    A trusted worker may meet contents again; an untrusted one stops when they are used up.
    """

    def __init__(self, runner: Runner, session: Session, *, checked: bool, trusted: bool) -> None:
        """``checked``: whether outputs are checked, and inputs come that verification met."""
        self._runner, self._session = runner, session
        self._checked, self._trusted = checked, trusted
        self.samples: list[window_samples.Sample] = []
        self.wrong: str | None = None  # one sentence, where an output is
        self.last: Window | None = None  # to be checked when its process is gone
        self._varied: list[list[int]] = []
        self._over = False
        self._fresh = self._calls = self._extra = 0

    def run(
        self, seconds: float, owed: int = REPETITIONS, settled: Settled | None = None
    ) -> list[window_samples.Sample]:
        """Runs the pattern for about this long.

        ``owed`` repetitions are made even if they take longer, but not thrice as long. ``settled``
        is asked what the samples tell, whenever they are twice as many: then the rest is not made,
        but for inputs that verification met.
        """
        now = time.perf_counter()
        end = now + seconds
        hard = end + 2 * seconds
        self._varied = self._runner.varied() if self._checked else []
        # One of them comes when the visit is over, the others when nobody knows.
        due = sorted(now + seconds * self._runner.random.random() for _ in self._varied[1:])
        kinds = itertools.cycle(PATTERN)
        look = PATTERN.count("fresh")  # all kinds have come then
        while True:
            now = time.perf_counter()
            enough = self._fresh >= window_samples.MIN_FRESH and (self._calls >= owed or now > hard)
            self._over = self._over or (now > end and enough)
            if settled is not None and not self._over and enough and self._fresh >= look:
                look = 2 * self._fresh
                self._over = settled(self.samples)
            if self._over and not self._varied:
                break
            if self._over or (due and now > due[0]):
                kind = "varied"
                del due[:1]
            else:
                kind = next(kinds)
            rows = self._rows(kind)
            if rows is None:
                self._over = True
            elif rows and not self._window(kind, rows):
                break
        return self.samples

    def _rows(self, kind: str) -> Sequence[int] | None:
        """Returns the contents of the next window, None where they are used up."""
        runner, pool = self._runner, self._runner.contents
        n = runner.plan.calls(kind)
        if kind == "repeat":
            return pool.met(n)
        if kind == "varied":
            some = self._varied.pop() if self._varied else []
            rows = [*some, *(pool.take(n - len(some)) if n >= 4 else ())]
            runner.random.shuffle(rows)
            return rows
        if pool.left() < n:
            if not self._trusted:
                return None
            pool.new_process()
            pool.take(runner.warm)
        return pool.take(n)

    def _window(self, kind: str, rows: Sequence[int]) -> bool:
        """Runs one window. Returns False where an output of it is wrong."""
        window = self._session.run(kind, rows)
        ends = kind == "varied" and self._over and not self._varied
        if self._checked and self._runner.contents.large and ends:
            # Its instructions are counted after it, on a CPU, in further windows.
            on_cores = self._runner.device.on_cores
            self.last = replace(window, raw=window.raw.clone() if on_cores else window.raw)
        elif self._checked:
            self.wrong = self._runner.checks.timed(window)
            if self.wrong is not None:
                return False
        self.samples.extend(window_samples.Sample.of(window))
        if kind != "fresh":
            return True
        if window.disturbed() and self._extra < 2 * window_samples.MIN_FRESH:
            self._extra += 1  # measured again by not counting it
            return True
        self._fresh += 1
        self._calls += self._runner.plan.calls(kind)
        return True

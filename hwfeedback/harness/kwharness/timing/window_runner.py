"""Opens sessions over one pool of contents, and sizes their windows."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import torch

from kwharness.machine.device import Device
from kwharness.timing import budgets, device_timing, window_samples
from kwharness.timing.baselines import EAGER
from kwharness.timing.input_pool import Contents
from kwharness.timing.window import Window
from kwharness.timing.window_session import Options, Redrawn, Session, TimedWorker

Check = Callable[[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]], str | None]
CheckVaried = Callable[[int, list[torch.Tensor]], str | None]

# Nine fresh windows of twelve; the rest look for what a time alone would not show. Varied windows
# come between them, nobody knows where.
PATTERN = (
    "fresh", "fresh", "chained", "fresh", "fresh", "fresh",
    "repeat", "fresh", "chained", "fresh", "fresh", "fresh",
)  # fmt: skip
# Contents of a task whose contents are not kept: each costs many times a call.
REDRAWN = {"quick": 8, "certify": 16}
REPETITIONS = 50
VARIED_WINDOWS = 4  # of a visit


class Checks:
    """Has the outputs of timed calls checked."""

    def __init__(self, contents: Contents, check: Check) -> None:
        self._contents = contents
        self.check = check
        self.varied: CheckVaried | None = None  # of what the candidate was verified on

    def timed(self, window: Window) -> str | None:
        """Returns one sentence where an output of a window is wrong that counts."""
        wrong = self.window(window)
        return None if wrong is None else f"in a timed call: {wrong}"

    def window(self, window: Window) -> str | None:
        """Returns one sentence where an output of a window is wrong."""
        rows, outputs = window.rows, window.outputs()
        drawn = [i for i, row in enumerate(rows) if row >= 0]
        if len(drawn) < len(rows):
            for i, row in enumerate(rows):
                if row < 0 and self.varied is not None:
                    wrong = self.varied(-1 - row, [t[i] for t in outputs])
                    if wrong is not None:
                        return wrong
            rows, outputs = [rows[i] for i in drawn], [t[drawn] for t in outputs]
        if not drawn:
            return None
        return self.check(self._contents.inputs(rows), outputs, self._contents.expected(rows))


class Runner:
    """One pool of contents, how many calls a window of it has, and the state of the caches."""

    def __init__(
        self,
        level: str,
        device: Device,
        budget: budgets.Budget,
        contents: Contents,
        checks: Checks,
        llc_bytes: int | None,
    ) -> None:
        """``llc_bytes`` is the size of the last-level cache; None reads it from the system."""
        self.level = level
        self.device = device
        self.budget = budget
        self.contents = contents
        self.checks = checks
        self.plan = budgets.Plan(1, 1)
        self.warm = 1  # contents on which a process is warmed up
        self.ahead: int | None = None  # how many calls eager is known to ask for at once
        self.random = random.SystemRandom()
        self.how = device_timing.of(device)
        self._evict, self._cold = self.how.flush(contents.slots, llc_bytes)

    def session(self, worker: TimedWorker, mode: str, calls: int | None = None) -> Session:
        """Begins a session of a worker, of as many calls a window as are planned or as given."""
        # A baseline may compile at its first call; a candidate was verified before it is timed.
        timeout = 600.0 if mode else 60.0
        session = self.how.session(
            worker,
            self.contents,
            self.plan.capacity if calls is None else calls,
            Options(self._evict, mode, self._cold, timeout),
        )
        session.ahead = self.ahead
        return session

    def warm_up(self, session: Session, *, trusted: bool) -> str | None:
        """Runs calls that count for nothing, on contents that no timed call will get."""
        self.contents.new_process()
        rows = self.contents.take(self.warm)
        last = math.inf
        end = time.perf_counter() + self.budget.warm_s
        for i in range(20):
            window = session.run("fresh", rows)
            if not trusted and i == 0:
                wrong = self.checks.window(window)
                if wrong is not None:
                    return wrong
            # Caches of code, allocator and branch predictor have settled when it stops falling.
            steady = window.event_mean_ns > 0.95 * last
            last = window.event_mean_ns
            if (steady and (i + 1) * window.calls >= 3) or time.perf_counter() > end:
                break
        return None

    def first_calls(self, worker: TimedWorker) -> tuple[float, float]:
        """Returns what a call of eager takes, and with all that its window costs, nanoseconds."""
        pool = self.contents
        pool.grow(3)
        pool.new_process()
        session = self.session(worker, EAGER, 1)
        # The referee, too, loads what it uses when it is first used.
        first = [session.run("fresh", [i % 3]) for i in range(self.how.first_windows)]
        self.ahead = session.ahead
        session.close()
        call, cost = min(w.event_mean_ns for w in first[1:]), min(w.wall_ns for w in first[1:])
        return call, cost

    def size(self, call: float, cost: float) -> None:
        """Sets calls per window, and draws the contents. ``call`` is what eager's takes, ``cost``
        that with all that its window costs, nanoseconds.
        """
        pool = self.contents
        chosen = budgets.plan(call, pool.slots, self.budget)
        total = self._contents_for(chosen, cost)
        chosen = self.how.bounded(chosen)
        deadline = time.perf_counter_ns() + int(self.budget.draw_s * 1e9)
        pool.grow(self.warm + min(total, window_samples.MIN_FRESH + 4))
        pool.grow(self.warm + total, deadline)
        drawn = len(pool) - self.warm
        # Fewer calls a window rather than fewer windows: an interval needs windows.
        if self._cold or isinstance(pool, Redrawn):
            chosen = budgets.Plan(1, 1)
        other = max(min(chosen.other, drawn // 8), 1)
        most = (drawn - 2 * other) // self.how.windows
        self.plan = budgets.Plan(max(min(chosen.fresh, most), 1), other)
        self.warm = max(1, min(self.plan.other, drawn // 8))

    def _contents_for(self, chosen: budgets.Plan, cost: float) -> int:
        """Returns how many contents are wanted."""
        pool = self.contents
        seconds = max(self.budget.candidate_s, self.budget.visit_s * 2)
        # Writing, mapping and checking a content costs about as much again as its call's wall.
        enough = max(int(seconds * 1e9 / max(2 * cost, 1)), REPETITIONS if cost < 2e6 else 1)
        windows = 3 * len(PATTERN)
        total = min(enough, windows * chosen.fresh, device_timing.MAX_CONTENTS)
        total = max(total, window_samples.MIN_FRESH + 4)
        total = min(total, self.how.most_contents(self.level, cold=self._cold))
        if isinstance(pool, Redrawn):
            total = min(total, REDRAWN[self.level])
        else:
            room = min(self.budget.pool_bytes, self.device.pool_bytes())
            total = min(total, room // pool.slots.bytes)
        return max(total, 4)

    def varied(self) -> list[list[int]]:
        """Returns the varied rows, in no order, by the window that they come in.

        A window of some calls has as many others, so that nobody can tell it by its first call.
        """
        n = self.plan.fresh
        # Some windows at least, so that they are spread over a visit.
        some = max(math.ceil(len(self.contents.varied) / VARIED_WINDOWS), 1)
        own = min(n if n < 4 else n // 2, some)
        left = list(self.contents.varied)
        self.random.shuffle(left)
        if self.level == "certify":
            left = left[: math.ceil(len(left) / 2)]  # there are as many visits as rounds
        return [left[i : i + own] for i in range(0, len(left), own)]

"""Rounds of A B B A: a candidate between baselines that take turns with it."""

from __future__ import annotations

import time
from collections.abc import Callable

from kwharness.base import stats
from kwharness.base.verdicts import Speedup
from kwharness.timing import baselines, clocks, window_samples
from kwharness.timing.candidate_visits import CandidateVisits
from kwharness.timing.known_baselines import KnownBaselines
from kwharness.timing.measurement import half_width, rounds_of
from kwharness.timing.sentinel import Sentinel
from kwharness.timing.turns import ROUNDS, Turns, of_a_baseline
from kwharness.timing.window_runner import REPETITIONS

LARGE_ROUNDS = 4  # of a task whose contents are not kept: its calls take milliseconds each
MAX_ROUNDS = 16
QUICK_ROUNDS = 3  # where a noisy machine shows a win
NARROW = 0.02  # half-width of a speedup at which certify stops: wins of 10 % are then seen

Log = Callable[[str], None]


class Rounds:
    """The rounds of one candidate, and what follows from them."""

    def __init__(
        self,
        turns: Turns,
        known: KnownBaselines,
        sentinel: Sentinel,
        candidate: CandidateVisits,
        seed: int,
    ) -> None:
        self._turns, self._known, self._sentinel = turns, known, sentinel
        self._candidate = candidate
        self._seed = seed
        self._names = baselines.contenders(known.records)
        self._pairs: list[window_samples.Pair] = []
        self._base = {n: window_samples.Visits() for n in self._names}
        self._rounds: dict[str, list[stats.Round]] = {n: [] for n in self._names}
        self._wall: dict[str, list[stats.Round]] = {n: [] for n in self._names}
        self.visits = window_samples.Visits()  # the candidate's
        self.assessed = clocks.Assessed("event")

    def run(self, visit_s: float, rounds_s: float, least: int, most: int, log: Log) -> str | None:
        """Runs rounds until their interval is narrow, or ``rounds_s`` are over. Returns one
        sentence where an output is wrong.
        """
        end = time.perf_counter() + rounds_s
        try:
            for r in range(most):
                log(f"round {r + 1}")
                wrong = self._round(r, visit_s)
                if wrong is not None:
                    return wrong
                if r + 1 < least:
                    continue
                self._assess()
                if self._width() <= NARROW or time.perf_counter() > end:
                    break
        finally:
            self._turns.end()
        return None

    def _round(self, r: int, visit_s: float) -> str | None:
        with of_a_baseline():
            before = {n: self._turns.before(n, r) for n in self._names}
        block, wrong = self._candidate.visit(2 * visit_s, REPETITIONS // ROUNDS)
        self.visits.blocks.append(block)
        if wrong is not None:
            return wrong
        with of_a_baseline():
            after = {n: self._turns.after(n, r) for n in reversed(self._names)}
        pair = window_samples.Pair(before, block, after)
        pair.pay()
        self._pairs.append(pair)
        for n in self._names:
            self._base[n].blocks.append(pair.of(n))
        return None

    def _assess(self) -> None:
        """Assesses the clocks by what windows cost in these rounds."""
        names, pairs = self._names, self._pairs
        overhead = self._sentinel.overhead.paired(pairs)
        usual = [window_samples.Alone.of([s for p in pairs for s in p.of(n)]) for n in names]
        busiest = max(usual, key=lambda u: u.more_ns)
        # On a GPU calls one by one are held against eager's.
        self.assessed = clocks.assess_clocks(
            self.visits, overhead, self._sentinel.usual if overhead.turns else busiest
        )
        clock = self.assessed.clock
        self._rounds = {n: rounds_of(pairs, n, clock, overhead) for n in names}
        self._wall = {n: rounds_of(pairs, n, "wall", overhead) for n in names}

    def _width(self) -> float:
        """Returns half the width of the widest interval."""
        intervals = (stats.paired_speedup(r, self._seed) for r in self._rounds.values())
        return max(half_width(i) for i in intervals)

    def speedups(self) -> tuple[dict[str, Speedup], list[str]]:
        """Returns the speedups by baseline, and notes. What is known of baselines is then that they
        took turns.
        """
        found: dict[str, Speedup] = {}
        notes: list[str] = []
        known, overhead = self._known, self._sentinel.overhead
        for visits in self._base.values():
            loud = [s.disturbed for s in visits.kind("fresh")]
            self.assessed.busy = self.assessed.busy or 2 * sum(loud) > len(loud)
        for n in self._names:
            interval = stats.paired_speedup(self._rounds[n], self._seed)
            low = min(interval.low, stats.paired_speedup(self._wall[n], self._seed).low)
            above, note = known.above_solo(n, self._base[n], overhead)
            notes += [note] if note else []
            found[n] = Speedup(interval.value, low / above, interval.high, n)
        known.took_turns(self._base, overhead)
        for n in known.records:
            if n not in found:
                found[n] = known.against(n, self.visits, self.assessed.clock, overhead)
        return found, notes

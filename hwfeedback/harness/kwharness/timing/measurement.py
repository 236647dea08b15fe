"""What windows say in the end: a participant's time, and a speedup with what it cannot exclude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kwharness.attribution.stack_samples import Seen
from kwharness.base import stats
from kwharness.base.learned import Record
from kwharness.base.verdicts import Measurement, Speedup, TimingReport
from kwharness.machine import nvml
from kwharness.timing import clocks, window_samples


def measurement(
    visits: window_samples.Visits,
    overhead: window_samples.Overhead,
    clock: str = "event",
    seed: int = 0,
) -> Measurement:
    """Raises ValueError when there are no fresh windows."""
    blocks = visits.times(clock, overhead)
    interval = stats.time_interval(blocks, seed)
    pooled = [t for b in blocks for t in b]
    fresh = visits.kind("fresh")
    found = Measurement(
        median_ms=interval.value,
        p25_ms=stats.quantile(pooled, 0.25),
        p75_ms=stats.quantile(pooled, 0.75),
        low_ms=interval.low,
        high_ms=interval.high,
        repetitions=sum(s.calls for s in fresh),
        clock="event" if clock == "event" else "wall",
        event_ms=stats.median([s.event for s in fresh]) / 1e6,
        wall_ms=stats.median([overhead.wall(s) for s in window_samples.quieter(fresh)]) / 1e6,
    )
    alone = visits.kind("chained")
    if alone and overhead.turns:
        found.latency_ms = window_samples.typical("chained", [s.event for s in alone]) / 1e6
    return found


@dataclass
class Timed:
    """What ``measure`` gives. ``wrong`` says what check found; then nothing else counts."""

    report: TimingReport
    speedups: dict[str, Speedup]  # by baseline
    speedup: Speedup | None  # against the fastest
    records: dict[str, Record]  # of baselines, for the next evaluation
    metrics: dict[str, float]
    wrong: str | None = None
    hides: str = ""  # one sentence where it hides work from its own clock
    excess: str = ""  # one sentence where it uses more cores than it was given
    seen: Seen = field(default_factory=Seen)  # whose code was at work in its calls


def rounds_of(
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


def bounded(speedup: Speedup, assessed: clocks.Assessed) -> Speedup:
    """Returns a speedup with what its interval cannot exclude: see the module."""
    low, high = speedup.low * assessed.alone, speedup.high
    if assessed.doubtful or assessed.busy:
        low = min(low, 1.0)
    if assessed.busy:
        high = max(high, 1.0)
    return replace(speedup, low=low, high=high)


def felt(now: nvml.Reading, fresh: Sequence[window_samples.Sample]) -> dict[str, float]:
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


def half_width(interval: stats.Interval) -> float:
    return math.sqrt(interval.high / interval.low) - 1

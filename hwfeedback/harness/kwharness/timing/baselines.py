"""Baselines: what a candidate is held against, and when a time measured earlier still counts.

A record is what the cache keeps of one baseline: its measurement, and the milliseconds of every
window by process, from which intervals are made again. The cache keys records by task, device,
versions and precision; this module checks what it cannot know: the protocol and the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from kwharness.base import stats
from kwharness.base.constants import SHARED
from kwharness.base.learned import Record
from kwharness.base.verdicts import Measurement, Speedup

PROTOCOL = 7  # of windows and timing: times of another protocol are not comparable
NAMES = tuple(SHARED.baselines)
EAGER = NAMES[0]

SENTINEL = 0.02  # how far eager may be off its cached time
REMEASURE = 0.25  # past this the machine is another one
CONTENDERS = 2
NEAR = 0.10  # a baseline this close to the fastest is interleaved too


class BaselineFailed(Exception):
    """Eager could not be timed: then there is nothing to compare with."""


def record(
    measurement: Measurement, blocks: stats.Blocks, threads: int, window_ns: float
) -> Record:
    """Returns what the cache keeps of a baseline."""
    return Record(window_ns, PROTOCOL, threads, measurement, [list(b) for b in blocks])


def earlier(measurement: Measurement, ratio: float) -> Measurement:
    """Returns a cached measurement as it would be now, ``ratio`` being the drift since."""
    of = {f.name: getattr(measurement, f.name) for f in fields(Measurement)}
    times = {n: v * ratio for n, v in of.items() if n.endswith("_ms") and v is not None}
    return replace(measurement, **times, earlier=True)


def comparable(r: Record, threads: int) -> bool:
    """Whether times of today can be compared with what was kept."""
    same = r.protocol == PROTOCOL and r.threads == threads
    return same and any(r.blocks) and all(t > 0 for b in r.blocks for t in b)


def contenders(records: dict[str, Record]) -> list[str]:
    """Returns the fastest baseline and the next if it is close, fastest first."""
    solo = {n: r.measurement.median_ms for n, r in records.items()}
    order = sorted(solo, key=lambda n: solo[n])
    near = [n for n in order if solo[n] <= (1 + NEAR) * solo[order[0]]]
    return near[:CONTENDERS]


@dataclass(frozen=True)
class Drift:
    """Eager now over eager when it was cached."""

    ratio: float  # 1.0 where the two agree
    again: bool  # the cached times are worth nothing now
    note: str = ""


def drift(now: stats.Blocks, cached: Record, seed: int = 0) -> Drift:
    """Compares the sentinel with the cached eager.

    They agree within 2 %, or where the 95 % interval of their ratio holds 1: on a noisy machine a
    short measurement cannot tell more.
    """
    ratio = stats.speedup(now, cached.blocks, seed)
    off = abs(math.log(ratio.value))
    if off <= math.log1p(SENTINEL) or ratio.low <= 1.0 <= ratio.high:
        return Drift(1.0, False)
    said = f"eager takes {ratio.value:.2f} times as long as when the baselines were measured: "
    if off > math.log1p(REMEASURE):
        return Drift(1.0, True, said + "they are measured again")
    said += "their times are scaled by that, and the intervals hold both"
    return Drift(ratio.value, False, said)


def against(
    name: str, cached: Record, candidate: stats.Blocks, ratio: float, seed: int = 0
) -> Speedup:
    """Returns the speedup over a baseline that was measured at another time.

    ``ratio`` is the drift since then: it moves the value, and the interval holds the speedup with
    and without it, since not every program drifts as eager does.
    """
    interval = stats.speedup(cached.blocks, candidate, seed)
    low, high = interval.low * min(ratio, 1.0), interval.high * max(ratio, 1.0)
    return Speedup(interval.value * ratio, low, high, name)

"""What the clocks of a participant say of each other: findings, and the time that counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kwharness.base import stats
from kwharness.base.constants import SHARED
from kwharness.timing import window_samples

WAKES = 0.8  # a share that is less is no matter of waking: work is shared between calls
HIDES_NS = 50_000


@dataclass
class Assessed:
    """Which clock counts for a participant, and what was found about it."""

    clock: str
    marked: bool = False
    notes: list[str] = field(default_factory=list)
    doubtful: bool = False  # a win by this time is none
    noisy: bool = False  # the machine is not quiet enough for what comes one after the other
    hides: str = ""  # one sentence where work is hidden from the worker's clock
    alone: float = 1.0  # its time over that of calls one by one: the lower end of a win pays for it
    disturbed: bool = False  # most of its windows were, or too few were not
    busy: bool = False  # so it was, or the baselines': nobody wins or loses by such a time
    off: bool = False  # the referee's clock shows too little: its calibration is another machine's


@dataclass(frozen=True)
class _Read:
    """A participant's fresh windows, as its own clock and the referee's show them. Nanoseconds."""

    fresh: list[window_samples.Sample]
    quiet: list[window_samples.Sample]  # those that nobody disturbed
    event: float
    wall: float
    gap: float  # of a call, between the two
    spread: float  # by how much that may be off,
    noise: float  # and by how much in one window

    @classmethod
    def of(cls, visits: window_samples.Visits, overhead: window_samples.Overhead) -> _Read:
        fresh = visits.kind("fresh")
        wall = stats.median([overhead.wall(s) for s in window_samples.quieter(fresh)])
        gaps = [overhead.wall(s) - s.event for s in window_samples.quieter(fresh)]
        spread = (stats.quantile(gaps, 0.75) - stats.quantile(gaps, 0.25)) / math.sqrt(len(gaps))
        spread = math.hypot(spread, overhead.off(fresh[0].like, len(fresh)))
        return cls(
            fresh,
            [s for s in fresh if not s.disturbed],
            stats.median([s.event for s in fresh]),
            wall,
            stats.median(gaps),
            spread,
            overhead.noise(fresh[0].like) + spread,
        )


def assess_clocks(
    visits: window_samples.Visits,
    overhead: window_samples.Overhead,
    usual: window_samples.Alone = window_samples.NOTHING_MORE,
) -> Assessed:
    """Compares the clocks. ``usual`` is what a call takes more that comes alone."""
    read, assessed = _Read.of(visits, overhead), Assessed("event")
    _disagree(assessed, read)
    _hidden(assessed, read, overhead)
    _noisy(assessed, read)
    if overhead.turns:
        _one_by_one_on_a_gpu(assessed, read, visits, overhead, usual)
    else:
        _one_by_one(assessed, read, visits, overhead, usual)
    _remembered(assessed, read, visits)
    _disturbed(assessed, read, overhead)
    return assessed


def _disagree(assessed: Assessed, read: _Read) -> None:
    """Which clock counts.

    Where wall is the lower one its calibration is off: nobody gains by claiming more time. Where
    the machine is too noisy to tell, wall counts all the same, and nobody is blamed.
    """
    agree = window_samples.AGREE * read.event
    over = read.gap - agree - window_samples.AGREE_NS
    if over > read.spread:
        assessed.clock = "wall"
        assessed.marked = over > read.noise
        assessed.notes.append(
            f"the clocks disagree: event {_us(read.event)}, wall {_us(read.wall)} a call; "
            "wall decides"
        )
    assessed.off = read.gap < -agree - window_samples.AGREE_NS


def _hidden(assessed: Assessed, read: _Read, overhead: window_samples.Overhead) -> None:
    """Whether work is hidden from the worker's clock."""
    quiet = read.quiet
    hiding = [
        s
        for s in quiet
        if s.event < window_samples.HIDES * overhead.wall(s) - HIDES_NS / s.calls - read.noise
        and overhead.worked(s)
    ]
    if len(quiet) >= window_samples.MIN_FRESH and len(hiding) > 0.75 * len(quiet):
        assessed.hides = (
            f"its own clock shows {_us(read.event)} a call where {_us(read.wall)} passed: "
            "work is hidden from the clock"
        )


def _noisy(assessed: Assessed, read: _Read) -> None:
    """Whether the machine is quiet enough for what comes one after the other."""
    if read.noise > 0.05 * read.event:
        assessed.noisy = True
        assessed.notes.append(
            f"the referee's clock resolves {_us(read.noise)} here, over 5 % of the time: "
            f"{SHARED.asks_again}"
        )


def _one_by_one_on_a_gpu(
    assessed: Assessed,
    read: _Read,
    visits: window_samples.Visits,
    overhead: window_samples.Overhead,
    usual: window_samples.Alone,
) -> None:
    """Holds calls that come one by one, with the host's work, against eager's."""
    if overhead.walls.get("fresh") and any(s.alone for s in read.fresh):
        assessed.clock, assessed.doubtful = "most", True
        assessed.notes.append(
            "its forward waits for the GPU, or has several streams and inputs that are large, and "
            "eager's does not: its time is that of calls one by one, with the host's work"
        )
        return
    chained = visits.kind("chained")
    if not chained:
        return
    # No call of these windows knows the next one's input. What is left is the host's work.
    latency = window_samples.typical("chained", [s.event for s in chained])
    if latency > (1 + window_samples.AGREE) * usual.single_ns + window_samples.ALONE_NS:
        assessed.doubtful = True
        assessed.notes.append(
            f"calls that come one by one take {_us(latency)} with the host's work, "
            f"eager's {_us(usual.single_ns)}: what wins one by losing the other is not faster"
        )


def _one_by_one(
    assessed: Assessed,
    read: _Read,
    visits: window_samples.Visits,
    overhead: window_samples.Overhead,
    usual: window_samples.Alone,
) -> None:
    """Whether calls that come one by one take longer than a batch's, or than the worker says."""
    chained = visits.kind("chained")
    if not chained:
        return
    chosen = max(read.wall, read.event) if assessed.clock == "wall" else read.event
    single = 3 * overhead.noise("chained")
    least = max(usual.removed(overhead.alone(chained)), 1.0)
    assessed.alone = min(1.0, 1.05 * chosen / least)
    alone = window_samples.typical(
        "chained", [max(s.event, overhead.wall(s) - single) for s in chained]
    )
    hidden = window_samples.typical("chained", [overhead.wall(s) - s.event for s in chained])
    if alone > 1.5 * usual.added(chosen) + window_samples.ALONE_NS + single:
        assessed.marked = assessed.doubtful = True
        assessed.notes.append(
            f"calls one by one take {_us(alone)} each, in a batch {_us(chosen)}: "
            "work may be shared between calls"
        )
    elif hidden > window_samples.AGREE * alone + window_samples.HIDDEN_NS + single:
        assessed.marked = True
        assessed.notes.append(
            f"calls one by one take {_us(hidden)} more than the worker's clock says"
        )


def _remembered(assessed: Assessed, read: _Read, visits: window_samples.Visits) -> None:
    """Whether a content that was met before is faster."""
    again, event = [s.event for s in visits.kind("repeat")], read.event
    if len(again) >= 2 and stats.median(again) < 0.5 * event and event > 10_000:
        assessed.marked = assessed.doubtful = True
        assessed.notes.append(
            f"content met before takes {_us(stats.median(again))}, new content {_us(event)}: "
            "results may be remembered"
        )


def _disturbed(assessed: Assessed, read: _Read, overhead: window_samples.Overhead) -> None:
    """Whether too many windows were disturbed."""
    fresh = read.fresh
    disturbed = len(fresh) - len(read.quiet)
    few = disturbed > 0 and len(read.quiet) < window_samples.MIN_FRESH
    assessed.disturbed = 2 * disturbed > len(fresh) or few
    assessed.busy = assessed.disturbed or not overhead.quiet
    if assessed.disturbed:
        why = sorted({w for s in fresh for w in s.slowed})
        told = f"the GPU slows itself down, {', '.join(why)}" if why else "the machine is busy"
        assessed.notes.append(f"{disturbed} of {len(fresh)} windows were disturbed: {told}")


def _us(ns: float) -> str:
    return f"{ns / 1000:.1f} us"

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


def assess_clocks(
    visits: window_samples.Visits,
    overhead: window_samples.Overhead,
    usual: window_samples.Alone = window_samples.NOTHING_MORE,
) -> Assessed:
    """Compares the clocks. ``usual`` is what a call takes more that comes alone."""
    fresh = visits.kind("fresh")
    event = stats.median([s.event for s in fresh])
    wall = stats.median([overhead.wall(s) for s in window_samples.quieter(fresh)])
    gaps = [overhead.wall(s) - s.event for s in window_samples.quieter(fresh)]
    spread = (stats.quantile(gaps, 0.75) - stats.quantile(gaps, 0.25)) / math.sqrt(len(gaps))
    spread = math.hypot(spread, overhead.off(fresh[0].like, len(fresh)))
    noise = overhead.noise(fresh[0].like) + spread
    assessed = Assessed("event")
    # Where wall is the lower one its calibration is off: nobody gains by claiming more time. Where
    # the machine is too noisy to tell, wall counts all the same, and nobody is blamed.
    over = stats.median(gaps) - window_samples.AGREE * event - window_samples.AGREE_NS
    if over > spread:
        assessed.clock = "wall"
        assessed.marked = over > noise
        assessed.notes.append(
            f"the clocks disagree: event {_us(event)}, wall {_us(wall)} a call; wall decides"
        )
    assessed.off = stats.median(gaps) < -window_samples.AGREE * event - window_samples.AGREE_NS
    quiet = [s for s in fresh if not s.disturbed]
    hiding = [
        s
        for s in quiet
        if s.event < window_samples.HIDES * overhead.wall(s) - HIDES_NS / s.calls - noise
        and overhead.worked(s)
    ]
    if len(quiet) >= window_samples.MIN_FRESH and len(hiding) > 0.75 * len(quiet):
        assessed.hides = (
            f"its own clock shows {_us(event)} a call where {_us(wall)} passed: "
            "work is hidden from the clock"
        )
    if noise > 0.05 * event:
        assessed.noisy = True
        assessed.notes.append(
            f"the referee's clock resolves {_us(noise)} here, over 5 % of the time: "
            f"{SHARED.asks_again}"
        )
    chosen = max(wall, event) if assessed.clock == "wall" else event
    chained = visits.kind("chained")
    if overhead.turns and overhead.walls.get("fresh") and any(s.alone for s in fresh):
        assessed.clock, assessed.doubtful = "most", True
        assessed.notes.append(
            "its forward waits for the GPU, or has several streams and inputs that are large, and "
            "eager's does not: its time is that of calls one by one, with the host's work"
        )
    elif chained and overhead.turns:
        # No call of these windows knows the next one's input. What is left is the host's work.
        latency = window_samples.typical("chained", [s.event for s in chained])
        if latency > (1 + window_samples.AGREE) * usual.single_ns + window_samples.ALONE_NS:
            assessed.doubtful = True
            assessed.notes.append(
                f"calls that come one by one take {_us(latency)} with the host's work, "
                f"eager's {_us(usual.single_ns)}: what wins one by losing the other is not faster"
            )
    elif chained:
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
    again = [s.event for s in visits.kind("repeat")]
    if len(again) >= 2 and stats.median(again) < 0.5 * event and event > 10_000:
        assessed.marked = assessed.doubtful = True
        assessed.notes.append(
            f"content met before takes {_us(stats.median(again))}, new content {_us(event)}: "
            "results may be remembered"
        )
    disturbed = len(fresh) - len(quiet)
    few = disturbed > 0 and len(quiet) < window_samples.MIN_FRESH
    assessed.disturbed = 2 * disturbed > len(fresh) or few
    assessed.busy = assessed.disturbed or not overhead.quiet
    if assessed.disturbed:
        why = sorted({w for s in fresh for w in s.slowed})
        told = f"the GPU slows itself down, {', '.join(why)}" if why else "the machine is busy"
        assessed.notes.append(f"{disturbed} of {len(fresh)} windows were disturbed: {told}")
    return assessed


def _us(ns: float) -> str:
    return f"{ns / 1000:.1f} us"

"""Times of windows, and what a window costs beside its calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kwharness.base import stats
from kwharness.timing.window import Window

MIN_FRESH = 4  # windows
COSTS = ("fresh", "alone", "chained")  # of windows: see Sample.like
USUAL = {"chained": 0.25}  # the quantile that stands for a kind of window, else the median

AGREE = 0.10  # of the time, and
AGREE_NS = 2_000
OVERHEAD_SPREAD = 0.05  # of what a window costs: by so much processes differ in it
TURNS_SPREAD = 0.002  # of what a turn on a GPU costs
# Standard deviation of what a kernel takes from one process to the next, wherever its memory lies:
# 0.10 us in 38 processes with kernels of 6 and 8 us on an H200, and half as much again for others.
PROCESSES_NS = 150.0
# The same of calls that come one by one, with the host's work, as a share of their time: 0.08 to
# 0.10 in 20 processes with a forward of 70 us that waits for an H200.
PROCESSES_ALONE = 0.1
ALONE_NS = 5_000
HIDDEN_NS = 20_000  # by so much processes differ in what it costs to wake one for a single call
HIDES = 0.5  # a worker whose clock shows less than this share of what passed hides work
SURE = 0.8  # of what calls one by one seem to take counts however noisy the clock is


@dataclass
class Sample:
    """What is kept of a window, or of one of its calls, once its outputs were checked."""

    kind: str
    calls: int
    event: float  # mean nanoseconds of a call
    outer: float  # the same by the referee's clock, with all that a window costs
    cpu: float  # nanoseconds of CPU time of a call, likewise
    disturbed: bool
    cost: float | None = None  # of its window, of a call, seen at the same time in baselines
    alone: bool = False  # its calls came one by one
    turns: bool = False  # they took turns on a GPU
    slowed: Sequence[str] = ()  # why the GPU had slowed itself down

    @classmethod
    def of(cls, window: Window) -> list[Sample]:
        """Returns a sample for each time the referee's clock ran."""
        n = window.calls
        cpu, disturbed = window.cpu_ns / n, window.disturbed()
        several = [(window.event_mean_ns, window.wall_ns / n, n)]
        if len(window.walls_ns) == n:
            pairs = zip(window.event_ns, window.walls_ns, strict=True)
            several = [(float(event), float(wall), 1) for event, wall in pairs]
        return [
            cls(
                window.kind,
                calls,
                event,
                wall,
                cpu,
                disturbed,
                alone=window.alone,
                turns=window.turns,
                slowed=window.slowed,
            )
            for event, wall, calls in several
        ]

    @property
    def like(self) -> str:
        """The kind of window that costs the same: ``chained``, ``fresh``, or ``alone`` where calls
        came one by one all the same.
        """
        return "chained" if self.kind == "chained" else "alone" if self.alone else "fresh"


def quieter(samples: Iterable[Sample]) -> list[Sample]:
    """Returns those by which the referee's clock is read: of turns on a GPU the half that took
    least.

    What disturbs them adds the same to many in a row: 8 us a call while the driver wipes what a
    process has left. Nobody gains by it: no turn is over before its work is done.
    """
    found = list(samples)
    if not all(s.turns for s in found):
        return found
    found.sort(key=lambda s: s.outer)
    return found[: max(len(found) // 2, MIN_FRESH)]


def costs_like(kind: str, by: Mapping[str, object]) -> str:
    """Returns of which kind windows were seen that cost what one of this kind does: where eager's
    calls took turns none came alone but the chained ones.
    """
    return "chained" if kind == "alone" and not by.get("alone") else kind


def typical(kind: str, values: Sequence[float]) -> float:
    """Returns what windows of a kind usually show.

    Of calls that come one by one it is the lower quartile. What wakes a process, on a machine that
    has put its core to sleep, is now and then a multiple of what it computes. Nobody gains by it: a
    call's input does not exist before the last one's output was collected, so each call does its
    work within its own time.
    """
    return stats.quantile(values, USUAL.get(kind, 0.5))


@dataclass(frozen=True)
class Alone:
    """What a call takes more that comes alone than one in a row: caches were lost, and cores have
    to wake. Seen in baselines; of a short call most is the same for everybody, of a long one it
    grows with the call.
    """

    ratio: float = 1.0
    more_ns: float = 0.0
    single_ns: float = math.inf  # what such a call takes

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Alone:
        """Returns what a baseline's samples show: nothing where one kind is missing."""
        fresh = [s.event for s in samples if s.kind == "fresh"]
        chained = [s.event for s in samples if s.kind == "chained"]
        if not fresh or not chained:
            return cls()
        row, single = max(stats.median(fresh), 1.0), typical("chained", chained)
        return cls(max(single / row, 1.0), max(single - row, 0.0), single)

    def added(self, ns: float) -> float:
        """Returns what a call takes alone that takes so long in a row."""
        return max(ns * self.ratio, ns + self.more_ns)

    def removed(self, ns: float) -> float:
        """Returns what a call takes in a row at least that takes so long alone."""
        return min(ns / self.ratio, ns - self.more_ns)


NOTHING_MORE = Alone()


@dataclass
class Overhead:
    """What a window costs beside its calls, per call, by kind.

    Seen in windows of eager, whose own clock is trusted: its forward allocates outputs and leaves
    the caches as a candidate's does.
    """

    walls: dict[str, list[float]] = field(default_factory=dict)
    cpus: list[float] = field(default_factory=list)  # of windows that compute nothing
    least: dict[str, float] = field(default_factory=dict)  # what they cost in the quietest session
    quiet: bool = True  # in one session at least most windows were not disturbed
    turns: bool = False  # fresh windows are turns on a GPU
    _session: list[list[Sample]] = field(default_factory=list)  # by window

    def add(self, window: list[Sample]) -> None:
        self._session.append(window)

    def end_session(self) -> None:
        """Closes the windows that were added since the last call: one process, one time."""
        first = not self.least
        samples = [s for w in self._session for s in w]
        for kind in {s.like for s in samples}:
            costs = [s.outer - s.event for s in quieter(s for s in samples if s.like == kind)]
            self.walls.setdefault(kind, []).extend(costs)
            spread = stats.quantile(costs, 0.75) - stats.quantile(costs, 0.25)
            low = typical(kind, costs) - 1.5 * spread / math.sqrt(len(costs))
            self.least[kind] = min(low, self.least.get(kind, low))
        disturbed = sum(w[0].disturbed for w in self._session)
        calm = 2 * disturbed <= len(self._session)
        self.quiet = calm or (self.quiet and not first)
        self._session.clear()

    def add_identity(self, window: Window) -> None:
        self.cpus.append(window.cpu_ns / window.calls)

    def wall(self, s: Sample) -> float:
        """Returns a sample's time by the referee's clock, less what its window costs."""
        if s.cost is not None:
            return max(s.outer - s.cost, 0.0)
        kind = costs_like(s.like, self.walls)
        values = self.walls.get(kind, [])
        return max(s.outer - (typical(kind, values) if values else 0.0), 0.0)

    def most(self, s: Sample) -> float:
        """Returns what a sample may have taken at most: no window costs less than the quietest.

        One whose cost was seen at the same time needs no such guess.
        """
        if s.cost is not None:
            return self.wall(s)
        return max(s.outer - max(self.least.get(costs_like(s.like, self.least), 0.0), 0.0), 0.0)

    def alone(self, chained: Sequence[Sample]) -> float:
        """Returns what a call takes one by one at least, nanoseconds."""
        event = typical("chained", [s.event for s in chained])
        took = typical("chained", [self.most(s) for s in chained])
        off = self.off("chained", len(chained))
        if all(s.cost is not None for s in chained):
            return max(event, took - off, 1.0)
        return max(event, took - off, SURE * took, 1.0)

    def off(self, kind: str, n: int) -> float:
        """Returns by how much the cost of n windows, of a call, may be off the usual one."""
        kind = costs_like(kind, self.walls)
        costs, q = self.walls.get(kind, []), USUAL.get(kind, 0.5)
        return stats.off_quantile(costs, min(len(costs), n), q) if costs else 0.0

    def paired(self, rounds: Sequence[Pair]) -> Overhead:
        """Returns what windows cost in these rounds: their scatter is that within a round."""
        walls: dict[str, list[float]] = {}
        for kind in COSTS:
            found = [r.costs(kind) for r in rounds]
            middle = typical(kind, [c for costs in found for c in costs] or [0.0])
            walls[kind] = [
                middle + c - typical(kind, costs) for costs in found if costs for c in costs
            ]
        return Overhead(walls, self.cpus, self.least, self.quiet, self.turns)

    def cpu(self, s: Sample) -> float:
        """Returns a fresh sample's CPU time, less what its window costs."""
        return max(s.cpu - (stats.median(self.cpus) if self.cpus else 0.0), 0.0)

    def worked(self, s: Sample) -> bool:
        """Whether its process, which has no children, computed for much of the time that passed: it
        may as well have waited for a core. Of what a GPU did the processor's time says nothing.
        """
        return self.turns or self.cpu(s) > HIDES * self.wall(s)

    def unresolved(self, samples: Sequence[Sample]) -> float:
        """Returns the factor by which a median of their times may be off by noise.

        1 where that is less than 5 %: intervals have it in them.
        """
        if not samples:
            return 1.0
        time_ = max(stats.median([s.event for s in samples]), 1.0)
        share = self.off(samples[0].like, len(samples)) / time_
        return 1.0 + share if share > 0.05 else 1.0

    def noise(self, kind: str) -> float:
        """Returns how far one window's cost is from the median, usually, at most."""
        kind = costs_like(kind, self.walls)
        values = self.walls.get(kind, [])
        if not values:
            return 0.0
        middle = typical(kind, values)
        within = stats.quantile([abs(v - middle) for v in values], 0.9)
        turns = self.turns and kind == "fresh"
        return within + (TURNS_SPREAD if turns else OVERHEAD_SPREAD) * max(middle, 0.0)


@dataclass
class Pair:
    """A round: what was measured before the candidate, the candidate, and what after it."""

    before: dict[str, list[Sample]]
    candidate: list[Sample]
    after: dict[str, list[Sample]]

    def of(self, name: str) -> list[Sample]:
        """Returns the samples of a baseline."""
        return [*self.before[name], *self.after[name]]

    def costs(self, kind: str) -> list[float]:
        """Returns what the windows of the baselines cost, of a call, nanoseconds."""
        of_all = [s for n in self.before for s in self.of(n)]
        found = quieter(s for s in of_all if s.like == kind and s.kind != "repeat")
        return [s.outer - s.event for s in found]

    def pay(self) -> None:
        """Tells the candidate's samples what their windows cost."""
        by = {kind: self.costs(kind) for kind in COSTS}
        for s in self.candidate:
            kind = costs_like(s.like, by)
            s.cost = typical(kind, by[kind]) if by[kind] else None


@dataclass
class Visits:
    """The samples of one participant: a block per process or per visit of it."""

    blocks: list[list[Sample]] = field(default_factory=list)

    def kind(self, *kinds: str) -> list[Sample]:
        return [s for b in self.blocks for s in b if s.kind in kinds]

    def times(self, clock: str, overhead: Overhead) -> list[list[float]]:
        """Returns milliseconds by block, of the fresh windows that nobody disturbed."""
        return [t for t in (times_of(b, clock, overhead) for b in self.blocks) if t]


def times_of(block: Iterable[Sample], clock: str, overhead: Overhead) -> list[float]:
    fresh = [s for s in block if s.kind == "fresh"]
    quiet = [s for s in fresh if not s.disturbed]
    # Where half are disturbed the machine is busy or the worker disturbs itself: leaving those out
    # would then choose the lucky ones.
    kept = quiet if 2 * len(quiet) >= len(fresh) else fresh
    if clock != "event":
        kept = quieter(kept)
    read = {"event": lambda s: s.event, "wall": overhead.wall, "most": overhead.most}[clock]
    return [max(read(s), 1.0) / 1e6 for s in kept]

"""The baselines of one evaluation: what is known of each, and how long it would take now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kwharness.base import stats
from kwharness.base.learned import Record
from kwharness.base.verdicts import Measurement, Speedup
from kwharness.timing import baselines, window_samples
from kwharness.timing.baselines import EAGER
from kwharness.timing.measurement import measurement, of_a_process

SOLO = 0.03


class KnownBaselines:
    """Records of baselines, measured before or in this evaluation."""

    def __init__(
        self,
        known: Mapping[str, Record],
        want: Sequence[str],
        sources: Mapping[str, str] | None,
        threads: int,
        seed: int,
    ) -> None:
        """See Timing for ``known`` and ``sources``."""
        self._sources = dict(sources or {})
        self._threads = threads
        self._seed = seed
        self.records = {
            n: r
            for n, r in known.items()
            if n in want
            and (r.source or "") == self._sources.get(n, "")
            and baselines.comparable(r, threads)
        }
        self.measured: set[str] = set()  # those measured in this evaluation
        self._drift = 1.0
        self.forget()

    def forget(self) -> None:
        """None has taken turns with a candidate yet."""
        self._since = 1.0  # the drift again, of those that took turns with the candidate
        self._shown: dict[str, Measurement] = {}  # measurements newer than the records

    def eager_s(self) -> float:
        """Returns what eager's call takes, seconds."""
        return 1e-3 * float(self.records[EAGER].measurement.median_ms)

    def stands(self, sentinel: stats.Blocks) -> tuple[bool, str]:
        """Compares eager now with eager then, and sets the drift. Returns whether the records
        stand, and a note.
        """
        found = baselines.drift(sentinel, self.records[EAGER], self._seed)
        self._drift = found.ratio
        return not found.again, found.note

    def learn(
        self, name: str, visits: window_samples.Visits, overhead: window_samples.Overhead
    ) -> None:
        """Records what a baseline was measured to take."""
        self.records[name] = baselines.record(
            measurement(visits, overhead, seed=self._seed),
            visits.times("event", overhead),
            self._threads,
            stats.median([s.outer for s in visits.kind("fresh")]),
        )
        if name in self._sources:
            self.records[name].source = self._sources[name]
        self.measured.add(name)

    def took_turns(
        self, base: Mapping[str, window_samples.Visits], overhead: window_samples.Overhead
    ) -> None:
        """Takes what those showed that took turns with a candidate, the fastest first."""
        for name, visits in base.items():
            self._shown[name] = measurement(visits, overhead, seed=self._seed)
        first = next(iter(base))
        now = base[first].times("event", overhead)
        self._since = stats.speedup(now, self.current(first), self._seed).value

    def _ratio(self, name: str) -> float:
        """Returns what a baseline would take now over what is known of it."""
        return self._since * (1.0 if name in self.measured else self._drift)

    def current(self, name: str) -> stats.Blocks:
        """Returns what is known of a baseline, as long as it would take now."""
        ratio = self._ratio(name)
        return [[t * ratio for t in b] for b in self.records[name].blocks]

    def now(self, name: str) -> Measurement:
        """Returns the measurement of a baseline, as it would be now."""
        known = self.records[name].measurement
        if name in self._shown:
            return self._shown[name]
        ratio = self._ratio(name)
        if name in self.measured and ratio == 1.0:
            return known
        return baselines.earlier(known, ratio)

    def against(
        self,
        name: str,
        visits: window_samples.Visits,
        clock: str,
        overhead: window_samples.Overhead,
    ) -> Speedup:
        """Returns the speedup against what is known of a baseline."""
        ratio = self._ratio(name)
        by = {
            c: baselines.against(
                name, self.records[name], visits.times(c, overhead), ratio, self._seed
            )
            for c in {clock, "most"}
        }
        fresh = visits.kind("fresh")
        off = overhead.unresolved(fresh)
        low = min(by[clock].low, by["most"].low / off)
        # One process of it is all that there is.
        of_one = of_a_process(fresh) if overhead.turns else 1.0
        return replace(by[clock], low=low / of_one, high=by[clock].high * of_one)

    def above_solo(
        self, name: str, visits: window_samples.Visits, overhead: window_samples.Overhead
    ) -> tuple[float, str]:
        """Returns by how much a baseline was slower than alone, where that is over the limit, and a
        note.
        """
        now = visits.times("event", overhead)
        ratio = stats.speedup(now, self.current(name), self._seed)
        above = ratio.value
        if above <= 1 + SOLO or ratio.low <= 1.0:
            return 1.0, ""
        return above, (
            f"{name} ran {100 * (above - 1):.0f} % above its solo time: "
            "the interval's lower end is lowered by as much"
        )

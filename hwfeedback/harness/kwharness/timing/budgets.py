"""How long timing may take, and in which rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kwharness.timing.window_base import Slots

CHECKING_CALLS = 8  # calls of a window that is not fresh: enough to compare, cheap to run
WINDOW_NS = 20_000_000
MAX_CALLS = 256  # of one window: past this, messages and not calls would fill the evaluation


@dataclass(frozen=True)
class Budget:
    """What a level may spend. Seconds of windows with all that belongs to them."""

    candidate_s: float
    visit_s: float  # one visit of an interleaved round
    solo_s: float  # of a baseline that is measured alone
    window_bytes: int
    pool_bytes: int
    draw_s: float
    warm_s: float
    rounds_s: float = 30.0  # after this no round is added to the least
    # At quick a visit ends once it is certain which baselines are beaten by so much: 0.05 for 5 %.
    # 0: it takes its time.
    milestone: float = 0.0


@dataclass(frozen=True)
class Plan:
    """How many calls a window has, by kind."""

    fresh: int
    other: int

    def calls(self, kind: str) -> int:
        return self.fresh if kind in ("fresh", "varied") else self.other

    @property
    def capacity(self) -> int:
        return max(self.fresh, self.other)


def plan(call_ns: float, slots: Slots, budget: Budget) -> Plan:
    """Returns windows of WINDOW_NS where memory and the budget allow."""
    by_time = math.ceil(WINDOW_NS / max(call_ns, 1.0))
    by_memory = max(budget.window_bytes // slots.bytes, 1)
    fresh = max(min(by_time, by_memory, MAX_CALLS), 1)
    return Plan(fresh, min(fresh, CHECKING_CALLS))

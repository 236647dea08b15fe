"""What a candidate takes to pack its weights, where that is in no timed call.

One that packs at its first call, and keeps that, is constructed anew some times in a process that
is warm, and given the weights: the first call after that is held against the ones that follow. By
the referee's clock, from asking to the answer: what both kinds of calls have beside the forward is
in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import stats

TIMES = 5  # it is constructed, at most
USUAL = 3  # calls after each first one
PACKING_S = 20.0  # all of it may take


def told(construct: Callable[[], None], call: Callable[[], float]) -> str:
    """Returns a note. ``construct`` makes the candidate anew; ``call`` returns the seconds that one
    call took. Raises what they raise.
    """
    end = time.monotonic() + PACKING_S / 2
    call()
    first: list[float] = []
    usual: list[float] = []
    while len(first) < TIMES and (not first or time.monotonic() < end):
        construct()
        first.append(call())
        usual += [call() for _ in range(USUAL)]
    more = stats.median(first) - stats.median(usual)
    if more <= max(usual) - min(usual):
        return "packing its weights takes no longer than calls differ by, and is not in its time"
    took = f"{1e3 * more:.3g} ms" if more >= 1e-3 else f"{1e6 * more:.0f} us"
    return f"packing its weights takes {took}, once after each change of them: not in its time"


AT_CONSTRUCTION = "what it makes of its weights when it is constructed is not in its time"

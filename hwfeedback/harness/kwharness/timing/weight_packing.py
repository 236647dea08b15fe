"""What a candidate takes to pack its weights, where that is in no timed call.

In a process that is warm its weights change some times, and the first call after that is held
against the ones that follow. One that packs at its first call, and keeps that, is constructed anew
and given the weights; who follows a change, as by version counters, gets others in place. By the
referee's clock, from asking to the answer: what both kinds of calls have beside the forward is in
both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kwharness.base import stats

TIMES = 5  # its weights change, at most
USUAL = 3  # calls after each first one
SHARE = 0.1  # of a usual call: less than that shows nothing of who may not pack at all
PACKING_S = 20.0  # all of it may take


def told(change: Callable[[], None], call: Callable[[], float], *, keeps: bool = True) -> str:
    """Returns a note. ``change`` gives it other weights; ``call`` returns the seconds that one call
    took. Raises what they raise. ``keeps``: it is known to keep what it packs; "" where it is not,
    and nothing shows.
    """
    end = time.monotonic() + PACKING_S / 2
    call()
    first: list[float] = []
    usual: list[float] = []
    while len(first) < TIMES and (not first or time.monotonic() < end):
        change()
        first.append(call())
        usual += [call() for _ in range(USUAL)]
    more = stats.median(first) - stats.median(usual)
    shows = keeps or more > SHARE * stats.median(usual)
    if not shows or more <= max(usual) - min(usual):
        return SLIGHT if keeps else ""
    took = f"{1e3 * more:.3g} ms" if more >= 1e-3 else f"{1e6 * more:.0f} us"
    return f"packing its weights takes {took}, once after each change of them: not in its time"


SLIGHT = "packing its weights takes no longer than calls differ by, and is not in its time"
AT_CONSTRUCTION = "what it makes of its weights when it is constructed is not in its time"

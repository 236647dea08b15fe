"""What calls cost, held against each other in the same moments: a machine may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOWS, CALLS = 40, 500


def least(**calls: Callable[[], object]) -> dict[str, float]:
    """Returns by name the seconds of a call, of the best of many windows taken in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(WINDOWS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS)
    print("\n" + ", ".join(f"{name} {1e6 * s:.2f} us" for name, s in best.items()))
    return best

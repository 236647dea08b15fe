"""How often timing that ends once a milestone is certain is wrong about it: by simulation."""

from __future__ import annotations

import math
import random

import pytest

from kwharness.base import stats
from kwharness.base.verdicts import Speedup
from kwharness.timing import milestones

MILESTONE = 0.05
LOOKS = (9, 18, 36)  # fresh windows, of forty that a visit may have


def early(true: float, sigma: float, times: int) -> tuple[int, int, int]:
    """Returns how often it ended early, how often above the milestone, and windows in all.
    ``true`` is the speedup, ``sigma`` the spread of a window's time, relative.
    """
    draw = random.Random(f"{true} {sigma}")
    ended = above = windows = 0
    for seed in range(times):
        baseline = [[true * math.exp(draw.gauss(0, sigma)) for _ in range(36)]]
        seen: list[float] = []
        for look in LOOKS:
            seen += [math.exp(draw.gauss(0, sigma)) for _ in range(look - len(seen))]
            i = stats.speedup(baseline, [seen], seed)
            said = milestones.beaten(Speedup(i.value, i.low, i.high), MILESTONE)
            if said is not None:
                ended, above, windows = ended + 1, above + said, windows + look
                break
        else:
            windows += 40
    return ended, above, windows


@pytest.mark.parametrize("sigma", [0.02])
def test_what_is_at_the_milestone_is_not_decided_early(sigma: float) -> None:
    """Either answer would be a guess."""
    ended, _, _ = early(1.0 + MILESTONE, sigma, 60)
    assert ended <= 1


@pytest.mark.parametrize(("true", "above"), [(0.7, 0), (1.4, 30)])
def test_what_is_far_from_it_is_decided_early_and_right(true: float, above: int) -> None:
    ended, found, windows = early(true, 0.03, 30)
    assert (ended, found) == (30, above) and windows < 30 * 20

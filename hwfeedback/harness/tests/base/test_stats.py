from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from kwharness.base import stats


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The referee's own setting: small operations on two threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def process(
    rng: random.Random,
    time: float,
    windows: int,
    *,
    between: float,
    within: float = 0.02,
    level: float = 0.0,
) -> list[float]:
    """Times of one process: an offset of its own, noise, now and then a spike by interference."""
    offset = rng.gauss(0, between) + level
    times = []
    for _ in range(windows):
        t = time * math.exp(offset + rng.gauss(0, within))
        if rng.random() < 0.08:
            t *= 1 + rng.expovariate(5)
        times.append(t)
    return times


def cached(rng: random.Random, faster: float) -> stats.Interval:
    """A quick evaluation: one process of the candidate against two of the cached baseline."""
    base = [process(rng, 1.0, 20, between=0.007) for _ in range(2)]
    return stats.speedup(base, [process(rng, 1 / faster, 10, between=0.007)])


def interleaved(rng: random.Random, faster: float) -> stats.Interval:
    """A certification: rounds on a machine that gets slower by 18 % while it runs, and wanders."""
    level = 0.0
    rounds = []
    for _ in range(6):
        level += rng.gauss(0, 0.005)
        at = [level, level + 0.01, level + 0.02]
        base = rng.gauss(0, 0.01)  # both visits are of one process
        rounds.append(
            stats.Round(
                process(rng, 1.0, 8, between=0, level=at[0] + base),
                process(rng, 1 / faster, 16, between=0.01, level=at[1]),
                process(rng, 1.0, 8, between=0, level=at[2] + base),
            )
        )
        level += 0.03
    return stats.paired_speedup(rounds)


# 89.1 % of the faster win where `trials` is 1,500 and the seed 11, 99.7 % of 600.
@pytest.mark.parametrize(("protocol", "least"), [(cached, 0.87), (interleaved, 0.95)])
def test_identical_code_does_not_win_and_ten_percent_does(protocol, least: float) -> None:
    rng = random.Random(7)
    trials = 300
    same = [protocol(rng, 1.0) for _ in range(trials)]
    faster = [protocol(rng, 1.1) for _ in range(trials)]
    assert sum(i.low > 1.05 for i in same) / trials < 0.01
    assert sum(i.low > 1.05 for i in faster) / trials >= least
    assert sum(i.low <= 1.1 <= i.high for i in faster) / trials >= 0.93


def test_drift_that_is_linear_cancels_in_pairs() -> None:
    rounds = []
    for r in range(4):
        before, middle, after = (1.2 ** (r + k / 3) for k in range(3))
        rounds.append(stats.Round([before] * 5, [middle / 2] * 5, [after] * 5))
    interval = stats.paired_speedup(rounds)
    assert interval.value == pytest.approx(2.0)
    assert interval.high / interval.low < 1.001


@pytest.mark.parametrize("q", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("values", [[1.7, 1.0, 1.4, 1.1, 2.0], [2.0, 1.0, 1.5]])
def test_quantiles_of_resamples_are_as_probable_as_they_are(
    values: list[float], n: int, q: float
) -> None:
    """Beside all resamples that there are."""
    expected: Counter[float] = Counter()
    for drawn in itertools.product(values, repeat=n):
        expected[round(stats.quantile(drawn, q), 9)] += len(values) ** -n
    g = torch.Generator().manual_seed(1)
    times = 25
    found = Counter(
        round(v, 9) for _ in range(times) for v in stats.quantiles(values, n, q, g).tolist()
    )
    assert set(found) <= set(expected)
    total = times * stats.RESAMPLES
    for v, p in expected.items():
        assert abs(found[v] / total - p) <= 4.5 * math.sqrt(p * (1 - p) / total) + 1e-9, v


def test_intervals_repeat_with_the_seed() -> None:
    blocks = [[1.0, 1.1, 1.05], [1.02, 1.2, 0.98]]
    assert stats.time_interval(blocks, 3) == stats.time_interval(blocks, 3)
    assert stats.speedup(blocks, blocks, 3).value == 1.0


def test_one_process_is_never_certain() -> None:
    interval = stats.speedup([[1.0] * 50], [[1.0] * 50])
    assert interval.low < 0.985 < 1.015 < interval.high


def test_few_rounds_are_less_certain_than_many() -> None:
    def width(n: int) -> float:
        rng = random.Random(1)
        one = [process(rng, 1.0, 10, between=0.01) for _ in range(3 * n)]
        rounds = [stats.Round(*one[3 * i : 3 * i + 3]) for i in range(n)]
        interval = stats.paired_speedup(rounds)
        return interval.high / interval.low

    assert width(3) > width(6) > width(20)


def test_quantiles() -> None:
    assert stats.median([3, 1, 2]) == 2
    assert stats.median([4, 1, 2, 3]) == 2.5
    assert stats.quantile([0, 10], 0.25) == 2.5
    assert stats.quantile([5], 0.9) == 5
    with pytest.raises(ValueError):
        stats.median([])
    with pytest.raises(ValueError):
        stats.time_interval([[]])
    with pytest.raises(ValueError):
        stats.paired_speedup([stats.Round([1], [1], [1])])


def test_spikes_do_not_move_a_centre() -> None:
    assert stats.centre([[1.0, 1.0, 1.0, 9.0], [1.0, 1.0, 1.0, 5.0]]) == pytest.approx(1.0)


def test_a_median_is_off_by_the_body_and_not_by_the_tail() -> None:
    g = torch.Generator().manual_seed(5)
    body = (1000 + 50 * torch.randn(60, generator=g)).tolist()
    tail = [*body[:50], *(5000.0 + 100 * i for i in range(10))]
    assert 20 < stats.off_quantile(body, 7) < 90
    assert stats.off_quantile(tail, 15) < 4 * stats.off_quantile(body, 15)
    assert stats.off_quantile(body, 50) < 0.6 * stats.off_quantile(body, 7)
    # Where every third is slow, a median of seven often is one of them.
    assert stats.off_quantile([*body[:40], *tail[50:], *tail[50:]], 7) > 1000

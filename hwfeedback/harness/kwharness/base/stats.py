"""Medians, intervals and speedups of times that come in blocks.

A block is the times of one worker process, a time is the mean of one window. Times within a
process share what that process was dealt (addresses, pages, which core), so processes and not
windows are what repeats independently: every interval here resamples processes first and windows
within them second. All randomness is seeded: the same times give the same interval.

Three things keep identical code from winning:

- With few processes the bootstrap of their means is too narrow: it knows nothing of the tails.
  Its half-widths are stretched by Student's t over the normal quantile and by sqrt(n / (n - 1)).
- One process says nothing of how processes differ. There ``PROCESS_SIGMA`` stands in.
- The machine drifts. Paired rounds (baseline, candidate, candidate, baseline) cancel what is
  linear in time, and rounds are resampled whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Blocks = Sequence[Sequence[float]]

RESAMPLES = 2000
# Spread of medians between fresh processes of one program: 0.5 to 1.2 % for calls of 7 to 13 us,
# less for longer ones.
PROCESS_SIGMA = 0.007
_Z = 1.959964
# Student's t, 97.5 %, by degrees of freedom from 1.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t_quantile(freedom: int) -> float:
    """Returns the two-sided 95 % quantile of Student's t."""
    if freedom < 1:
        raise ValueError("no degrees of freedom")
    return _T[freedom - 1] if freedom <= len(_T) else _Z + 2.5 / freedom


def quantile(values: Sequence[float], q: float) -> float:
    """Returns a quantile, interpolated between order statistics. Raises ValueError when empty."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: Sequence[float]) -> float:
    """Returns the median. Raises ValueError when empty."""
    return quantile(values, 0.5)


def wilson_low(hits: int, n: int, z: float) -> float:
    """Returns the lower end of Wilson's score interval for a share, z standard deviations wide.

    Wilson 1927. Raises ValueError where there are no trials.
    """
    if n < 1:
        raise ValueError("no trials")
    if not hits:
        return 0.0
    p, zz = hits / n, z * z
    spread = z * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    return max((p + zz / (2 * n) - spread) / (1 + zz / n), 0.0)


def quantiles(values: Sequence[float], n: int, q: float, g: torch.Generator) -> torch.Tensor:
    """Returns RESAMPLES times a quantile of n draws from these, with replacement: [RESAMPLES].

    Nothing is resampled for it: the k-th of n draws lies where the k-th of n uniform ones does.
    That is Beta(k, n + 1 - k), a share of two gammas, and the next one is the least of the n - k
    above it.
    """
    ordered = torch.tensor(sorted(values), dtype=torch.float64)
    m = len(values)
    k = math.floor(q * (n - 1)) + 1
    beyond = q * (n - 1) - (k - 1)
    shapes = torch.tensor([[k], [n + 1 - k]], dtype=torch.float64).expand(2, RESAMPLES)
    below, above = torch._standard_gamma(shapes, generator=g)
    place = below / (below + above)
    found = ordered[(m * place).long().clamp_(max=m - 1)]
    if not beyond:
        return found
    least = torch.rand(RESAMPLES, generator=g, dtype=torch.float64) ** (1 / (n - k))
    following = ordered[(m * (1 - (1 - place) * least)).long().clamp_(max=m - 1)]
    return found + beyond * (following - found)


def off_quantile(values: Sequence[float], n: int, q: float = 0.5, seed: int = 0) -> float:
    """Returns how far a quantile of n of these may lie from that of all, in 95 % of draws.

    A few that lie far off do not move a median: their distance is not its uncertainty.
    """
    drawn = quantiles(values, n, q, torch.Generator().manual_seed(seed))
    return float((drawn - quantile(values, q)).abs().quantile(0.95))


def centre(blocks: Blocks) -> float:
    """Returns the middle of the blocks' medians: a mean of logarithms, so no process dominates."""
    logs = [math.log(median(b)) for b in blocks if b]
    if not logs:
        raise ValueError("no times")
    return math.exp(sum(logs) / len(logs))


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def wider(self, factor: float) -> Interval:
        """Returns the interval with both ends moved outwards by a factor of at least 1."""
        f = max(factor, 1 / factor)
        return Interval(self.value, self.low / f, self.high * f)


def _resampled_medians(block: Sequence[float], g: torch.Generator) -> torch.Tensor:
    """Returns RESAMPLES logarithms of the median of the block resampled."""
    return quantiles(block, len(block), 0.5, g).log()


def _stretch(processes: int) -> float:
    """Returns by how much a bootstrap over so few processes is too narrow."""
    if processes < 2:
        return 1.0
    return t_quantile(processes - 1) / _Z * math.sqrt(processes / (processes - 1))


def _clusters(rows: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Resamples clusters, then takes the mean: rows [clusters, RESAMPLES] -> [RESAMPLES]."""
    n = rows.shape[0]
    picks = torch.randint(n, (n, RESAMPLES), generator=g)
    return rows.gather(0, picks).mean(dim=0)


def _side(blocks: Blocks, g: torch.Generator) -> tuple[float, torch.Tensor]:
    """Returns the logarithm of the centre, and its resampled deviations."""
    kept = [b for b in blocks if b]
    at = math.log(centre(kept))
    rows = torch.stack([_resampled_medians(b, g) for b in kept])
    if len(kept) >= 3:
        return at, (_clusters(rows, g) - at) * _stretch(len(kept))
    sigma = PROCESS_SIGMA / math.sqrt(len(kept))
    between = torch.randn(RESAMPLES, generator=g, dtype=torch.float64) * sigma
    return at, rows.mean(dim=0) - at + between


def _interval(at: float, deviations: torch.Tensor) -> Interval:
    ordered = deviations.sort().values
    low = float(ordered[round(0.025 * (RESAMPLES - 1))])
    high = float(ordered[round(0.975 * (RESAMPLES - 1))])
    # The point estimate lies inside, whatever the resampling of a skewed block says.
    return Interval(math.exp(at), math.exp(at + min(low, 0.0)), math.exp(at + max(high, 0.0)))


def time_interval(blocks: Blocks, seed: int = 0) -> Interval:
    """Returns the centre of the times with its 95 % interval. Raises ValueError when empty."""
    g = torch.Generator().manual_seed(seed)
    return _interval(*_side(blocks, g))


def speedup(baseline: Blocks, candidate: Blocks, seed: int = 0) -> Interval:
    """Returns baseline time over candidate time where the two were not measured in pairs."""
    g = torch.Generator().manual_seed(seed)
    at_b, dev_b = _side(baseline, g)
    at_c, dev_c = _side(candidate, g)
    return _interval(at_b - at_c, dev_b - dev_c)


@dataclass(frozen=True)
class Round:
    """One A B B A of fresh times: the baseline's two visits and the candidate's between them."""

    before: Sequence[float]
    candidate: Sequence[float]
    after: Sequence[float]


def paired_speedup(rounds: Sequence[Round], seed: int = 0) -> Interval:
    """Returns the speedup of interleaved rounds. Raises ValueError for fewer than two."""
    if len(rounds) < 2:
        raise ValueError("pairs need at least two rounds")
    g = torch.Generator().manual_seed(seed)
    logs: list[float] = []
    rows: list[torch.Tensor] = []
    for r in rounds:
        base = (math.log(median(r.before)) + math.log(median(r.after))) / 2
        logs.append(base - math.log(median(r.candidate)))
        resampled = (_resampled_medians(r.before, g) + _resampled_medians(r.after, g)) / 2
        rows.append(resampled - _resampled_medians(r.candidate, g))
    at = sum(logs) / len(logs)
    return _interval(at, (_clusters(torch.stack(rows), g) - at) * _stretch(len(rounds)))

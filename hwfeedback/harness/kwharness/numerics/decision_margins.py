"""How far float32 may take a value that is decided on, by its size.

Simulated rounding moves each value by chance, and by next to nothing where two roundings cancel. So
the margin of a value is the most by which values of its size were moved, or of a size beside it,
and of larger ones until enough were moved independently. Differences from one mean are all off by
the same: they count as one, and small ones have the margin of larger ones.
"""

from __future__ import annotations

import torch

LOWEST, SIZES = -150, 280  # powers of two, as float32 has
BIAS = 1022  # of float64's exponents
# Places for each size: what is added to one waits for what was added before, GPUs' threads too.
LANES = {"cpu": 8, "cuda": 1024}
ENOUGH = 64  # values that were moved independently
FEW = 8  # so few of ENOUGH were: what moved them are a few means


class Margins:
    """The margins of one decision."""

    def __init__(self) -> None:
        self._top = torch.zeros(SIZES, dtype=torch.float64)
        # Of each pattern of roundings and size: how many values were moved, by how much in all, and
        # the squares of that.
        self._moved: list[torch.Tensor] = []
        self._table: torch.Tensor | None = None

    def add(self, sizes: torch.Tensor, off: torch.Tensor, moved: torch.Tensor) -> None:
        """Takes in how far one pattern of roundings moved values of these sizes: none of those that
        are not in the mask ``moved``.
        """
        lanes = LANES[off.device.type]
        at, off = sizes.reshape(-1).long(), off.double().reshape(-1)
        if lanes > 1:
            at = _apart(at, lanes)
        found = off.new_zeros(4, SIZES * lanes)
        found[0].scatter_reduce_(0, at, off.abs(), "amax")
        for row, part in zip(
            found[1:], (moved.reshape(-1).double(), off, off.square()), strict=True
        ):
            row.scatter_add_(0, at, part)
        found = found.view(4, SIZES, lanes)
        self._top = torch.maximum(self._top, found[0].amax(-1).cpu())
        self._moved.append(found[1:].sum(-1).cpu())
        self._table = None

    def few(self) -> bool:
        """Whether a few roundings moved what would be enough values of one size."""
        if not self._moved:
            return False
        n, total, squares = torch.stack(self._moved).unbind(1)
        alone = torch.where(total != 0, n * squares / total.square(), n).minimum(n)
        return bool(((n.sum(0) >= ENOUGH) & (alone.sum(0) < FEW)).any())

    def of(self, sizes: torch.Tensor, least: float) -> torch.Tensor:
        """Returns the margins of values of these sizes.

        None is less than ``least``, unless that is more than the largest.
        """
        if self._table is None:
            self._table = torch.tensor(self._by_size(), dtype=torch.float64, device=sizes.device)
        table = self._table.clamp_min(min(least, float(self._top.max())))
        return table.index_select(0, sizes.reshape(-1).int()).view(sizes.shape)

    def _by_size(self) -> list[float]:
        """Returns the margin of each size.

        An honest kernel keeps to it: among 64 independent roundings one is near to the worst, and
        C1 is allowed. Means that by chance were hardly moved are no 64: they are joined by larger
        values until what moves these by themselves is about eight times as much.
        """
        top: list[float] = self._top.tolist()
        moved: list[list[list[float]]] = [m.T.tolist() for m in self._moved]

        def enough(first: int, last: int) -> bool:
            alone = 0.0
            for pattern in moved:
                n, total, squares = map(sum, zip(*pattern[first : last + 1], strict=True))
                square = total * total
                alone += min(n, n * squares / square) if square else n
            return alone >= ENOUGH

        here = [k for k, most in enumerate(top) if most > 0]
        if not here or not enough(here[0], here[-1]):
            return [max(top)] * SIZES
        low, high = here[0], here[-1]
        found = []
        for k in range(low, high + 1):
            first, last = max(k - 1, low), min(k + 1, high)
            while last < high and not enough(first, last):
                last += 1
            while first > low and not enough(first, last):
                first -= 1
            # Where larger ones are too few, smaller ones tell by their share.
            shares = (2.0 ** max(k - 1 - j, 0) * top[j] for j in range(first, last + 1))
            found.append(max(shares) if enough(first, last) else max(top))
        return [found[0]] * low + found + [found[-1]] * (SIZES - 1 - high)


def _apart(at: torch.Tensor, lanes: int) -> torch.Tensor:
    """Returns places for each so that neighbours never have the same one."""
    n = at.numel() // lanes * lanes
    at = at * lanes
    at[:n].view(-1, lanes).add_(torch.arange(lanes, device=at.device))
    return at


def size(values: torch.Tensor) -> torch.Tensor:
    """Returns the power of two above each magnitude, counted from the lowest, as int16."""
    power = values.double().contiguous().view(torch.int64) >> 52
    power = power.bitwise_and_(0x7FF).sub_(BIAS + LOWEST).clamp_(0, SIZES - 1)
    return power.to(torch.int16)

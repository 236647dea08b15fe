"""The values on either side of what a forward decides: which of them are right for one output.

The reference gives each output as float64 has it where what is decided on is moved by its bound:
up, down, at random (decisions.py). All of these are right.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

# Modes of the reference worker: all up, all down, each element at random.
LANES = ("lane:1:1", "lane:-1:1", "lane:0:1", "lane:0:1001")
SAME = 1e-12  # relative: what float64's own rounding may make of the same number


def of(wide: torch.Tensor, lanes: Sequence[torch.Tensor]) -> Sides | None:
    """Returns the right values of an output, None where all lanes give the same."""
    try:
        found = Sides(wide, lanes)
    except ValueError:
        return None
    return found if found.at.numel() else None


class Sides:
    """The right values of one output, where there are several: of the elements ``at`` these flat
    numbers, the lowest and the highest. Elsewhere float64's own is right.
    """

    def __init__(self, wide: torch.Tensor, lanes: Sequence[torch.Tensor]) -> None:
        """Raises ValueError for lanes of another shape, and for complex numbers."""
        self.floating = wide.is_floating_point()
        if wide.is_complex():
            raise ValueError("numbers that have no order")
        differ = torch.zeros(wide.numel(), dtype=torch.bool, device=wide.device)
        flats = [wide.reshape(-1)]
        for lane in lanes:
            if lane.shape != wide.shape or lane.is_floating_point() != self.floating:
                raise ValueError("a lane of another shape")
            flats.append(lane.reshape(-1))
            differ |= flats[-1] != flats[0]
        at = differ.nonzero().view(-1)
        each = [_plain(t.index_select(0, at).to(wide.dtype)) for t in flats]
        low, high = functools.reduce(torch.minimum, each), functools.reduce(torch.maximum, each)
        # Where some of several decisions may fall one way and some the other, all between is right.
        self.mixed: torch.Tensor | None = None
        if self.floating:
            near = SAME * torch.maximum(low.abs(), high.abs())
            open_ = (high - low) > near  # not where one is NaN
            if not bool(open_.all()):
                at, low, high, near = at[open_], low[open_], high[open_], near[open_]
                each = [t[open_] for t in each]
            for t in each:
                between = (t != low) & (t != high)
                if bool(between.any()):
                    between &= ((t - low) > near) & ((high - t) > near)
                    self.mixed = between if self.mixed is None else self.mixed | between
        self.at, self.low, self.high = at, low, high
        self._wide, self._lanes = wide, [] if self.floating else each[1:]

    def _spread(self, found: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Returns ``other``, with what was found of elements that have several right values."""
        return other.reshape(-1).index_copy(0, self.at, found.to(other.dtype)).view(other.shape)

    def _given(self, got: torch.Tensor) -> torch.Tensor:
        """Returns what was given of these elements."""
        return _plain(got.reshape(-1).index_select(0, self.at))

    def span(self) -> torch.Tensor:
        """Returns by element how far its right values lie apart."""
        apart = self.high.double() - self.low.double()
        return self._spread(apart, torch.zeros_like(self._wide, dtype=torch.float64))

    def open(self) -> torch.Tensor:
        """Returns the mask of elements that have more than one right value."""
        none = torch.zeros_like(self._wide, dtype=torch.bool)
        return self._spread(torch.ones_like(self.at), none)

    def allows(self, got: torch.Tensor) -> torch.Tensor:
        """Returns where whole numbers or booleans are right."""
        given = self._given(got)
        return self._spread((self.low <= given) & (given <= self.high), got == self._wide)

    def meets(self, got: torch.Tensor) -> torch.Tensor:
        """Returns where indices, between which nothing is right, are those of a lane."""
        given = self._given(got)
        found = torch.zeros_like(given, dtype=torch.bool)
        for lane in self._lanes:
            found |= given == lane
        return self._spread(found, got == self._wide)

    def nearest(self, got: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        """Returns for each number that is given the right one that it is nearest to."""
        if not self.floating:
            return wide
        given = self._given(got).to(wide.dtype)
        right = torch.where(
            (given - self.low).abs() < (given - self.high).abs(), self.low, self.high
        )
        if self.mixed is not None:
            more = (self.high - self.low) / 2  # a random pattern does not reach the ends
            between = torch.clamp(given, self.low - more, self.high + more)
            right = torch.where(self.mixed, between, right)
        return self._spread(right, wide)


def _plain(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.uint8) if t.dtype is torch.bool else t

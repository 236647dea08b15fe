"""The values on either side of what a forward decides: which of them are right for one output.

The reference gives each output as float64 has it where what is decided on is moved by its bound:
up, down, at random (decisions.py). All of these are right.
"""

from __future__ import annotations

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
    return found if bool(found.open().any()) else None


class Sides:
    """The right values of one output."""

    def __init__(self, wide: torch.Tensor, lanes: Sequence[torch.Tensor]) -> None:
        """Raises ValueError for lanes of another shape."""
        self.floating = wide.is_floating_point()
        self.low, self.high = _plain(wide), _plain(wide)
        self._lanes = [] if self.floating else list(lanes)
        for lane in lanes:
            if lane.shape != wide.shape or lane.is_floating_point() != self.floating:
                raise ValueError("a lane of another shape")
            self.low = torch.minimum(self.low, _plain(lane))
            self.high = torch.maximum(self.high, _plain(lane))
        # Where some of several decisions may fall one way and some the other, all between is right.
        self.mixed: torch.Tensor | None = None
        if self.floating:
            near = SAME * torch.maximum(self.low.abs(), self.high.abs())
            self.mixed = torch.zeros(wide.shape, dtype=torch.bool, device=wide.device)
            for lane in [wide, *lanes]:
                self.mixed |= ((lane - self.low) > near) & ((self.high - lane) > near)

    def span(self) -> torch.Tensor:
        """Returns by element how far its right values lie apart, 0 where one is NaN."""
        return (self.high.double() - self.low.double()).nan_to_num(nan=0.0)

    def open(self) -> torch.Tensor:
        """Returns the mask of elements that have more than one right value."""
        if not self.floating:
            return self.low != self.high
        near = SAME * torch.maximum(self.low.abs(), self.high.abs())
        return (self.high - self.low) > near  # not where one is NaN

    def allows(self, got: torch.Tensor) -> torch.Tensor:
        """Returns where whole numbers or booleans are right."""
        got = _plain(got)
        return (self.low <= got) & (got <= self.high)

    def meets(self, got: torch.Tensor) -> torch.Tensor:
        """Returns where indices, between which nothing is right, are those of a lane."""
        found = torch.zeros(got.shape, dtype=torch.bool, device=got.device)
        for lane in self._lanes:
            found |= got == lane
        return found

    def nearest(self, got: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        """Returns for each number that is given the right one that it is nearest to."""
        open_ = self.open()
        if self.mixed is None or not bool(open_.any()):
            return wide
        given = got.to(wide.dtype)
        nearer = torch.where(
            (given - self.low).abs() < (given - self.high).abs(), self.low, self.high
        )
        # A random pattern does not reach the ends.
        more = (self.high - self.low) / 2
        between = torch.clamp(given, self.low - more, self.high + more)
        return torch.where(open_, torch.where(self.mixed, between, nearer), wide)


def _plain(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.uint8) if t.dtype is torch.bool else t

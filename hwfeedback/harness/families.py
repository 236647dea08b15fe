"""Input families: elementwise maps of a base draw that show what the base distribution hides.

Only floating inputs are mapped, and each element by itself (or to one value for all), so that
masks, indices, symmetric and triangular matrices stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Map = Callable[[torch.Tensor, torch.Generator], torch.Tensor]

HUGE = 1e36  # near float32's 3.4e38: a sum of a few still holds, a square does not
TINY = 1e-40  # a float32 denormal
UP, DOWN = 1e2, 1e-3
TAIL_POWER = 3.0
PLANTED = (
    4  # of each of NaN, +Inf and -Inf: few, so that most of a row or of a channel stays comparable
)


@dataclass(frozen=True)
class Family:
    """One family.

    ``planted``: non-finite values are put in, and where they come out is what is compared.
    """

    name: str
    map: Map
    says: str
    planted: bool = False
    equal: bool = False  # one value everywhere: what sums err by adds up instead of cancelling
    exact: bool = False  # integers in, weights too: linear operators must be exact while sums are


def _plant(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    out = x.clone()
    n = out.numel()
    flat = out.view(-1)
    count = min(PLANTED, max(n // 256, 1))
    where = torch.randint(0, max(n, 1), (3 * count,), generator=g)
    for i, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        flat[where[i * count : (i + 1) * count]] = value
    return out


def _largest(x: torch.Tensor) -> float:
    finite = x[torch.isfinite(x)] if x.numel() else x
    return float(finite.abs().max()) if finite.numel() else 0.0


def _heavy(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x.sign() * x.abs().pow(TAIL_POWER)


def _near_overflow(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    top = _largest(x)
    return x * (HUGE / top) if top > 0 else torch.full_like(x, HUGE)


def _equal(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    # A value that half precision cannot hold, so that computing in less than float32 shows
    # coherently.
    value = float(torch.rand((), generator=g)) + 1.0 / 3.0
    return torch.full_like(x, value)


def _denormal(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return x.sign() * TINY * (1 + x.abs().clamp(max=100.0))


BASE = Family("base", lambda x, _: x, "the reference's own draw")
FAMILIES: tuple[Family, ...] = (
    BASE,
    Family("scaled_up", lambda x, _: x * UP, f"times {UP:g}"),
    Family("scaled_down", lambda x, _: x * DOWN, f"times {DOWN:g}"),
    Family("negated", lambda x, _: -x, "negated"),
    Family("heavy_tails", _heavy, "sign(x)·|x|³"),
    Family("all_equal", _equal, "one value everywhere", equal=True),
    Family("zeros", lambda x, _: torch.zeros_like(x), "zeros"),
    Family("denormals", _denormal, "around 1e-40"),
    Family("near_overflow", _near_overflow, f"up to {HUGE:g}"),
    Family("planted", _plant, "a few NaN, +Inf and -Inf", planted=True),
    Family("zero_one", lambda x, _: (x > 0).to(x.dtype), "zeros and ones", exact=True),
)
BY_NAME = {f.name: f for f in FAMILIES}


def apply(family: Family, tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Returns the family's version of a base draw. Inputs that are not floating stay the same."""
    g = torch.Generator().manual_seed(seed)
    return [family.map(t, g) if t.is_floating_point() and t.numel() else t for t in tensors]

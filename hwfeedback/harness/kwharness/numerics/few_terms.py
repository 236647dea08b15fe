"""Draws in which few terms carry an output that is made of many.

A mean over millions hides that each term is computed in half precision: the errors cancel, and the
bound is that of a long sum. Where few terms are left, or all are the same, they do not. So it is
with the sums in a product of matrices, whose factors may be split into two of 8 bits each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from kwharness.base.calibration import Line

# Terms to one output past which errors of half precision may drown in what the order of a float32
# sum may cost: 8 sqrt(n) / 32 half units of the sum of magnitudes, against 2^-10 / sqrt(n).
MANY = 1 << 14
KEPT = 3  # terms
NOTHING = 1e-6  # times the others

Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def many(inputs: Sequence[torch.Tensor], outputs: int) -> bool:
    """Whether outputs, so many elements, are few and made of many terms."""
    terms = max((t.numel() for t in inputs if t.is_floating_point()), default=0)
    return terms >= MANY * max(outputs, 1)


def few(tensors: Sequence[torch.Tensor], seed: int) -> Callable[[int], Change]:
    """Returns by the number of an input how all but a few of its elements become next to nothing:
    of the largest inputs, at the same places where their shapes are the same.
    """
    largest = max((t.numel() for t in tensors if t.is_floating_point()), default=0)

    def change(i: int) -> Change:
        t = tensors[i]
        if not t.is_floating_point() or t.numel() < largest:
            return lambda x, _: x

        def keep_few(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
            g = torch.Generator(x.device).manual_seed(seed)  # the same for each input
            at = torch.randint(0, x.numel(), (KEPT,), generator=g, device=x.device)
            out = (x * NOTHING).reshape(-1)
            out[at] = x.reshape(-1)[at]
            return out.view(x.shape)

        return keep_few

    return change


def few_along(lines: Sequence[Line], seed: int) -> Callable[[int], Change]:
    """Returns by the number of an input how it becomes zero but for a few places of a line, the
    same in all lines, whose elements grow as much as the sums of products lose.
    """
    line = lines[seed % len(lines)] if lines else None

    def change(i: int) -> Change:
        if line is None or line.input != i:
            return lambda x, _: x
        dims = range(line.start, line.stop)

        def keep_few(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
            n = math.prod(x.shape[d] for d in dims)
            left = torch.zeros(n, dtype=torch.bool, device=x.device)
            left[torch.randperm(n, generator=g, device=x.device)[:KEPT]] = True
            left = left.view([x.shape[d] if d in dims else 1 for d in range(x.dim())])
            return torch.where(left, x * math.sqrt(n / KEPT), torch.zeros_like(x))

        return keep_few

    return change


def repeated(tensors: Sequence[torch.Tensor], seed: int) -> Callable[[int], Change]:
    """Returns by the number of an input how one of its rows takes the place of all: the same one of
    all inputs that have as many as the largest, whole numbers among them.
    """
    largest = max(tensors, key=lambda t: t.numel() if t.is_floating_point() else -1)
    rows = largest.shape[0] if largest.dim() else 0

    def change(i: int) -> Change:
        t = tensors[i]
        if rows < 2 or not t.dim() or t.shape[0] != rows:
            return lambda x, _: x
        row = seed % rows
        return lambda x, _: x[row : row + 1].expand(x.shape).clone()

    return change

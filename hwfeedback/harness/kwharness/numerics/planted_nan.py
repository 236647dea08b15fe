"""What becomes of NaN and infinity that are planted into inputs: which outputs depend on them.

A reference may give NaN where nothing depends on what was planted: zero times infinity of a
diagonal product, of a masked score, of a triangle. Nobody need give that. And a kernel may drop
NaN, as ``fmaxf`` and ``tl.maximum`` do: it gives what the reference gives with a number far away in
the place of NaN. That is told, and no fault (docs/verdict.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kwharness.numerics import norms

# Times the largest number of an input: further away than any rounding carries, and no overflow in a
# square.
FAR = 1e4
# Of the largest change of an output: what changes by less does so by float64's rounding alone, as a
# Fourier transform spreads it.
UNCHANGED = 1e-9

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass
class Effect:
    """What planting did to one output. Masks are of its shape; of values only those are kept that
    a mask names, in its order.
    """

    # Where a NaN says nothing: it comes of an infinite input (Inf - Inf, 0 * Inf), which another
    # algorithm may do without.
    excused: torch.Tensor
    depends: torch.Tensor  # on what was planted
    bad: torch.Tensor  # what the reference gives is not finite
    ordinary: torch.Tensor  # of these: with ordinary numbers in the place of what was planted
    nan: torch.Tensor  # it gives NaN
    far: list[torch.Tensor]  # of these: with a number far above, and far below, in the place of NaN


def look(run: Run, given: Sequence[torch.Tensor], base: Sequence[torch.Tensor]) -> list[Effect]:
    """Returns an Effect per output. ``run`` gives the reference's float64 outputs, which last;
    ``base`` is the draw in which ``given`` was planted. Raises what ``run`` raises.
    """
    met = run(given)
    nan = [torch.isnan(t) for t in met]
    bad = [~torch.isfinite(t) for t in met]
    del met
    still = run([_finite(t) for t in given])
    excused = [n & ~torch.isnan(t) for n, t in zip(nan, still, strict=True)]
    del still
    ordinary = run(base)
    places = [_planted(t, b) for t, b in zip(given, base, strict=True)]
    changes = [torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in ordinary]
    for sign in (1.0, -1.0):
        outputs = run(_with_far(given, base, places, sign))
        for change, t, o in zip(changes, outputs, ordinary, strict=True):
            torch.maximum(change, _change(t, o), out=change)
        del outputs
    depends = [_depends(c) for c in changes]
    del changes
    numbers = [o[b] for o, b in zip(ordinary, bad, strict=True)]
    del ordinary
    unknown = [torch.isnan(t) for t in given]
    far: list[list[torch.Tensor]] = []
    for sign in (1.0, -1.0):
        outputs = run(_with_far(given, base, unknown, sign))
        far.append([t[n] for t, n in zip(outputs, nan, strict=True)])
        del outputs
    _excuse_twice(run, given, base, nan, far, excused)
    return [
        Effect(excuse, depend, wrong, number, unsure, [above, below])
        for excuse, depend, wrong, number, unsure, above, below in zip(
            excused, depends, bad, numbers, nan, far[0], far[1], strict=True
        )
    ]


def _excuse_twice(
    run: Run,
    given: Sequence[torch.Tensor],
    base: Sequence[torch.Tensor],
    nan: Sequence[torch.Tensor],
    far: Sequence[Sequence[torch.Tensor]],
    excused: Sequence[torch.Tensor],
) -> None:
    """Excuses NaN that stays with numbers in the place of what is NaN, since it comes of an
    infinite input, too, and that does not depend on what is NaN: two masked values in a column, of
    which one is infinite.
    """
    both = [torch.zeros_like(n) for n in nan]
    for b, n, above, below, e in zip(both, nan, far[0], far[1], excused, strict=True):
        b[n] = torch.isnan(above) & torch.isnan(below)
        b &= ~e
    if not any(bool(b.any()) for b in both):
        return
    unknown = [torch.isnan(t) for t in given]
    large = [_finite(t) for t in given]
    known = run([torch.where(u, b, t) for t, b, u in zip(large, base, unknown, strict=True)])
    changes = [torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in known]
    for sign in (1.0, -1.0):
        outputs = run(_with_far(large, base, unknown, sign))
        for change, t, o in zip(changes, outputs, known, strict=True):
            torch.maximum(change, _change(t, o), out=change)
        del outputs
    for e, b, change in zip(excused, both, changes, strict=True):
        e |= b & ~_depends(change)


def _planted(t: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Where a draw has something that is not finite, and had something that is."""
    if not t.is_floating_point():
        return torch.zeros(t.shape, dtype=torch.bool, device=t.device)
    return ~torch.isfinite(t) & torch.isfinite(base)


def _with_far(
    given: Sequence[torch.Tensor],
    base: Sequence[torch.Tensor],
    where: Sequence[torch.Tensor],
    sign: float,
) -> list[torch.Tensor]:
    out: list[torch.Tensor] = []
    for t, b, w in zip(given, base, where, strict=True):
        if not t.is_floating_point():
            out.append(t)
            continue
        far = min(FAR * (norms.scale_of(b).max or 1.0), torch.finfo(t.dtype).max / 4)
        out.append(torch.where(w, torch.full_like(t, sign * far), t))
    return out


def _change(t: torch.Tensor, ordinary: torch.Tensor) -> torch.Tensor:
    """Returns how far each element is off, infinitely far where one of the two is not finite."""
    if not t.is_floating_point():
        return (t != ordinary).double()
    d = (t - ordinary).abs_()
    return torch.where(torch.isfinite(d), d, math.inf)


def _depends(change: torch.Tensor) -> torch.Tensor:
    finite = torch.where(torch.isfinite(change), change, 0.0)
    top = float(finite.max()) if finite.numel() else 0.0
    return change > UNCHANGED * top


def _finite(t: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with large numbers in the place of infinite ones; NaN stays."""
    if not t.is_floating_point():
        return t
    large = torch.finfo(t.dtype).max ** 0.75
    return torch.where(torch.isinf(t), torch.copysign(torch.full_like(t, large), t), t)


def unknown(wide: Sequence[torch.Tensor]) -> list[Effect]:
    """Returns Effects where nothing could be found out: all that is not finite is asked for."""
    effects: list[Effect] = []
    for t in wide:
        bad, nan = ~torch.isfinite(t), torch.isnan(t)
        none = torch.full((int(nan.sum()),), math.nan, dtype=torch.float64, device=t.device)
        everywhere = torch.ones_like(bad)
        effects.append(Effect(torch.zeros_like(bad), everywhere, bad, t[bad], nan, [none, none]))
    return effects

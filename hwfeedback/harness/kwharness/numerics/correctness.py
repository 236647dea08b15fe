"""The gate: when an output is the reference's.

Pure functions over tensors; where they come from is verify's.

A floating output passes when, on the maximum and on the root mean square over all its elements,

    error <= C1 * E + C2 * C + floor

against the float64 expected value. E is the largest error that an honest float32 computation made
on this task: eager's and torch.compile's over all calibration seeds, eager's on the very draw, and
that of the reference with float32 rounding simulated (rounding.py). C is how far the float64 output
moves when every input moves by one unit in its last place. Who fails is judged again by what
simulated rounding and moved inputs do to the very draw: it may be far worse conditioned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from kwharness.base.calibration import Noise, Scale
from kwharness.numerics.norms import chunk_of, chunks, count, error_of, first, scale_of
from kwharness.numerics.planted_nan import Effect
from kwharness.numerics.rounding import Source

if TYPE_CHECKING:
    from kwharness.numerics.decision_sides import Sides

# An honest implementation may add a few roundings where the reference has one, or sum in a worse
# order; measured, honest rewrites stay within 3 E. TF32 and half precision are past 1000 E element
# by element and, since their error grows with the square root of a sum's length while the
# simulated one grows with the length, still past 20 E for dot products over 16384 elements.
C1 = 8.0
# C comes from one random pattern of signs; a worse one, or two roundings of an input, moves the
# output further.
C2 = 4.0
# Decisions explain that as many elements are wrong as may jump by so many bounds; where no other
# draw can be asked a few may be, or this share.
OPEN_BOUNDS, OPEN_COUNT, OPEN_SHARE = 4.0, 16, 0.05
# Of the output's root mean square under the base distribution: two units in the last place of a
# typical element.
FLOOR = 2.0**-22
SMALLEST_NORMAL = 2.0**-126  # below it float32 has denormals, which may be flushed to zero
# Where eager is further than this off float64, relative to the element or to a typical one, nothing
# is known.
OFF = 0.1
ILL = 0.01  # a C above this share of the output: the task is ill-conditioned
FAR_ROUNDING = 1e-5  # of a result that a number far away makes large: what float32 may be off there
OVERFLOWN = 2.0  # times float32's largest number: past this no honest result is finite
SENSITIVE = 100.0  # bounds by which one moved element must change float64, to count

# KernelBench's for float32.
KERNELBENCH_TOLERANCE = 1e-4


@dataclass
class Expected:
    """What the reference says to one draw, in the referee's private memory.

    Without ``eager`` it is bare: nothing is known of this very draw but the expected values. A
    bound from calibration alone is the narrower one, so who passes it passes; who fails it is
    judged again with eager.
    """

    wide: list[torch.Tensor]  # float64 where floating
    eager: list[torch.Tensor] | None
    sources: list[Source | None]  # per output
    skips: list[torch.Tensor | None] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)
    # Eager's error on this draw; where somebody looked closer, that of simulated rounding, too.
    own: list[Scale] = field(default_factory=list)
    # What NaN and infinity did that were planted. None where nobody has looked.
    effects: list[Effect] | None = None
    # C of this very draw, which may be worse than any in calibration. None where nobody has looked.
    moved: list[Scale] | None = None
    # Of a task that decides (decisions.py): what else is right. None where nobody has looked.
    decides: bool = False
    sides: list[Sides | None] | None = None
    lasts: bool = False  # its tensors lie in no block that the reference writes into

    def last(self) -> None:
        """Has its tensors outlive the reference's blocks."""
        if self.lasts:
            return
        self.sources = [None if s is None else s.copied() for s in self.sources]
        self.wide = [t.clone() for t in self.wide]
        self.eager = None if self.eager is None else [t.clone() for t in self.eager]
        self.lasts = True

    def right(self, i: int, got: torch.Tensor) -> torch.Tensor:
        """Returns the right values of floating output i that are nearest to those given."""
        found = None if self.sides is None else self.sides[i]
        return self.wide[i] if found is None else found.nearest(got, self.wide[i])

    def private(self) -> Expected:
        """Returns what outlives the reference's blocks: nobody has looked closer yet."""
        kept = replace(self, effects=None, moved=None, sides=None)
        kept.last()
        return kept

    def lighten(self) -> None:
        """Forgets what eager gave for an output where all elements are floating and to be trusted:
        only its error is needed.
        """
        if self.eager is not None:
            self.eager = [
                torch.empty(0) if t.is_floating_point() and skip is None else t
                for t, skip in zip(self.eager, self.skips, strict=True)
            ]


@dataclass
class Outcome:
    """One output of a candidate against what was expected."""

    passed: bool
    error: Scale
    bound: Scale
    skipped: int = 0
    reason: str = ""
    mixed: bool = False  # all that is wrong is NaN where Inf is expected, or Inf for NaN
    dropped: int = 0  # elements that are as if NaN among the inputs were a number far away
    lost: int = 0  # that are NaN, where infinity comes of infinity
    either: int = 0  # elements that have two right values, where it is the other one
    unsettled: bool = False  # no more elements are wrong than decisions on this draw may change
    slight: bool = False  # and few, by no more than a decision changes


def untrusted(eager: torch.Tensor, wide: torch.Tensor, scale: Scale) -> torch.Tensor | None:
    """Returns the mask of elements where the reference itself is not to be trusted, or None."""
    mask = torch.empty(wide.shape, dtype=torch.bool, device=wide.device)
    for bad, e, w in chunks(mask, eager, wide):
        off = torch.sub(e, w).abs_()
        torch.gt(off, w.abs().clamp_(min=scale.rms).mul_(OFF), out=bad)
        bad |= ~torch.isfinite(w) | ~torch.isfinite(e)
    return mask if bool(mask.any()) else None


def complete(e: Expected) -> Expected:
    """Fills in what is derived from the reference's outputs:

    scales, eager's own error, elements to skip. Nothing for one that is bare.
    """
    if e.eager is None:
        return e
    e.scales, e.own, e.skips = [], [], []
    for i, (wide, eager) in enumerate(zip(e.wide, e.eager, strict=True)):
        if not wide.is_floating_point():
            e.scales.append(Scale())
            e.own.append(Scale())
            e.skips.append(None)
            continue
        scale = scale_of(wide)
        wide = e.right(i, eager)
        own = error_of(eager, wide, None)
        skip = None
        if not own.max <= OFF * scale.rms:
            skip = untrusted(eager, wide, scale)
            own = error_of(eager, wide, skip)
        e.scales.append(scale)
        e.skips.append(skip)
        e.own.append(own)
    return e


def bound_of(
    noise: Noise, own: Scale, scale: Scale, floor: float, moved: Scale | None = None
) -> Scale:
    """Returns the bound for a draw whose output has this scale and eager this error of its own.

    ``moved`` is the draw's own C, where it is known.
    """

    def one(kind: str) -> float:
        known = getattr(noise.scale, kind)
        # A draw with larger outputs than any in calibration (heavy tails) errs more in proportion.
        stretch = max(1.0, getattr(scale, kind) / known) if known > 0 else 1.0
        e = max(getattr(noise.error, kind) * stretch, getattr(own, kind))
        c = max(getattr(noise.moved, kind) * stretch, getattr(moved, kind) if moved else 0.0)
        return C1 * e + C2 * c + floor + SMALLEST_NORMAL

    return Scale(one("max"), one("rms"))


# How many times as many NaN and Inf a candidate may have astray as eager has: in another order of
# evaluation they spread along a row from another place on, over all outputs they do not. And of so
# many that are expected one may be the other: an elimination that meets both comes to either.
ASTRAY = 64


def kinds(t: torch.Tensor) -> torch.Tensor:
    """Returns 0 for finite, 1 for NaN, 2 for +Inf, 3 for -Inf."""
    found = torch.zeros(t.shape, dtype=torch.int8, device=t.device)
    for kind, c in chunks(found, t):
        if not all(map(math.isfinite, map(float, torch.aminmax(c)))):  # in one pass
            kind.masked_fill_(torch.isnan(c), 1)
            kind.masked_fill_(torch.isposinf(c), 2)
            kind.masked_fill_(torch.isneginf(c), 3)
    return found


def compare(
    got: torch.Tensor,
    expected: Expected,
    i: int,
    noise: Noise,
    floor: float,
    *,
    mask: bool = False,
    exact: bool = False,
) -> Outcome:
    """Compares output i.

    ``mask``: NaN and infinity were planted. Non-finite values must be where float64 has them, as
    far as these depend on what was planted, but for NaN that is excused, and for NaN that is
    dropped. Where eager itself has others on this draw, as many times more tell nothing as ASTRAY
    says, and what is finite for both is compared. NaN instead of Inf, or the other way round, says
    nothing of one in as many. Where more is NaN instead of Inf, infinity is lost.
    ``exact``: no error at all.
    """
    wide = expected.wide[i]
    effect = None if expected.effects is None or not mask else expected.effects[i]
    if not wide.is_floating_point():
        assert expected.eager is not None
        o = _discrete(got, expected, i, noise)
        if effect is not None and not o.passed:
            # It cannot hold NaN: what depends on it is anything.
            dropped = count((got != wide) & effect.depends)
            o = _discrete(torch.where(effect.depends, wide, got), expected, i, noise)
            o.dropped = dropped
        return o
    wide = expected.right(i, got)
    either = 0 if wide is expected.wide[i] else count(wide != expected.wide[i])
    bare = expected.eager is None
    skip = None if bare else expected.skips[i]
    own, scale = (Scale(), Scale()) if bare else (expected.own[i], expected.scales[i])
    moved = None if expected.moved is None else expected.moved[i]
    bound = Scale() if exact else bound_of(noise, own, scale, floor, moved)
    dropped, lost, loose = 0, 0, None
    if mask:
        mine, theirs = kinds(got), kinds(wide)
        wrong = mine != theirs
        if effect is not None:
            wrong &= ~effect.excused
            wide, loose = _without_reason(wrong, mine, wide, effect)
            dropped = _drop(wrong, got, effect, bound.max)
            _forgive(wrong, mine, theirs)
        astray = (
            expected.eager is not None
            and effect is not None
            and count(wrong) <= ASTRAY * _astray(expected.eager[i], theirs, effect.excused)
        )
        if effect is not None and not astray:
            lost = _lose(wrong, mine, theirs)
        if not astray and bool(wrong.any()):
            at = first(wrong)
            names = ("a finite value", "NaN", "+Inf", "-Inf")
            return Outcome(
                False,
                Scale(math.inf, math.inf),
                Scale(),
                0,
                f"{count(wrong)} of {got.numel()} elements differ in being finite: "
                f"element {_index(at, got)} is "
                f"{names[int(mine.view(-1)[at])]}, expected {names[int(theirs.view(-1)[at])]}",
                mixed=all(torch.equal(w, m) for w, m in _mixed(wrong, mine, theirs)),
            )
        nonfinite = theirs != 0
        if astray:
            nonfinite |= mine != 0
        skip = nonfinite if skip is None else skip | nonfinite
        if loose is not None:
            skip &= ~loose  # there the reference gives no number, and the candidate one
    if skip is not None and not mask:
        assert expected.eager is not None
        at = _not_overflown(got, expected.eager[i], wide)
        if at >= 0:
            return Outcome(
                False,
                Scale(math.inf, math.inf),
                Scale(),
                0,
                f"element {_index(at, got)} is {float(got.reshape(-1)[at]):.7g}, expected "
                f"{float(wide.reshape(-1)[at]):.7g}, which float32 does not hold: Inf",
            )
    error = error_of(got, wide, skip)
    passed = error.max <= bound.max and error.rms <= bound.rms
    skipped = 0 if skip is None else count(skip)
    reason = "" if passed else _floating_reason(got, wide, skip, error, bound)
    o = Outcome(passed, error, bound, skipped, reason, dropped=dropped, lost=lost, either=either)
    if not passed and expected.sides is not None:
        far = _far(got, wide, skip, bound.max)
        o.unsettled = _is_unsettled(expected, i, far, bound.max)
        o.slight = o.unsettled and _is_slight(expected, i, got, far, bound.max)
    return o


def _far(
    got: torch.Tensor, wide: torch.Tensor, skip: torch.Tensor | None, limit: float
) -> torch.Tensor:
    """Returns which elements are off by more than that."""
    d = (got.double() - wide).abs_()
    wrong = ~(d <= limit) & ~((got == wide) | (torch.isnan(got) & torch.isnan(wide)))
    return wrong if skip is None else wrong & ~skip


def _is_unsettled(expected: Expected, i: int, wrong: torch.Tensor, limit: float) -> bool:
    """Whether so few elements of output i are wrong that decisions may do it, which each look at
    float64 took in its own way: another draw tells more.
    """
    found = None if expected.sides is None else expected.sides[i]
    return found is not None and 0 < count(wrong) <= count(found.span() > OPEN_BOUNDS * limit)


def _is_slight(
    expected: Expected, i: int, got: torch.Tensor, wrong: torch.Tensor, limit: float
) -> bool:
    """Whether that may be let pass where there is no other draw: few elements are wrong, no more
    than may jump to another side of a decision, and by no more than one of these does.
    """
    found = None if expected.sides is None else expected.sides[i]
    n = count(wrong)
    if found is None or not 0 < n <= max(OPEN_SHARE * wrong.numel(), OPEN_COUNT):
        return False
    span = found.span()
    jumps = span > OPEN_BOUNDS * limit
    if n > count(jumps):
        return False
    off = (got[wrong].double() - expected.wide[i][wrong].double()).abs()
    return bool((off <= float(span[jumps].max()) + limit).all())  # no where one is NaN


def _without_reason(
    wrong: torch.Tensor, mine: torch.Tensor, wide: torch.Tensor, effect: Effect
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Takes out of ``wrong`` where the candidate gives a number and the reference none, although
    nothing depends on what was planted there: it is right if it is what ordinary numbers give.
    Returns what is expected then, and these places, None where there are none.
    """
    loose = wrong & effect.bad & ~effect.depends & (mine == 0)
    if not bool(loose.any()):
        return wide, None
    wrong &= ~loose
    wide = wide.clone()
    wide[effect.bad] = torch.where(loose[effect.bad], effect.ordinary, wide[effect.bad])
    return wide, loose


def _drop(wrong: torch.Tensor, got: torch.Tensor, effect: Effect, limit: float) -> int:
    """Takes out of ``wrong`` where NaN is expected, and what is given is, within the bound, what a
    number far above or far below would give in its place. Returns where NaN is dropped so: how many
    of these the two give different results for.
    """
    left, given = wrong[effect.nan], got[effect.nan].double()
    if not bool(left.any()):
        return 0
    above, below = (
        (given == far)
        | (torch.isfinite(far) & ((given - far).abs() <= limit + FAR_ROUNDING * far.abs()))
        for far in effect.far
    )
    wrong[effect.nan] = left & ~(above | below)
    return count(left & (above ^ below))


def _mixed(
    wrong: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields where something is wrong, by chunks, and where that is NaN for Inf or Inf for NaN."""
    for w, m, t in chunks(wrong, mine, theirs):
        if bool(w.any()):
            yield w, w & (m != 0) & (t != 0) & ((m == 1) | (t == 1))


def _forgive(wrong: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Takes out of ``wrong`` where NaN stands for Inf or Inf for NaN, if that is one in ASTRAY."""
    if ASTRAY * sum(count(m) for _, m in _mixed(wrong, mine, theirs)) <= count(theirs != 0):
        for w, m in _mixed(wrong, mine, theirs):
            w &= ~m


def _lose(wrong: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor) -> int:
    """Takes out of ``wrong`` where NaN stands for Inf. Returns how many these are: a sum that is
    taken apart comes to Inf - Inf, as of codes and their zero point.
    """
    lost = 0
    for w, m, t in chunks(wrong, mine, theirs):
        found = w & (m == 1) & (t > 1)
        lost += count(found)
        w &= ~found
    return lost


def _astray(eager: torch.Tensor, wide: torch.Tensor, excused: torch.Tensor) -> int:
    """Returns where so often eager has other NaN and Inf than float64, whose ``kinds`` are given:
    the product of a few hundred numbers below one is 0 for float32, and 0 * Inf is NaN where it was
    Inf.
    """
    if eager.numel() != wide.numel():  # it was trusted everywhere, and let go
        return 0
    pieces = chunks(eager, wide, excused)
    return sum(count((kinds(e) != w) & ~x) for e, w, x in pieces)


def _not_overflown(got: torch.Tensor, eager: torch.Tensor, wide: torch.Tensor) -> int:
    """Returns where a number stands for a value that no float32 holds, or -1.

    There eager is infinite. NaN is let pass: another order of evaluation may come to Inf - Inf.
    """
    limit = OVERFLOWN * torch.finfo(torch.float32).max
    for k, (g, e, w) in enumerate(chunks(got, eager, wide)):
        wrong = torch.isinf(e) & (w.abs() > limit) & (torch.sign(e) == torch.sign(w))
        if not bool(wrong.any()):
            continue
        wrong &= torch.isfinite(g) | (torch.isinf(g) & (torch.sign(g) != torch.sign(w)))
        if bool(wrong.any()):
            return k * chunk_of(got) + int(wrong.nonzero()[0])
    return -1


def _index(flat: int, t: torch.Tensor) -> str:
    at: list[int] = []
    for d in reversed(t.shape):
        at.append(flat % d)
        flat //= d
    return "[" + ", ".join(map(str, reversed(at))) + "]"


def _floating_reason(
    got: torch.Tensor, wide: torch.Tensor, skip: torch.Tensor | None, error: Scale, bound: Scale
) -> str:
    worst, at, over, bad = -1.0, 0, 0, 0
    given = [got, wide] if skip is None else [got, wide, skip]
    for k, (g, w, *left_out) in enumerate(chunks(*given)):
        d = (g.double() - w).abs_()
        d = torch.where(torch.isnan(d), math.inf, d)
        if left_out:
            d.masked_fill_(left_out[0], 0.0)
        top, where = d.max(0)
        if float(top) > worst:
            worst, at = float(top), k * chunk_of(got) + int(where)
        over += int((d > bound.max).sum())
        bad += int((~torch.isfinite(g) & torch.isfinite(w)).sum())
    mine, theirs = float(got.reshape(-1)[at]), float(wide.reshape(-1)[at])
    values = f"element {_index(at, got)} is {mine:.7g}, expected {theirs:.7g}"
    if not math.isfinite(error.max):
        return f"{bad} of {got.numel()} elements are not finite: {values}"
    if over:
        return (
            f"{over} of {got.numel()} elements are off by more than the {bound.max:.3g} allowed, "
            f"the worst by {error.max:.3g}: {values}"
        )
    return (
        f"the root mean square error is {error.rms:.3g}, allowed {bound.rms:.3g}; "
        f"the largest is {error.max:.3g}: {values}"
    )


def whole(t: torch.Tensor, limit: float) -> bool:
    """Whether all elements are whole numbers below a limit."""
    return all(bool((c.abs() < limit).all()) and torch.equal(c, c.round()) for c in chunks(t))


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers, whatever their types."""
    return all(torch.equal(x.double(), y.double()) for x, y in chunks(a, b))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two runs agree up to the rounding of another order of summation."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = scale_of(a).rms
    for x, y in chunks(a, b):
        x, y = x.double(), y.double()
        agree = (x == y) | (torch.isnan(x) & torch.isnan(y))
        agree |= torch.isfinite(x) & ((x - y).abs() <= 1e-5 * (x.abs() + scale))
        if not bool(agree.all()):
            return False
    return True


def near(got: torch.Tensor, eager: torch.Tensor, limit: float) -> bool:
    """Whether an output is this near to eager's wherever eager's is finite; integers are equal.

    A quick yes. A no says nothing: eager is not the truth, and float64 then decides.
    """
    if not eager.is_floating_point():
        return torch.equal(got, eager)
    for g, e in chunks(got, eager):
        d = torch.sub(g, e).abs_()
        if bool((d <= limit).all()):
            continue
        # As in verification: where eager itself is not finite, nothing is compared.
        if not bool(((d <= limit) | ~torch.isfinite(e)).all()):
            return False
    return True


def _discrete(got: torch.Tensor, expected: Expected, i: int, noise: Noise) -> Outcome:
    wide, source = expected.wide[i], expected.sources[i]
    assert expected.eager is not None
    eager = expected.eager[i]
    differ = got != wide
    n = count(differ)
    if not n:
        return Outcome(True, Scale(), Scale())
    tolerance = C1 * noise.source
    allowed = Scale(tolerance, tolerance)
    sides = None if expected.sides is None else expected.sides[i]
    if source is not None and source.kind == "index":
        o = _indices(got, wide, source, allowed)
        if not o.passed and sides is not None:
            o = _indices(torch.where(sides.meets(got), wide, got), wide, source, allowed)
        return o
    either = torch.zeros_like(differ) if sides is None else differ & sides.allows(got)
    forgiven = eager != wide  # float32 itself cannot tell
    if expected.decides:
        # It may be on the other side, as eager is, but nowhere else.
        beyond = sides is not None and ~sides.allows(eager)
        forgiven = forgiven & ((got == eager) | beyond)
    elif source is not None and source.kind == "margin" and source.values.shape == got.shape:
        forgiven = forgiven.contiguous()
        for f, v in chunks(forgiven, source.values):
            f |= v.abs() <= tolerance
    left = differ & ~forgiven & ~either
    wrong = count(left)
    if not wrong:
        o = Outcome(True, Scale(), allowed, n)
        o.either = n
        return o
    at = first(left)
    return Outcome(
        False,
        Scale(math.inf, math.inf),
        allowed,
        n - wrong,
        f"{wrong} of {got.numel()} elements differ: "
        f"element {_index(at, got)} is {got.view(-1)[at].item()}, "
        f"expected {wide.view(-1)[at].item()}",
        unsettled=_is_unsettled(expected, i, left, 0.0),
        slight=_is_slight(expected, i, got, left, 0.0),
    )


def _indices(got: torch.Tensor, wide: torch.Tensor, source: Source, allowed: Scale) -> Outcome:
    """Compares indices by the float64 values that they point at:

    ties and near ties are no mistakes.
    """
    values, dim = source.values, source.dim
    infinite = Scale(math.inf, math.inf)
    if int(got.min()) < 0 or int(got.max()) >= values.shape[dim]:
        return Outcome(
            False,
            infinite,
            allowed,
            0,
            f"indices run from {int(got.min())} to {int(got.max())}, "
            f"dimension {dim} has {values.shape[dim]}",
        )
    shape = list(values.shape)
    shape[dim] = wide.numel() * shape[dim] // values.numel()
    if math.prod(shape) != wide.numel():
        wrong = count(got != wide)
        return Outcome(False, infinite, allowed, 0, f"{wrong} of {got.numel()} indices differ")
    mine = got.reshape(shape)
    if source.several and shape[dim] > 1 and bool((mine.sort(dim).values.diff(dim=dim) == 0).any()):
        return Outcome(False, infinite, allowed, 0, "an index is given twice")
    theirs = values.gather(dim, wide.reshape(shape))
    chosen = values.gather(dim, mine)
    d = (chosen - theirs).abs()
    d = torch.where(torch.isnan(theirs) & torch.isnan(chosen) | (chosen == theirs), 0.0, d.double())
    d = torch.where(torch.isnan(d), math.inf, d)
    error = Scale(float(d.max()), float(d.max()))
    if error.max <= allowed.max:
        return Outcome(True, error, allowed, count(got != wide))
    at = int(d.view(-1).argmax())
    return Outcome(
        False,
        error,
        allowed,
        0,
        f"{count(d > allowed.max)} of {got.numel()} indices are wrong: "
        f"one is {int(mine.view(-1)[at])}, where the value is {float(chosen.view(-1)[at]):.7g}; "
        f"index {int(wide.reshape(shape).view(-1)[at])} has "
        f"{float(theirs.view(-1)[at]):.7g}",
    )


def kernelbench_passes(got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> bool:
    """Whether KernelBench's allclose would have passed, on its tolerances for float32."""
    t = KERNELBENCH_TOLERANCE
    return all(
        g.shape == e.shape
        and all(torch.allclose(a.double(), b.double(), atol=t, rtol=t) for a, b in chunks(g, e))
        for g, e in zip(got, eager, strict=True)
    )

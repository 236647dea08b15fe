"""The gate: when an output is the reference's.

Pure functions over tensors; who gets them from where is verify.py's.

A floating output passes when, on the maximum and on the root mean square over all its elements,

    error <= C1 * E + C2 * C + floor

against the float64 expected value. E is the largest error that an honest float32 computation made
on this task: eager's and torch.compile's, over all calibration seeds and on the very draw, and
that of the reference with float32 rounding simulated (noise.py). C is how far the float64 output
moves when every input moves by one unit in its last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

# An honest implementation may add a few roundings where the reference has one, or sum in a worse
# order; measured, honest rewrites stay within 3 E. TF32 and half precision are past 1000 E element
# by element and, since their error grows with the square root of a sum's length while the
# simulated one grows with the length, still past 20 E for dot products over 16384 elements.
C1 = 8.0
# C comes from one random pattern of signs; a worse one, or two roundings of an input, moves the
# output further.
C2 = 4.0
# Of the output's root mean square under the base distribution: two units in the last place of a
# typical element.
FLOOR = 2.0**-22
SMALLEST_NORMAL = 2.0**-126  # below it float32 has denormals, which may be flushed to zero
# Where eager is further than this off float64, relative to the element or to a typical one, nothing
# is known.
OFF = 0.1
ILL = 0.01  # a C above this share of the output: the task is ill-conditioned
SENSITIVE = 100.0  # bounds by which one moved element must change float64, to count

# KernelBench's for float32.
KERNELBENCH_TOLERANCE = 1e-4


@dataclass
class Scale:
    """How large an output, or an error, is."""

    max: float = 0.0
    rms: float = 0.0

    def widen(self, other: Scale) -> None:
        self.max = max(self.max, other.max)
        self.rms = max(self.rms, other.rms)


@dataclass
class Noise:
    """What is known of one output of one family from calibration."""

    error: Scale = field(default_factory=Scale)  # E
    moved: Scale = field(default_factory=Scale)  # C
    scale: Scale = field(default_factory=Scale)  # of the float64 output
    source: float = 0.0  # E of the values behind indices and booleans, maximum

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, d: dict[str, Any]) -> Noise:
        return cls(
            Scale(**d["error"]), Scale(**d["moved"]), Scale(**d["scale"]), float(d["source"])
        )


@dataclass
class Expected:
    """What the reference says to one draw, in the referee's private memory."""

    wide: list[torch.Tensor]  # float64 where floating
    eager: list[torch.Tensor]
    sources: list[dict[str, Any] | None]  # {"kind", "values", "dim", "several"} per output
    skips: list[torch.Tensor | None] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)
    own: list[Scale] = field(default_factory=list)  # eager's error on this draw

    def private(self) -> Expected:
        """Returns a copy that outlives the reference's blocks."""
        sources = [
            None if s is None else {**s, "values": s["values"].clone()} for s in self.sources
        ]
        tensors = [t.clone() for t in self.wide], [t.clone() for t in self.eager]
        return Expected(*tensors, sources, self.skips, self.scales, self.own)


@dataclass
class Outcome:
    """One output of a candidate against what was expected."""

    passed: bool
    error: Scale
    bound: Scale
    skipped: int = 0
    reason: str = ""


# Squares of what lies between these hold in float64.
_SMALL, _LARGE = 1e-140, 1e140


def scale_of(t: torch.Tensor) -> Scale:
    """Returns maximum and root mean square of the finite elements."""
    if not t.numel():
        return Scale()
    top = _top(t)
    if math.isfinite(top):
        return Scale(top, _rms(t, top, t.numel()))
    finite = t[torch.isfinite(t)]
    return scale_of(finite) if finite.numel() else Scale()


def _top(t: torch.Tensor) -> float:
    """Returns the largest magnitude; NaN where there is one."""
    low, high = (float(x) for x in torch.aminmax(t))
    return math.nan if math.isnan(low) or math.isnan(high) else max(abs(low), abs(high))


def _rms(t: torch.Tensor, top: float, n: int) -> float:
    if top == 0.0:
        return 0.0
    if _SMALL < top < _LARGE:
        return float(torch.linalg.vector_norm(t, dtype=torch.float64)) / math.sqrt(max(n, 1))
    return (
        top * float(torch.linalg.vector_norm(t / top, dtype=torch.float64)) / math.sqrt(max(n, 1))
    )


def error_of(got: torch.Tensor, wide: torch.Tensor, skip: torch.Tensor | None) -> Scale:
    """Returns the error over all elements but the skipped ones.

    Infinite where a value is not finite and should be.
    """
    d = torch.sub(got, wide)
    if not d.numel():
        return Scale()
    n = d.numel()
    if skip is not None:
        d.masked_fill_(skip, 0.0)
        n -= int(skip.sum())
    top = _top(d)
    if not math.isfinite(top):
        return Scale(math.inf, math.inf)
    return Scale(top, _rms(d, top, n))


def untrusted(eager: torch.Tensor, wide: torch.Tensor, scale: Scale) -> torch.Tensor | None:
    """Returns the mask of elements where the reference itself is not to be trusted, or None."""
    off = torch.sub(eager, wide).abs_()
    bad = ~(off <= OFF * wide.abs().clamp_(min=scale.rms))  # NaN is bad too
    bad |= ~torch.isfinite(wide) | ~torch.isfinite(eager)
    return bad if bool(bad.any()) else None


def complete(e: Expected) -> Expected:
    """Fills in what is derived from the reference's outputs:

    scales, eager's own error, elements to skip.
    """
    for wide, eager in zip(e.wide, e.eager, strict=True):
        if not wide.is_floating_point():
            e.scales.append(Scale())
            e.own.append(Scale())
            e.skips.append(None)
            continue
        scale = scale_of(wide)
        own = error_of(eager, wide, None)
        skip = None
        if not own.max <= OFF * scale.rms:
            skip = untrusted(eager, wide, scale)
            own = error_of(eager, wide, skip)
        e.scales.append(scale)
        e.skips.append(skip)
        e.own.append(own)
    return e


def bound_of(noise: Noise, own: Scale, scale: Scale, floor: float) -> Scale:
    """Returns the bound for a draw whose output has this scale and eager this error of its own."""

    def one(kind: str) -> float:
        known = getattr(noise.scale, kind)
        # A draw with larger outputs than any in calibration (heavy tails) errs more in proportion.
        stretch = max(1.0, getattr(scale, kind) / known) if known > 0 else 1.0
        e = max(getattr(noise.error, kind) * stretch, getattr(own, kind))
        return C1 * e + C2 * getattr(noise.moved, kind) * stretch + floor + SMALLEST_NORMAL

    return Scale(one("max"), one("rms"))


def kinds(t: torch.Tensor) -> torch.Tensor:
    """Returns 0 for finite, 1 for NaN, 2 for +Inf, 3 for -Inf."""
    return (
        torch.isnan(t).to(torch.int8)
        + 2 * torch.isposinf(t).to(torch.int8)
        + 3 * torch.isneginf(t).to(torch.int8)
    )


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

    ``mask``: non-finite values must be where float64 has them. ``exact``: no error at all.
    """
    wide, eager = expected.wide[i], expected.eager[i]
    if not wide.is_floating_point():
        return _discrete(got, wide, eager, expected.sources[i], noise)
    skip = expected.skips[i]
    if mask:
        mine, theirs = kinds(got), kinds(wide)
        wrong = mine != theirs
        if bool(wrong.any()):
            at = int(wrong.view(-1).nonzero()[0])
            names = ("a finite value", "NaN", "+Inf", "-Inf")
            return Outcome(
                False,
                Scale(math.inf, math.inf),
                Scale(),
                0,
                f"{int(wrong.sum())} of {got.numel()} elements differ in being finite: "
                f"element {_index(at, got)} is "
                f"{names[int(mine.view(-1)[at])]}, expected {names[int(theirs.view(-1)[at])]}",
            )
        nonfinite = theirs != 0
        skip = nonfinite if skip is None else skip | nonfinite
    elif skip is not None and got.is_floating_point():
        pass
    error = error_of(got, wide, skip)
    bound = Scale() if exact else bound_of(noise, expected.own[i], expected.scales[i], floor)
    passed = error.max <= bound.max and error.rms <= bound.rms
    skipped = 0 if skip is None else int(skip.sum())
    reason = "" if passed else _floating_reason(got, wide, skip, error, bound)
    return Outcome(passed, error, bound, skipped, reason)


def _index(flat: int, t: torch.Tensor) -> str:
    at: list[int] = []
    for d in reversed(t.shape):
        at.append(flat % d)
        flat //= d
    return "[" + ", ".join(map(str, reversed(at))) + "]"


def _floating_reason(
    got: torch.Tensor, wide: torch.Tensor, skip: torch.Tensor | None, error: Scale, bound: Scale
) -> str:
    d = (got.double() - wide).abs_()
    d = torch.where(torch.isnan(d), math.inf, d)
    if skip is not None:
        d.masked_fill_(skip, 0.0)
    flat = d.view(-1)
    at = int(flat.argmax())
    over = int((flat > bound.max).sum())
    mine, theirs = float(got.view(-1)[at]), float(wide.view(-1)[at])
    values = f"element {_index(at, got)} is {mine:.7g}, expected {theirs:.7g}"
    if not math.isfinite(error.max):
        bad = int((~torch.isfinite(got) & torch.isfinite(wide)).sum())
        return f"{bad} of {got.numel()} elements are not finite: {values}"
    if over:
        return (
            f"{over} of {got.numel()} elements are off by more than {bound.max:.3g}, "
            f"at most {error.max:.3g}: {values}"
        )
    return (
        f"the root mean square error is {error.rms:.3g}, allowed {bound.rms:.3g}; "
        f"the largest is {error.max:.3g}: {values}"
    )


def _discrete(
    got: torch.Tensor,
    wide: torch.Tensor,
    eager: torch.Tensor,
    source: dict[str, Any] | None,
    noise: Noise,
) -> Outcome:
    differ = got != wide
    n = int(differ.sum())
    if not n:
        return Outcome(True, Scale(), Scale())
    tolerance = C1 * noise.source
    allowed = Scale(tolerance, tolerance)
    if source is not None and source["kind"] == "index":
        return _indices(got, wide, source, allowed)
    forgiven = eager != wide  # float32 itself cannot tell
    if source is not None and source["kind"] == "margin" and source["values"].shape == got.shape:
        forgiven |= source["values"].abs() <= tolerance
    left = differ & ~forgiven
    wrong = int(left.sum())
    if not wrong:
        return Outcome(True, Scale(), allowed, n)
    at = int(left.view(-1).nonzero()[0])
    return Outcome(
        False,
        Scale(math.inf, math.inf),
        allowed,
        n - wrong,
        f"{wrong} of {got.numel()} elements differ: "
        f"element {_index(at, got)} is {got.view(-1)[at].item()}, "
        f"expected {wide.view(-1)[at].item()}",
    )


def _indices(
    got: torch.Tensor, wide: torch.Tensor, source: dict[str, Any], allowed: Scale
) -> Outcome:
    """Compares indices by the float64 values that they point at:

    ties and near ties are no mistakes.
    """
    values, dim = source["values"], int(source["dim"])
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
    several = bool(source.get("several"))
    shape[dim] = wide.shape[dim] if several else 1
    if math.prod(shape) != wide.numel():
        wrong = int((got != wide).sum())
        return Outcome(False, infinite, allowed, 0, f"{wrong} of {got.numel()} indices differ")
    mine = got.reshape(shape)
    if several and shape[dim] > 1 and bool((mine.sort(dim).values.diff(dim=dim) == 0).any()):
        return Outcome(False, infinite, allowed, 0, "an index is given twice")
    theirs = values.gather(dim, wide.reshape(shape))
    chosen = values.gather(dim, mine)
    d = (chosen - theirs).abs()
    d = torch.where(torch.isnan(theirs) & torch.isnan(chosen) | (chosen == theirs), 0.0, d.double())
    d = torch.where(torch.isnan(d), math.inf, d)
    error = Scale(float(d.max()), float(d.max()))
    if error.max <= allowed.max:
        return Outcome(True, error, allowed, int((got != wide).sum()))
    at = int(d.view(-1).argmax())
    return Outcome(
        False,
        error,
        allowed,
        0,
        f"{int((d > allowed.max).sum())} of {got.numel()} indices are wrong: "
        f"one is {int(mine.view(-1)[at])}, where the value is {float(chosen.view(-1)[at]):.7g}; "
        f"index {int(wide.reshape(shape).view(-1)[at])} has "
        f"{float(theirs.view(-1)[at]):.7g}",
    )


def kernelbench_passes(got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> bool:
    """Whether KernelBench's allclose would have passed, on its tolerances for float32."""
    t = KERNELBENCH_TOLERANCE
    return all(
        g.shape == e.shape and torch.allclose(g.double(), e.double(), atol=t, rtol=t)
        for g, e in zip(got, eager, strict=True)
    )

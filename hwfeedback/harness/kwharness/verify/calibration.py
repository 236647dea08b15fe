"""What follows from a calibration."""

from __future__ import annotations

from collections.abc import Sequence

from kwharness.base.calibration import BASE, Calibration, Scale
from kwharness.numerics import correctness
from kwharness.numerics.families import FEW_TERMS, Traits
from kwharness.numerics.input_structure import Structure


def floor(c: Calibration, i: int, family: str = BASE) -> Scale:
    """The absolute part of the bound of output i: that of the reference's own draws, but where
    few terms are left, and it is that much smaller.
    """
    few = c.family(family) if family == FEW_TERMS.name else None
    scale = (few or c.base).outputs[i].scale
    return Scale(correctness.FLOOR * scale.rms, correctness.FLOOR * scale.rms)


def traits(c: Calibration, found: Sequence[Structure]) -> Traits:
    """What families go by, with the structures of the inputs as they were found just now."""
    return Traits(c.axes, c.lines, c.factors, found, c.given)

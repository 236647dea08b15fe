"""What an honest error is on a task: numbers that are measured once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kwharness.base.carried import NOTHING, Carried
from kwharness.numerics import (
    correctness,
)
from kwharness.numerics.correctness import Noise
from kwharness.numerics.families import (
    FEW_TERMS,
    Axis,
    Traits,
)
from kwharness.numerics.input_structure import Structure
from kwharness.numerics.norms import Scale
from kwharness.numerics.orders import Line

CALIBRATION = 19  # version of what is kept: part of its check


@dataclass
class FamilyCalibration:
    """One family on one task."""

    name: str
    gates: bool
    note: str
    exact: bool
    outputs: list[Noise]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gates": self.gates,
            "note": self.note,
            "exact": self.exact,
            "outputs": [n.to_json() for n in self.outputs],
        }


@dataclass
class Calibration:
    """What an honest error is on a task. Plain numbers, kept in the cache."""

    families: dict[str, FamilyCalibration] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wide: bool = True  # the expected value is float64's
    linear: bool = False
    compiled: bool = True
    axes: list[Axis] = field(default_factory=list)  # whose order changes nothing
    lines: list[Line] = field(default_factory=list)  # that are reduced, sorted or scanned
    factors: list[Line] = field(default_factory=list)  # that products are added up along
    structures: list[list[str]] = field(default_factory=list)  # of each input, in words,
    kinds: list[list[str]] = field(default_factory=list)  # and of which kinds
    many_terms: bool = False  # to each output
    decides: bool = False  # the reference rounds, compares, searches, counts or orders
    aimed: bool = False  # and inputs can be moved to where it does, on which the honest are right
    # By key the way in which the reference bears a change of what is never varied (assumptions.py).
    assumptions: dict[str, int] = field(default_factory=dict)
    spent: bool = False  # the reference's process is of no more use
    outputs: list[torch.Tensor] = field(default_factory=list, compare=False)  # while calibrated
    by_rows: bool = False  # float64 is the same on each family when a batch is computed in parts
    carried: Carried = NOTHING  # from call to call

    def floor(self, i: int, family: str = "base") -> Scale:
        """The absolute part of the bound of output i: that of the reference's own draws, but where
        few terms are left, and it is that much smaller.
        """
        of = family if family == FEW_TERMS.name and family in self.families else "base"
        scale = self.families[of].outputs[i].scale
        return Scale(correctness.FLOOR * scale.rms, correctness.FLOOR * scale.rms)

    def traits(self, found: Sequence[Structure]) -> Traits:
        """What families go by, with the structures of the inputs as they were found just now."""
        return Traits(self.axes, self.lines, self.factors, found, self.given)

    @property
    def given(self) -> int | None:
        """How many tensors forward takes, None where all that is drawn are."""
        return self.carried.given if self.carried else None

    def to_json(self) -> dict[str, Any]:
        return {
            "version": CALIBRATION,
            "families": [f.to_json() for f in self.families.values()],
            "notes": self.notes,
            "wide": self.wide,
            "linear": self.linear,
            "compiled": self.compiled,
            "axes": self.axes,
            "lines": [[at.input, at.start, at.stop] for at in self.lines],
            "factors": [[at.input, at.start, at.stop] for at in self.factors],
            "structures": self.structures,
            "kinds": self.kinds,
            "many_terms": self.many_terms,
            "decides": self.decides,
            "aimed": self.aimed,
            "assumptions": self.assumptions,
            "by_rows": self.by_rows,
            "carried": self.carried.to_json(),
        }

    @classmethod
    def from_json(cls, d: Any) -> Calibration | None:
        """Returns a calibration from the cache, or None where it is another version's."""
        if not isinstance(d, dict) or d.get("version") != CALIBRATION:
            return None
        found = {
            f["name"]: FamilyCalibration(
                f["name"],
                f["gates"],
                f["note"],
                f["exact"],
                [Noise.from_json(n) for n in f["outputs"]],
            )
            for f in d["families"]
        }
        return cls(
            found,
            list(d["notes"]),
            d["wide"],
            d["linear"],
            d["compiled"],
            axes=[tuple((i, dim) for i, dim in axis) for axis in d["axes"]],
            lines=[Line(*at) for at in d["lines"]],
            factors=[Line(*at) for at in d["factors"]],
            structures=[list(says) for says in d["structures"]],
            kinds=[list(kinds) for kinds in d["kinds"]],
            many_terms=bool(d["many_terms"]),
            decides=bool(d["decides"]),
            aimed=bool(d["aimed"]),
            assumptions={str(k): int(way) for k, way in d["assumptions"].items()},
            by_rows=bool(d["by_rows"]),
            carried=Carried.from_json(d["carried"]),
        )

"""What an honest error is on a task: numbers that are measured once and kept.

verify makes them, and holds a candidate to them. Go keeps them as they came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch

from kwharness.base.carried import NOTHING, Carried
from kwharness.base.records import INSIDE, Message, ProtocolError

CALIBRATION = 19  # version of what is kept: one of another version is none
BASE = "base"  # the family of the reference's own draws

Axis = tuple[tuple[int, int], ...]  # dimensions permuted alike: (input, dimension) each


class Line(NamedTuple):
    """Dimensions ``start`` to ``stop`` of an input, without the last, taken as one."""

    input: int
    start: int
    stop: int


@dataclass
class Scale(Message):
    """How large an output, or an error, is."""

    max: float = 0.0  # the largest magnitude
    rms: float = 0.0  # the root mean square

    def widen(self, other: Scale) -> None:
        self.max = max(self.max, other.max)
        self.rms = max(self.rms, other.rms)


@dataclass
class Noise(Message):
    """What is known of one output of one family from calibration."""

    error: Scale = field(default_factory=Scale)  # E
    moved: Scale = field(default_factory=Scale)  # C
    scale: Scale = field(default_factory=Scale)  # of the float64 output
    source: float = 0.0  # E of the values behind indices and booleans, maximum


@dataclass
class FamilyCalibration(Message):
    """One family on one task."""

    name: str
    gates: bool  # False: an honest implementation fails on it, too
    note: str
    exact: bool  # what is right is right to the last bit
    outputs: list[Noise]  # one each


@dataclass
class Calibration(Message):
    """What an honest error is on a task."""

    version: int = CALIBRATION
    families: list[FamilyCalibration] = field(default_factory=list)  # BASE first
    notes: list[str] = field(default_factory=list)  # a sentence each
    wide: bool = True  # the expected value is float64's
    linear: bool = False
    compiled: bool = True  # torch.compile has had its say
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
    by_rows: bool = False  # float64 is the same on each family when a batch is computed in parts
    carried: Carried = NOTHING  # from call to call
    # While it is made.
    spent: bool = field(default=False, metadata=INSIDE)  # the process is of no more use
    outputs: list[torch.Tensor] = field(default_factory=list, compare=False, metadata=INSIDE)

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Raises ProtocolError for one of another version, too."""
        if not isinstance(value, dict) or value.get("version") != CALIBRATION:
            raise ProtocolError("a calibration of another version")
        found = super().from_json(value, where)
        if found.family(BASE) is None:
            raise ProtocolError("a calibration of nothing")
        return found

    def family(self, name: str) -> FamilyCalibration | None:
        """Returns what is known of a family, None of one that tells nothing of this task."""
        return next((f for f in self.families if f.name == name), None)

    @property
    def base(self) -> FamilyCalibration:
        """What is known of the reference's own draws."""
        found = self.family(BASE)
        if found is None:
            raise KeyError(BASE)
        return found

    @property
    def given(self) -> int | None:
        """How many tensors forward takes, None where all that is drawn are."""
        return self.carried.given if self.carried else None

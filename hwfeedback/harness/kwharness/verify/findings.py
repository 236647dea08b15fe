"""What a verification finds: a failure, or a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kwharness.base.calibration import FamilyCalibration
from kwharness.base.constants import SHARED
from kwharness.base.records import INSIDE
from kwharness.base.verdicts import CorrectnessReport, FamilyReport
from kwharness.numerics.correctness import Outcome

NEVER_SETTLED = "advisory: decisions on each draw of it fall either way within the bound"


# Verification.


class Failed(Exception):
    """A gate was not passed.

    ``status`` is ``wrong`` or ``cheated``; the message is one sentence.
    """

    def __init__(
        self,
        status: str,
        reason: str,
        hint: str = "",
        *,
        near: bool = False,
        mixed: bool = False,
        unsettled: bool = False,
        slight: bool = False,
    ) -> None:
        """``near``: it may be that the bound is too narrow, as one random pattern showed it.
        ``mixed``: it is the draw, if no other one shows the same. ``unsettled``: likewise, as
        decisions on it may fall either way; ``slight``: by no more than these explain.
        """
        super().__init__(reason)
        self.status = status
        self.hint = hint
        self.near, self.mixed, self.unsettled, self.slight = near, mixed, unsettled, slight


@dataclass
class Report(CorrectnessReport):
    """The report, as it grows, with what is in no message."""

    drops_nan: bool = field(default=False, metadata=INSIDE)
    loses_infinity: bool = field(default=False, metadata=INSIDE)
    either: int = field(default=0, metadata=INSIDE)  # elements with two right values: the other,
    compared: int = field(default=0, metadata=INSIDE)  # of so many
    evidence: list[str] = field(default_factory=list, metadata=INSIDE)

    def family(self, name: str) -> FamilyReport | None:
        """Returns what is known of a family."""
        return next((f for f in self.families if f.name == name), None)

    def row(self, name: str) -> FamilyReport | None:
        """Returns what is known of a family, to be put back."""
        row = self.family(name)
        return None if row is None else replace(row)

    def put(self, name: str, row: FamilyReport | None) -> None:
        """Puts it back."""
        at = [f.name for f in self.families].index(name) if self.family(name) else None
        if at is not None:
            self.families[at : at + 1] = [row] if row is not None else []
        elif row is not None:
            self.families.append(row)

    def add(self, family: FamilyCalibration, name: str, outcomes: Sequence[Outcome]) -> None:
        row = self.family(name)
        if row is None:
            row = FamilyReport(name, family.gates, True, 0, 0.0, 0.0, 0.0, 0.0, note=family.note)
            self.families.append(row)
        row.seeds += 1
        for o in outcomes:
            row.skipped += o.skipped
            row.passed = row.passed and o.passed
            # The output and the draw that came closest to its bound, so that error and bound
            # belong together.
            if _closer(o.error.max, o.bound.max, row.max_error, row.max_bound):
                row.max_error, row.max_bound = _finite(o.error.max), _finite(o.bound.max)
            if _closer(o.error.rms, o.bound.rms, row.rms_error, row.rms_bound):
                row.rms_error, row.rms_bound = _finite(o.error.rms), _finite(o.bound.rms)
        if any(o.dropped for o in outcomes):
            row.note = f"{family.note}; NaN is dropped (advisory)".removeprefix("; ")
        if any(o.lost for o in outcomes):
            row.note = f"{row.note}; infinity is lost (advisory)".removeprefix("; ")
        if not row.passed and not family.gates and "advisory" not in row.note:
            reasons = "; ".join(o.reason for o in outcomes if o.reason)
            row.note = f"{row.note} (advisory: {reasons})"


def _closer(error: float, bound: float, error_before: float, bound_before: float) -> bool:
    """Whether an error came closer to its bound than one before."""
    before = error_before / bound_before if bound_before else -1.0
    return (error / bound if bound else (math.inf if error else 0.0)) > before


def _finite(value: float) -> float:
    return value if math.isfinite(value) else SHARED.not_finite

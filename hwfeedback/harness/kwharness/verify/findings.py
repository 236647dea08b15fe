"""What a verification finds: a failure, or a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kwharness.base.constants import SHARED
from kwharness.numerics.correctness import Outcome
from kwharness.verify import calibration

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
class Report:
    """CorrectnessReport, as it grows."""

    precision: str
    seeds: int = 0
    families: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernelbench: bool | None = None
    deterministic: bool | None = None
    drops_nan: bool = False
    loses_infinity: bool = False
    either: int = 0  # elements that have two right values, where it gave the other,
    compared: int = 0  # of so many
    caches_weights: bool | None = None
    follows_weights: bool | None = None
    general: bool | None = None
    evidence: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "precision": self.precision,
            "seeds": self.seeds,
            "families": list(self.families.values()),
        }
        for name in (
            "kernelbench",
            "deterministic",
            "caches_weights",
            "follows_weights",
            "general",
        ):
            value = getattr(self, name)
            if value is not None:
                out[name] = value
        return out

    def row(self, name: str) -> dict[str, Any] | None:
        """Returns what is known of a family, to be put back."""
        row = self.families.get(name)
        return None if row is None else dict(row)

    def put(self, name: str, row: dict[str, Any] | None) -> None:
        """Puts it back."""
        if row is None:
            self.families.pop(name, None)
        else:
            self.families[name] = row

    def add(
        self, family: calibration.FamilyCalibration, name: str, outcomes: Sequence[Outcome]
    ) -> None:
        row = self.families.setdefault(
            name,
            {
                "name": name,
                "gates": family.gates,
                "passed": True,
                "seeds": 0,
                "max_error": 0.0,
                "max_bound": 0.0,
                "rms_error": 0.0,
                "rms_bound": 0.0,
                "skipped": 0,
                "note": family.note,
            },
        )
        row["seeds"] += 1
        for o in outcomes:
            row["skipped"] += o.skipped
            row["passed"] = row["passed"] and o.passed
            # The output and the draw that came closest to its bound, so that error and bound
            # belong together.
            for kind in ("max", "rms"):
                error, bound = getattr(o.error, kind), getattr(o.bound, kind)
                before = (
                    row[f"{kind}_error"] / row[f"{kind}_bound"] if row[f"{kind}_bound"] else -1.0
                )
                if (error / bound if bound else (math.inf if error else 0.0)) > before:
                    row[f"{kind}_error"] = error if math.isfinite(error) else SHARED.not_finite
                    row[f"{kind}_bound"] = bound if math.isfinite(bound) else SHARED.not_finite
        if any(o.dropped for o in outcomes):
            row["note"] = f"{family.note}; NaN is dropped (advisory)".removeprefix("; ")
        if any(o.lost for o in outcomes):
            row["note"] = f"{row['note']}; infinity is lost (advisory)".removeprefix("; ")
        if not row["passed"] and not family.gates and "advisory" not in row["note"]:
            reasons = "; ".join(o.reason for o in outcomes if o.reason)
            row["note"] = f"{row['note']} (advisory: {reasons})"

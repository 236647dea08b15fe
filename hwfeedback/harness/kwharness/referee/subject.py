"""A candidate that is right: what is timed, profiled and certified."""

from __future__ import annotations

from dataclasses import dataclass

from kwharness.referee.timed_calls import TimedCalls
from kwharness.referee.trial import Trial


@dataclass(frozen=True)
class Subject:
    """It exists once a candidate is verified."""

    trial: Trial
    calls: TimedCalls
    traced: float  # share of a traced forward that was not custom code's

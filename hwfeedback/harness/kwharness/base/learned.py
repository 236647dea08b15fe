"""What evaluations find out about a task, for those that come after them.

Go keeps it as it came, by task, device and versions. What it hands back may be of an older harness:
a part that cannot be read is one that is not there, and is measured again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeVar

from kwharness.base.calibration import Calibration
from kwharness.base.records import Message, ProtocolError
from kwharness.base.verdicts import Measurement, Profile

M = TypeVar("M", bound=Message)


@dataclass
class Record(Message):
    """What is kept of one baseline."""

    window_ns: float  # a call by the referee's clock, with its share of its window
    protocol: int  # timing.baselines.PROTOCOL
    threads: int
    measurement: Measurement
    blocks: list[list[float]]  # milliseconds of every window, by process
    source: str | None = None  # the hash of a named baseline's


@dataclass
class Learned(Message):
    """What is known of a task; None where nothing is."""

    calibration: Calibration | None = None
    baselines: dict[str, Record] | None = None  # by name
    profile: Profile | None = None  # eager's

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Reads what can be read, part by part."""
        given = value if isinstance(value, dict) else {}
        calibration = _kept(Calibration, given.get("calibration"))
        baselines = None
        if isinstance(given.get("baselines"), dict):
            found = {str(n): _kept(Record, r) for n, r in given["baselines"].items()}
            baselines = {n: r for n, r in found.items() if r is not None}
        return cls(calibration, baselines, _kept(Profile, given.get("profile")))


def _kept(cls: type[M], value: Any) -> M | None:
    try:
        return cls.from_json(value)
    except ProtocolError:
        return None

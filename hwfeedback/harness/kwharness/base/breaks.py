"""Contents that are moved at construction, as the processes tell each other of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kwharness.base.records import Message, Natural


@dataclass(frozen=True)
class Break(Message):
    """A content that is moved at construction (model/construction.py)."""

    digest: str
    prints: list[float]
    bytes: Natural
    scale: float  # its root mean square
    times: Natural | None = None  # how often it came to be; None: it is not known
    names: list[str] = field(default_factory=list)  # the weights that hold it

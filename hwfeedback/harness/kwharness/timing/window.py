"""What one timed window gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kwharness.base.operations import Failure
from kwharness.timing import process_use, window_base


@dataclass
class Window:
    """What one window gave. Times are nanoseconds; ``raw`` is good until the next window."""

    kind: str
    rows: Sequence[int]
    walls_ns: list[int]  # of the window, or of each call where they come one by one
    event_ns: list[int]
    raw: torch.Tensor
    slots: window_base.Slots
    cpu_ns: int = 0
    waiting_ns: int = 0
    steal: int = 0
    alone: bool = False  # each call came alone, with the host's work
    turns: bool = False  # calls took turns with the referee on a GPU
    slowed: Sequence[str] = ()  # why the GPU had slowed itself down

    @property
    def calls(self) -> int:
        return len(self.event_ns)

    @property
    def wall_ns(self) -> int:
        return sum(self.walls_ns)

    @property
    def event_mean_ns(self) -> float:
        """A mean: a first call that does the work of all would hide in a median."""
        return sum(self.event_ns) / len(self.event_ns)

    def outputs(self) -> list[torch.Tensor]:
        """Returns the outputs as views, each tensor with the call as its first dimension."""
        return window_base.stack(self.raw[: self.calls], self.slots.outputs)

    def disturbed(self) -> bool:
        """Whether others took the cores: waiting over 3 % of the window, or stolen time. Or whether
        a GPU had slowed itself down.

        What a wake-up by a message may wait for the sender's core is nobody else's doing.
        """
        messages = self.calls if self.alone else 1
        waited = self.waiting_ns > 0.03 * self.wall_ns + messages * process_use.WAKE_NS
        return waited or self.steal > 0 or bool(self.slowed)


@dataclass
class Took:
    """What a group of calls has used. Times are nanoseconds."""

    ns: int = 0
    event_ns: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    waiting_ns: int = 0
    steal: int = 0
    alone: bool = False
    turns: bool = False

    def add(self, other: Took) -> None:
        self.ns += other.ns
        self.event_ns.extend(other.event_ns)
        self.cpu_ns += other.cpu_ns
        self.waiting_ns += other.waiting_ns
        self.steal += other.steal
        self.alone = self.alone or other.alone
        self.turns = not self.alone


def durations(value: object, n: int) -> list[int]:
    """Returns what a worker claims that its calls took. Fails the call if it is nonsense."""
    if isinstance(value, list) and len(value) == n:
        durations = [v for v in value if type(v) is int and 0 <= v < 1 << 62]
        if len(durations) == n:
            return durations
    raise window_base.CallFailed(Failure("ValueError", "the worker's event times are malformed"))

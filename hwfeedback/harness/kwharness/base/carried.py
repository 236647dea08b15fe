"""What a model carries from one call to the next, as the processes tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from kwharness.base.records import Message, Natural, ProtocolError
from kwharness.base.tensors import DTYPES, Spec


@dataclass(frozen=True)
class Carried(Message):
    """What a task carries."""

    names: list[str]  # of tensors of its state
    specs: list[Spec]  # of each of them
    written: list[Natural]  # numbers of the inputs that it changes
    inputs: list[str]  # the names of those
    given: Natural  # how many tensors forward takes,
    returned: Natural  # and returns

    def __bool__(self) -> bool:
        return bool(self.names or self.written)

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        found = super().from_json(value, where)
        pairs = (found.names, found.specs), (found.written, found.inputs)
        if any(len(a) != len(b) for a, b in pairs):
            raise ProtocolError("names and tensors do not match")
        if not all(i < found.given for i in found.written):
            raise ProtocolError("an input that is not there")
        if not all(s.dtype in DTYPES for s in found.specs):
            raise ProtocolError("a state that is no tensor")
        return found

    @property
    def all(self) -> int:
        """How many outputs a call has."""
        return self.returned + len(self.names) + len(self.written)

    @property
    def bytes(self) -> int:
        """What the state takes."""
        return sum(s.numel * s.itemsize for s in self.specs)

    @property
    def state(self) -> slice:
        """Which of the outputs are the state after a call."""
        return slice(self.returned, self.returned + len(self.names))

    def output(self, i: int) -> str:
        """Returns what output i is called."""
        if not self or i < self.returned:
            return f"output {i}"
        i -= self.returned
        if i < len(self.names):
            return f"state {shown(self.names[i])}"
        i -= len(self.names)
        name = shown(self.inputs[i]) if i < len(self.inputs) else "?"
        return f"input {name} after the call"


NOTHING = Carried([], [], [], [], 0, 0)


def shown(name: str) -> str:
    """Returns a name, which is foreign text, as it can be shown."""
    return "".join(c for c in name[:80] if c.isprintable())

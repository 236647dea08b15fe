"""What the referee asks of the workers of a reference and of a candidate, and what they answer.

A worker runs foreign code: every answer is foreign, and its types are checked when it is read. A
``tree`` says in which containers the tensors of a call go (trees.py). A layout says where tensors
lie in a block, which the referee has mapped under a name or whose descriptor comes with the
message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from kwharness.base.carried import Carried
from kwharness.base.records import INSIDE, Message, Natural
from kwharness.base.tensors import Entry

A = TypeVar("A", bound=Message)  # an answer


class Request(Message):
    """What is asked of a worker. ``op`` is the name of the operation."""

    op: ClassVar[str]

    def asked(self) -> dict[str, Any]:
        """Returns the message."""
        return {"op": self.op, **self.to_json()}


@dataclass(frozen=True)
class Done(Message):
    """An answer that says nothing."""


@dataclass(frozen=True)
class Failure(Message):
    """What an operation raised, where it did: foreign text."""

    type: str = "error"  # the name of the exception's class
    message: str = ""
    traceback: str = ""
    stage: str = ""  # "import", "construct", "forward"..., "" where nothing foreign failed
    lines: list[int] = field(default_factory=list)  # of the foreign file, from 1


# Of both.


@dataclass(frozen=True)
class Tensors(Message):
    """Tensors in a block, whose descriptor comes with the answer if it is a new one."""

    layout: list[Entry]
    size: Natural  # bytes of the block


@dataclass(frozen=True)
class Hold(Request):
    """Keep the descriptors that come with this open, and no others."""

    op = "hold"


@dataclass(frozen=True)
class Map(Request):
    """Map the block whose descriptor comes with this."""

    op = "map"
    name: str
    size: Natural  # bytes


@dataclass(frozen=True)
class Carry(Request):
    """What the model carries from call to call is behind inputs and outputs from here on."""

    op = "carry"
    carried: Carried


@dataclass(frozen=True)
class Trees(Request):
    """In which containers the tensors of timed calls go, and come."""

    op = "timed"
    tree: Any
    output_tree: Any
    # Of each output the number of the input in which the reference's lies, or -1; None: any may.
    aliases: list[int] | None = None


@dataclass(frozen=True)
class Windows(Request):
    """Begin a session of timed windows (timing/window_session.py)."""

    op = "window"
    inputs: list[Entry]
    in_slot: Natural  # bytes of the inputs of one call
    outputs: list[Entry]
    out_slot: Natural  # bytes of the outputs of one call
    slots: Natural  # calls of the largest window
    mode: str = "eager"  # of a reference
    cold: bool = False  # nobody warms the memory for outputs
    out_bytes: Natural = 0  # of the block for outputs, on a GPU
    image: str = ""  # on a GPU: what flushes its caches, compiled, in base64
    aliases: list[int] | None = field(default=None, metadata=INSIDE)  # see Trees


@dataclass(frozen=True)
class WindowReady(Request):
    """Within a session: be awake when the next window begins."""

    op = "ready"


@dataclass(frozen=True)
class WindowCalls(Request):
    """Within a session: call forward with the first rows."""

    op = "calls"
    n: Natural = 0  # how many
    identity: bool = False  # a forward that computes nothing
    alone: bool = False  # each call is a window's part of its own
    more: bool = False  # more calls of this window follow
    keeps: bool = False  # the outputs of one call stay where they are until the next one
    turn: Natural = 0  # on a GPU: the turn of the first call; 0: they take none

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Reads it in a microsecond, as the clock runs: the referee's word is believed."""
        v = value
        return cls(v["n"], v["identity"], v["alone"], v["more"], v["keeps"], v["turn"])


@dataclass(frozen=True)
class WindowsEnd(Request):
    """End the session."""

    op = "end"
    frees: bool = False  # and give back its memory before the answer


@dataclass(frozen=True)
class GiveCompiled(Request):
    """Give what torch.compile has made, as a descriptor."""

    op = "compiled"

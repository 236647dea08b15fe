"""What the referee asks of a reference's worker, and what that answers: see operations.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kwharness.base.breaks import Break
from kwharness.base.carried import Carried
from kwharness.base.graph import Graph
from kwharness.base.operations import Failure, Request, Tensors
from kwharness.base.records import FLAT, KEY, Message, Natural
from kwharness.base.tensors import Entry, Spec


@dataclass(frozen=True)
class Import(Request):
    """Run the file. Nothing stays of what was loaded before."""

    op = "import"
    source: str
    threads: int = 1


@dataclass(frozen=True)
class InitInputs(Request):
    """Have the file make what its model is constructed with."""

    op = "init_inputs"


@dataclass(frozen=True)
class Construct(Request):
    """Construct Model under a seed; nothing stays of one that was there before."""

    op = "construct"
    seed: int
    eval: bool = False  # and not in train mode
    breaks: list[str] = field(default_factory=list)  # weights whose content is moved as it is made
    threads: int = 0  # 0: as many as there are


@dataclass(frozen=True)
class Signature(Message):
    """What a call may name."""

    names: list[str] = field(default_factory=list)  # its parameters
    keywords: list[str] = field(default_factory=list)  # of these, given by keyword alone
    # Trees, where these are plain values.
    defaults: dict[str, Any] = field(default_factory=dict)
    any: bool = False  # it takes more than it names


@dataclass(frozen=True)
class Weights(Message):
    """What is said of a reference's weights, buffers and signatures. Lists have an element a
    weight.
    """

    names: list[str]
    state: list[Spec]
    trainable: list[bool]
    moved: list[bool]  # whether another content is given to it
    tied: list[Natural]  # the number of the first that is the same memory
    constants: list[Any]  # the constant that it was filled with, null where with none
    training: bool  # the model, or a part of it, is in train mode
    arguments: list[str]  # of forward, those that have a place
    forward: Signature
    constructor: Signature


@dataclass(frozen=True)
class Constructed(Message):
    """A reference was constructed."""

    init: Any  # the tree of what its constructor was given
    given: Tensors = field(metadata=FLAT)  # the tensors of that
    weights: Weights = field(metadata=FLAT)
    breaks: list[Break]


@dataclass(frozen=True)
class Draw(Request):
    """Draw inputs, once a seed."""

    op = "draw"
    seeds: list[int]
    room: Natural = 0  # bytes of the block "draw"; a larger draw comes in a new one
    sparing: bool = False  # as little memory is held as can be
    reseeded: bool = False  # what get_inputs() seeds by itself gets the seed, too
    last: bool = False  # with a state from which a position soon comes to its end


@dataclass(frozen=True)
class Drawn(Message):
    """The tensors of all draws, one after the other."""

    tree: Any
    tensors: Tensors = field(metadata=FLAT)
    orders: list[list[Natural]]  # strides of the inputs of a draw: see tensors.orders_of


@dataclass(frozen=True)
class State(Request):
    """Give the weights and buffers."""

    op = "state"


@dataclass(frozen=True)
class SetState(Request):
    """Take these weights and buffers, from block "state"."""

    op = "set_state"
    layout: list[Entry]


@dataclass(frozen=True)
class Forward(Request):
    """Run the model in modes, one after the other: see workers/reference.py."""

    op = "forward"
    tree: Any
    modes: list[str]
    layout: list[Entry]  # of inputs
    block: str = field(default="in", metadata={KEY: "in"})  # where they lie
    out: str = ""  # the block for outputs
    room: Natural = 0  # bytes of that; larger outputs come in a new one
    sparing: bool = False
    sources: bool = False  # with the tensors behind indices and booleans
    decided: bool = False  # simulated rounding, and moved inputs, change no decision
    free: list[Natural] = field(default_factory=list)  # inputs that an aim may change
    cut: list[Natural] = field(default_factory=list)  # inputs that have a part of the batch
    parts: Natural = 1  # in which the batch is computed


@dataclass(frozen=True)
class SourceAt(Message):
    """What is behind an output of indices or booleans (numerics/rounding.py: Source)."""

    kind: str
    at: Natural  # the number of the tensor that has the values
    dim: Natural = 0
    several: bool = False


@dataclass(frozen=True)
class ModeResult(Message):
    """What one mode came to: ``error``, or tensors of the answer's block."""

    mode: str
    error: Failure | None = None
    at: Natural = 0  # its first tensor
    count: Natural = 0  # its tensors: outputs, and then what is behind them
    sources: list[SourceAt | None] = field(default_factory=list)  # one an output
    aliases: list[int] = field(default_factory=list)  # the input that it lies in, or -1
    tree: Any = None
    decisions: Natural | None = None  # operators that decide, where it was asked for these


@dataclass(frozen=True)
class Results(Message):
    """What a forward came to, mode by mode."""

    results: list[ModeResult]
    tensors: Tensors = field(metadata=FLAT)


@dataclass(frozen=True)
class Inspect(Request):
    """Look at a forward on a draw."""

    op = "inspect"
    seed: int


@dataclass(frozen=True)
class Inspected(Message):
    """What one forward on a draw shows."""

    inputs: list[Spec]
    input_names: list[str]
    outputs: list[Spec]
    operators: list[str]  # in their order, as "aten.softmax"
    operations: Natural  # of floating point
    linear: bool
    lengths: list[Natural]  # along which it sums
    products: list[Natural]  # along which it multiplies
    carried: Carried
    unkept: list[str]  # what it remembers that cannot be put back
    shared: list[str]  # state that is twice in the same memory
    eager_ms: float


@dataclass(frozen=True)
class Capture(Request):
    """Give the graph of a forward (task/capture.py)."""

    op = "capture"
    seed: int = 0


@dataclass(frozen=True)
class Captured(Message):
    """The graph, or why there is none."""

    graph: Graph | None = None
    note: str = ""


@dataclass(frozen=True)
class TakeCompiled(Request):
    """Take what another process of the same file has compiled: a descriptor."""

    op = "precompiled"

    tuned: bool = True  # also what it found by measuring: not where others had the device, too


@dataclass(frozen=True)
class Release(Request):
    """Give back memory of the device that nobody uses."""

    op = "release"

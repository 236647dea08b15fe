"""What the referee asks of the workers of a reference and of a candidate, and what they answer.

A worker runs foreign code: every answer is foreign, and its types are checked when it is read. A
``tree`` says in which containers the tensors of a call go (trees.py). A layout says where tensors
lie in a block, which the referee has mapped under a name or whose descriptor comes with the
message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from kwharness.base.built import BuildRequest
from kwharness.base.carried import Carried
from kwharness.base.records import FLAT, INSIDE, KEY, Message, Natural
from kwharness.base.tensors import Entry, Spec


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


@dataclass(frozen=True)
class WindowsEnd(Request):
    """End the session."""

    op = "end"
    frees: bool = False  # and give back its memory before the answer


# Of a profiler (workers/profiler.py), which a candidate is loaded into as into its own worker.


@dataclass(frozen=True)
class Holds(Message):
    """Who holds the descriptors."""

    pid: Natural = 0


@dataclass(frozen=True)
class Begin(Request):
    """Begin on the device: nothing touched it before."""

    op = "begin"
    device: str  # its kind
    warm: bool = False  # wake what profiles, before anybody waits for it


@dataclass(frozen=True)
class Measure(Request):
    """Have Nsight Compute measure a forward on block "in"."""

    op = "measure"
    tree: Any
    layout: list[Entry]
    warm: Natural  # forwards before that


@dataclass(frozen=True)
class Measured(Message):
    """What one forward launches, where that can be known: read by profile/kernel_kinds.py, which
    passes over what makes no sense.
    """

    launches: Any = None  # a list of name, grid, block and count of each kind
    more: Any = 0  # launches of other kinds


@dataclass(frozen=True)
class ListLaunches(Measure):
    """Have PyTorch's profiler look at forwards."""

    op = "launches"
    most: Natural = 0  # kinds that are listed


@dataclass(frozen=True)
class Listed(Message):
    """What it has seen, read as Measured is."""

    seen: Any = ""  # JSON: see standalone/interpreter.py: launches_of
    more: Any = 0  # launches of other kinds
    more_ms: Any = 0.0  # of these


# Of a reference.


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
class Break(Message):
    """A content that is moved at construction (model/construction.py)."""

    digest: str
    prints: list[float]
    bytes: Natural
    scale: float  # its root mean square
    times: Natural | None = None  # how often it came to be; None: it is not known
    names: list[str] = field(default_factory=list)  # the weights that hold it


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

    graph: dict[str, Any] | None = None
    note: str = ""


@dataclass(frozen=True)
class GiveCompiled(Request):
    """Give what torch.compile has made, as a descriptor."""

    op = "compiled"


@dataclass(frozen=True)
class TakeCompiled(Request):
    """Take what another process of the same file has compiled: a descriptor."""

    op = "precompiled"


@dataclass(frozen=True)
class Release(Request):
    """Give back memory of the device that nobody uses."""

    op = "release"


# Of a candidate.


@dataclass(frozen=True)
class Known(Message):
    """A request of which it is known that it fails."""

    request: str  # its key
    said: str  # what its process is told


@dataclass(frozen=True)
class Load(Request):
    """Import the candidate. The descriptors are the artifacts', and then a socket if it asks."""

    op = "load"
    source: str
    artifacts: list[BuildRequest] = field(default_factory=list)
    threads: int = 1
    stand_in: bool = False  # its custom code does nothing
    elsewhere: bool = False  # the artifacts are for a device that is not here
    forbids: bool = False  # what policy forbids fails
    asks: bool = False  # it asks for what is not among the artifacts
    handed_out: bool = False  # it is the file that its user gets
    failed: list[Known] = field(default_factory=list)


@dataclass(frozen=True)
class Init(Request):
    """Construct ModelNew, from block "init", as the reference was constructed."""

    op = "init"
    tree: Any
    layout: list[Entry]
    seed: int
    eval: bool = False
    breaks: list[Break] = field(default_factory=list)


@dataclass(frozen=True)
class Initialised(Message):
    """How often each of the breaks was moved."""

    broken: list[Natural] = field(default_factory=list)


@dataclass(frozen=True)
class Describe(Request):
    """Say which weights and buffers it has as it was constructed."""

    op = "describe"


@dataclass(frozen=True)
class Described(Message):
    """Its weights and buffers. Lists have an element each."""

    takes: str  # the method by which it takes the reference's, "" for none
    names: list[str]
    specs: list[Spec]
    constants: list[Any]  # see Weights


@dataclass(frozen=True)
class Show(Request):
    """Write the content of some of its weights to block "own"."""

    op = "show"
    names: list[str]
    layout: list[Entry]


@dataclass(frozen=True)
class Take(Request):
    """Take the reference's weights, from block "state"."""

    op = "set_state"
    names: list[str]
    layout: list[Entry]
    in_place: bool = False
    own: bool = False  # the names are its own, and it takes them in place


@dataclass(frozen=True)
class Taken(Message):
    """Whether an in-place change found all names; None where it was not in place."""

    changed: bool | None = None


@dataclass(frozen=True)
class Call(Request):
    """Call it once on block "in", and copy what fits ``outputs`` to block "out"."""

    op = "forward"
    tree: Any
    layout: list[Entry]
    outputs: list[Entry]
    output_tree: Any
    sparing: bool = False
    goes_on: bool = False  # with the state that its last forward left


@dataclass(frozen=True)
class Called(Message):
    """What a call gave, by its own word."""

    outputs: list[Spec]
    fits: bool = False  # its structure is the reference's
    aliases: list[int] = field(default_factory=list)  # the input that each lies in, or -1


@dataclass(frozen=True)
class Trace(Request):
    """Look at who does the work of a forward on block "in" (attribution/trace.py)."""

    op = "trace"
    tree: Any
    layout: list[Entry]


@dataclass(frozen=True)
class Traced(Message):
    """By its own word."""

    trace: Any = None


@dataclass(frozen=True)
class Settle(Request):
    """Poison no memory any more: what comes is timed."""

    op = "settle"


@dataclass(frozen=True)
class CompiledKernels(Message):
    """What it has compiled when it was called: an archive, the descriptor, and libraries."""

    libraries: Natural = 0  # that are not in the archive


@dataclass(frozen=True)
class GiveLibraries(Request):
    """Give the next libraries, each as a descriptor."""

    op = "give_libraries"
    after: Natural  # so many that were given


@dataclass(frozen=True)
class Libraries(Message):
    """The names of libraries whose descriptors come with this."""

    names: list[str]


@dataclass(frozen=True)
class TakeLibraries(Request):
    """Take libraries that were made in another process of this candidate."""

    op = "libraries"
    names: list[str]

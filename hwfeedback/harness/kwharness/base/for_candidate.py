"""What the referee asks of a candidate's worker and of a profiler, and what they answer: see
operations.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kwharness.base.breaks import Break
from kwharness.base.built import BuildRequest
from kwharness.base.operations import Request
from kwharness.base.records import Message, Natural
from kwharness.base.tensors import Entry, Spec


@dataclass(frozen=True)
class KnownFailure(Message):
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
    failed: list[KnownFailure] = field(default_factory=list)


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
class Spent(Message):
    """What the calls of one function took in a forward."""

    seconds: float
    calls: Natural


@dataclass(frozen=True)
class Traced(Message):
    """What a forward ran, in the fastest of some runs and by its own word."""

    total: float  # seconds
    operators: dict[str, Spent]  # PyTorch's, without "aten."
    native: dict[str, Spent]  # custom functions, and operators of other libraries
    regions: dict[str, Spent]  # what left its operators to something else (attribution/trace.py)
    plain: float  # seconds of operators that only move values, where none is listed
    met: dict[str, Natural]  # elements that PyTorch's operators got


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


# Of a profiler that waits for Nsight Compute (workers/profiler.py).


@dataclass(frozen=True)
class Stop(Request):
    """End what runs under it, so that it writes what it knows."""

    op = "stop"
    pid: int = 0  # of the candidate's process, as its own namespace has it; 0: not known


@dataclass(frozen=True)
class ToolReport(Message):
    """What came of it."""

    code: int | None = None  # its exit status, negative for a signal; None: it did not start
    said: str = ""  # why it did not
    report: str = ""  # what it wrote, in CSV
    stopped: bool = False  # it was ended


# What a candidate's process asks a desk (clients/workshop.py) for, over a socket of its own.


@dataclass(frozen=True)
class Build(Request):
    """Build what it asks for. The object comes as a descriptor."""

    op = "build"
    request: Any = None  # a BuildRequest, by the word of a process that runs the candidate


@dataclass(frozen=True)
class Built(Message):
    """Whether it was built."""

    built: bool = False
    said: str = ""  # else why not

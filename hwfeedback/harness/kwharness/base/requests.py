"""What Go asks of the referee: the request to evaluate a candidate with its parts, and others.

The structs of hwfeedback/requests.go have the same keys; referee.schema.json has them for both.
Times are seconds, sizes bytes, rates 1e9 bytes a second, where a field does not say otherwise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from kwharness.base.graph import Graph
from kwharness.base.learned import Learned
from kwharness.base.records import FLAT, KEY, Message

QUICK, CERTIFY = "quick", "certify"  # levels
ANY_CODE = "any"  # of custom_code: policy asks for no custom code


@dataclass(frozen=True)
class Gpu(Message):
    """One GPU of the machine."""

    minor: int  # of its device node
    uuid: str  # as NVML has it


@dataclass(frozen=True)
class Workplace(Message):
    """Where, and how, the processes of a request run."""

    device: str = "cpu"  # "cpu", or "cuda:0" with gpu
    threads: int = 0  # of a forward; 0: as many as the machine has cores
    sandbox: str = "strict"  # or "weak"
    cache_dir: str = ""  # of objects, and of what compilers need
    gpu: Gpu | None = None  # None: the CPU

    def __post_init__(self) -> None:
        if self.threads <= 0:
            object.__setattr__(self, "threads", os.cpu_count() or 1)

    @property
    def kind(self) -> str:
        """Returns the kind of device."""
        return self.device.partition(":")[0]

    def placed(self) -> dict[str, Any]:
        """Returns what a worker's configuration says of the device."""
        one = {} if self.gpu is None else {"gpu": self.gpu.minor, "gpu_uuid": self.gpu.uuid}
        return {"device": self.kind, **one}


@dataclass(frozen=True)
class TensorSpec(Message):
    """A tensor of a task's call."""

    dtype: str = ""  # without "torch."
    shape: list[int] = field(default_factory=list)
    name: str | None = None  # of an input, or a parameter


@dataclass(frozen=True)
class Task(Message):
    """A reference, as its inspection found it."""

    source: str
    fingerprint: str = ""  # hex SHA-256 of its normalised syntax tree
    name: str = ""  # its file's, without folder and ending
    least_bytes: int = 0  # inputs and parameters read once, and outputs written once
    needed_bytes: int = 0  # of those, what every kernel moves, whatever the values; 0: not known
    operations: int = 0  # of floating point, in one forward
    operators: list[str] = field(default_factory=list)  # in their order, as "aten.softmax"
    flags: list[str] = field(default_factory=list)
    inputs: list[TensorSpec] = field(default_factory=list)
    outputs: list[TensorSpec] = field(default_factory=list)
    parameters: list[TensorSpec] = field(default_factory=list)


@dataclass(frozen=True)
class InspectedTask(Task):
    """What an inspection tells besides."""

    notes: list[str] = field(default_factory=list)
    eager_ms: float = 0.0  # of a forward
    graph: Graph | None = None  # None where there is none,
    graph_note: str = ""  # and why


@dataclass(frozen=True)
class Candidate(Message):
    """A candidate's text."""

    source: str
    language: str = ""  # "cpp", "cuda", "triton"; "" where nobody has read it


@dataclass(frozen=True)
class NamedBaseline(Message):
    """A program that somebody has registered as a baseline of a task."""

    name: str
    source: str
    language: str = ""


@dataclass(frozen=True)
class Rules(Message):
    """How strict an evaluation is, and what policy asks for."""

    level: str = QUICK  # or CERTIFY
    precision: str = "float32"  # what the task holds a candidate to
    strict_inputs: bool = False  # what it takes for granted of its inputs is wrong
    custom_code: str = "required"  # or ANY_CODE
    explain: bool = False  # it is only asked how right and how fast a rejected candidate is
    uncompiled: bool = False  # torch.compile has no say in what is right
    # Tests alone send this one and the next two: it stands in the place of custom_code.
    require_custom: bool | None = None
    # Whether at CERTIFY its file runs by itself, in a new interpreter.
    standalone: bool = field(default=True, metadata={KEY: "cold"})
    limits: dict[str, int] = field(default_factory=dict)  # memory_bytes, processes, cpu_s

    @property
    def requires_custom(self) -> bool:
        """Whether policy asks for custom code: it then takes most of the time that is not a vendor
        library's, and compilers of PyTorch's fail where they are called.
        """
        if self.explain:
            return False
        asked = self.require_custom
        return self.custom_code != ANY_CODE if asked is None else asked

    @property
    def runs_standalone(self) -> bool:
        """Whether its file runs by itself, as its user runs it."""
        return self.level == CERTIFY and self.standalone


@dataclass(frozen=True)
class Order(Message):
    """The candidates that were handed in together, and this one's place among them."""

    batch: str = ""  # their name; "" for one that came alone
    upcoming: list[Candidate] = field(default_factory=list)  # what comes after this one
    last: bool = False  # nobody goes on with the device after this
    # It has a share of the device, others have theirs, and it asks for all of it to be timed.
    shares: bool = False


@dataclass(frozen=True)
class Timed(Message):
    """What is timed, and what a candidate is held against."""

    time: bool = True  # False: it is verified and not timed
    time_baselines: bool = False  # of a candidate that is not timed
    want_baselines: list[str] = field(default_factory=list)  # empty: all of PyTorch's
    named: list[NamedBaseline] = field(default_factory=list)
    certify_s: float = 0.0  # of the rounds at CERTIFY; 0: as usual
    # At QUICK all that is asked is which baselines are beaten by this share; 0: how much.
    milestone: float = 0.0
    profile: str = ""  # "selected", "full"; "": none


@dataclass(frozen=True)
class Ceilings(Message):
    """What a device was measured to do at most."""

    memory_gbs: float = 0.0  # read plus written, in a copy
    cache_gbs: float = 0.0  # the same within half of the last-level cache
    fp32_gflops: float = 0.0  # fused multiply-adds, counted as two
    call_us: float = 0.0  # an empty call, in microseconds
    measured_at: int = 0  # Unix milliseconds
    threads: int = 0  # they were measured with
    note: str = ""  # how, in one sentence
    read_gbs: float = 0.0  # read alone
    tensor_gflops: dict[str, float] = field(default_factory=dict)  # matrix products, by operand


@dataclass(frozen=True)
class Sm(Message):
    """What one streaming multiprocessor holds at most, and computes in a clock."""

    threads: int = 0
    warps: int = 0
    blocks: int = 0
    registers: int = 0  # of 32 bits
    shared_bytes: int = 0
    shared_of_block: int = 0  # bytes, of a block that asks for them
    fp32: int = 0  # fused multiply-adds
    fp64: int = 0
    tensor: dict[str, int] = field(default_factory=dict)  # the same, by operand


@dataclass(frozen=True)
class Specs(Message):
    """What a device is, as the system says."""

    model: str = ""
    cores: int = 0  # physical ones, or SMs
    threads: int = 0
    isa: list[str] = field(default_factory=list)
    vector_bits: int = 0
    l1_bytes: int = 0  # the data cache of one core
    l2_bytes: int = 0  # of one core; of a GPU as a whole
    l3_bytes: int = 0
    memory_bytes: int = 0
    clock_mhz: float = 0.0
    memory_gbs: float = 0.0  # what its memory's pins can move; of a GPU
    sm: Sm | None = None  # of a GPU


@dataclass(frozen=True)
class Request(Message):
    """One request to evaluate a candidate."""

    task: Task
    candidate: Candidate
    workplace: Workplace = field(default_factory=Workplace, metadata=FLAT)
    rules: Rules = field(default_factory=Rules, metadata=FLAT)
    order: Order = field(default_factory=Order, metadata=FLAT)
    timed: Timed = field(default_factory=Timed, metadata=FLAT)
    ceilings: Ceilings = field(default_factory=Ceilings)
    specs: Specs = field(default_factory=Specs)
    known: Learned = field(default_factory=Learned)
    kernelwright_version: str = ""
    harness: str = ""  # its hash: verdicts of another one are another's


@dataclass(frozen=True)
class Parse(Message):
    """The request to read a text, which is not run."""

    source: str
    what: str  # "reference" or "candidate"
    sandbox: str = "strict"


@dataclass(frozen=True)
class Inspect(Message):
    """The request to find out what a reference computes."""

    name: str  # its file's, without folder and ending
    source: str
    timeout_s: float = 0.0  # of the whole; 0: as usual
    workplace: Workplace = field(default_factory=Workplace, metadata=FLAT)


@dataclass(frozen=True)
class Build(Message):
    """The request to build a candidate for architectures, for which no such GPU need be there."""

    candidate: Candidate
    archs: list[str]  # "sm_90a"; "" is the CPU
    otherwise: list[str] = field(default_factory=list)  # of what turns out to be for a GPU
    sandbox: str = "strict"
    cache_dir: str = ""


@dataclass(frozen=True)
class BuildAhead(Message):
    """The request to build a candidate as its evaluation would, which then finds it built."""

    candidate: Candidate
    device: str
    arch: str  # "" is the CPU
    custom_code: str  # of Rules
    reference: str = ""  # read first, where it was not inspected
    sandbox: str = "strict"
    cache_dir: str = ""


@dataclass(frozen=True)
class Export(Message):
    """The request to write a candidate as a standalone file."""

    candidate: Candidate
    sandbox: str = "strict"

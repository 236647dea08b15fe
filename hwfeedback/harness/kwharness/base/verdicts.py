"""What the referee answers about a candidate: the Verdict, and its parts.

verdict.go has the same structs, and referee.schema.json the keys of both. A field that is None is
not in the message: it is not known, or was not asked for. Names of times end in their unit
(``_ms``, ``_s``), sizes are bytes, shares lie between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kwharness.base.records import NULL, Message


@dataclass(frozen=True)
class Speedup(Message):
    """A baseline's time over the candidate's, with its 95 % interval."""

    value: float
    low: float
    high: float
    against: str = ""  # the baseline's name


@dataclass
class Diagnostic(Message):
    """One line of a compiler."""

    line: int  # in the candidate's file, from 1
    message: str


@dataclass
class Kernel(Message):
    """A compiled kernel of a GPU, as far as it is known without running it."""

    name: str
    arch: str = ""  # "sm_90a"
    registers: int = 0  # of a thread
    shared_bytes: int = 0  # of a block, static
    stack_bytes: int = 0  # of a thread, as the spills
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    warps: int | None = None  # of a block; Triton's
    instructions: dict[str, int] | None = None  # in its SASS, by class
    load_bytes: float | None = None  # that a thread moves with one load of global memory, mean
    store_bytes: float | None = None


@dataclass
class BuildReport(Message):
    """What the compiler said."""

    seconds: float = 0.0
    cached: bool = False
    form: str | None = None  # "native", "load_inline", "triton", "none"
    code: str | None = None  # the same for candidates of the same objects, and of the same rest
    log: str | None = None  # the end of the compiler's output
    flags: list[str] | None = None  # what became of those that were not taken as they are
    errors: list[Diagnostic] | None = None
    vectorised: list[Diagnostic] | None = None  # loops that are
    missed: list[Diagnostic] | None = None  # loops that are not, with the compiler's reason
    kernels: list[Kernel] | None = None


@dataclass
class FamilyReport(Message):
    """One input family. Errors and bounds are 1e300 where they are no numbers."""

    name: str
    gates: bool  # False: an honest implementation fails on it, too
    passed: bool
    seeds: int
    max_error: float
    max_bound: float
    rms_error: float
    rms_bound: float
    skipped: int = 0  # elements on which the reference itself is not to be trusted
    note: str = ""


@dataclass
class CorrectnessReport(Message):
    """What a candidate was compared on."""

    precision: str
    seeds: int = 0
    families: list[FamilyReport] = field(default_factory=list)
    kernelbench: bool | None = None  # whether KernelBench's allclose passes; it decides nothing
    deterministic: bool | None = None
    caches_weights: bool | None = None
    follows_weights: bool | None = None
    general: bool | None = None  # right on other shapes, too


@dataclass
class Measurement(Message):
    """A time, in milliseconds for one forward; the interval is that of the median, 95 %."""

    median_ms: float = 0.0
    p25_ms: float = 0.0
    p75_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    repetitions: int = 0
    clock: str = ""  # "event" or "wall": whichever median_ms is of
    event_ms: float = 0.0  # the worker's own clock
    wall_ms: float = 0.0  # the referee's
    latency_ms: float | None = None  # of a call that comes alone, on a GPU
    span_ms: float | None = None  # a profiler's, in the exported file
    earlier: bool | None = None  # a baseline's, measured before


@dataclass
class TimingReport(Message):
    """The candidate's time, and those of what it was held against."""

    candidate: Measurement = field(default_factory=Measurement)
    baselines: dict[str, Measurement] | None = None
    threads: int | None = None
    protocol: str | None = None  # "cached baselines" or "interleaved"
    marked: bool | None = None  # the clocks disagreed, and wall decided
    disturbed: bool | None = None
    notes: list[str] | None = None

    def note(self, *said: str) -> None:
        """Adds notes, a sentence each."""
        self.notes = [*(self.notes or []), *said]


@dataclass
class Floor(Message):
    """The least time that a task can take on the measured ceilings."""

    ms: float
    bound: str  # "memory", "cache" or "compute"
    bytes: int
    operations: int


@dataclass
class OperatorShare(Message):
    """One operator of a trace."""

    name: str
    kind: str  # "custom", "vendor", "pytorch", "compiled", "graph"
    share: float
    calls: int


@dataclass
class Launch(Message):
    """One kind of what a forward has a GPU do, as a profiler saw it in the exported file."""

    name: str
    count: int
    ms: float  # of all of them, in one forward
    grid: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)


@dataclass
class WorkReport(Message):
    """Whose code did the work of a traced forward, as shares of its time."""

    custom: float = 0.0
    vendor: float = 0.0
    pytorch: float = 0.0
    compiled: float | None = None  # what torch.compile has made
    graph: float | None = None  # what a CUDA graph replays
    operators: list[OperatorShare] | None = None
    launches: list[Launch] | None = None


@dataclass
class KernelProfile(Message):
    """All launches of one kernel with one grid and block, in one forward."""

    name: str
    whose: str  # "custom", "vendor", "pytorch"
    launches: int
    ms: float  # 0 where it is not known
    share: float
    grid: list[int]
    block: list[int]
    metrics: dict[str, float] | None = None  # by ncu's names, in its base units


@dataclass
class Profile(Message):
    """What a profiler saw a GPU do in one forward."""

    tool: str  # "ncu", "profiler", "static"
    launches: int
    ms: float  # of all kernels together; 0 where not all are known
    why: str | None = None  # it is not ncu's, or not all that ncu could say
    kernels: list[KernelProfile] | None = None
    metrics: dict[str, float] | None = None  # of the whole forward
    missing: list[str] | None = None  # metrics that this GPU, or this ncu, has not
    measured_as: dict[str, str] | None = None  # metrics that have another name on this GPU
    position: dict[str, float] | None = None  # below the ceilings, by names of a verdict's metrics


@dataclass
class SandboxReport(Message):
    """What contained the candidate."""

    mode: str
    missing: list[str] = field(default_factory=list)


@dataclass
class Verdict(Message):
    """What is said of one candidate. The steps of an evaluation fill it in."""

    level: str
    task: str  # its fingerprint
    candidate: str  # hex SHA-256 of its text
    correctness: CorrectnessReport
    floor: Floor
    status: str = ""  # of verdict.go
    reason: str = ""  # one sentence
    hint: str = ""
    language: str = ""
    device: str = "cpu"
    device_key: str = ""  # Go's
    candidate_ms: float = 0.0  # 0: it was not timed
    baselines: dict[str, float] = field(default_factory=dict)  # median milliseconds, by name
    speedup: Speedup | None = field(default=None, metadata=NULL)  # against the fastest
    speedups: dict[str, Speedup] | None = None
    headroom: float = 0.0  # the floor's share of candidate_ms
    build: BuildReport = field(default_factory=BuildReport)
    assumes: list[str] = field(default_factory=list)  # of its inputs, a sentence each
    weights: str = ""  # how it got the reference's: "by name", "by value", "by seed"
    timing: TimingReport = field(default_factory=TimingReport)
    work: WorkReport = field(default_factory=WorkReport)
    metrics: dict[str, float] = field(default_factory=dict)  # docs/metrics.md
    profile: Profile | None = None
    eager_profile: Profile | None = None
    sandbox: SandboxReport | None = None
    flags: list[str] = field(default_factory=list)  # the task's
    evidence: list[str] = field(default_factory=list)  # one sentence each
    output: str | None = None  # the end of what the candidate printed; untrusted
    cost_s: dict[str, float] = field(default_factory=dict)  # seconds by part
    versions: dict[str, str] = field(default_factory=dict)
    exported: str | None = None  # the file that was certified
    exported_sha256: str | None = None


@dataclass
class Read(Message):
    """What was read of a text: the answer to ``parse``, and of a candidate that comes later."""

    language: str
    form: str
    normalised_hash: str = ""  # hex SHA-256 of its normalised syntax tree; "" where it has none
    problems: list[str] = field(default_factory=list)  # why it is no candidate, or no reference
    given: str = ""  # of a reference: the parameter by which it takes a function
    called: list[str] = field(default_factory=list)  # languages that compile when they are called
    lazy: bool = True  # whether it may build something later than at its import

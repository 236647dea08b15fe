"""What the referee answers to the requests of requests.py.

hwfeedback reads the same keys; referee.schema.json has them for both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kwharness.base.learned import Learned
from kwharness.base.records import FLAT, KEY, Message
from kwharness.base.requests import InspectedTask
from kwharness.base.verdicts import BuildReport, Measurement, Read, SandboxReport, Verdict


@dataclass
class Answer(Message):
    """The answer to ``evaluate``."""

    verdict: Verdict
    learned: Learned
    parsed: list[Read | None] = field(default_factory=list)  # of what comes next
    passing: bool = False  # what its profile lacks may be there another time
    at_rest: bool = False  # every process has ended that met the candidate


@dataclass(frozen=True)
class Inspected(Message):
    """The answer to ``inspect``."""

    task: InspectedTask


@dataclass(frozen=True)
class TimedBaseline(Message):
    """A baseline that was timed with no candidate beside it."""

    measurement: Measurement = field(metadata=FLAT)
    samples: list[list[float]]  # milliseconds of every window, by process


@dataclass(frozen=True)
class TimedBaselines(Message):
    """The answer to ``baselines``."""

    baselines: dict[str, TimedBaseline]  # by name
    learned: Learned


@dataclass(frozen=True)
class BuiltFor(Message):
    """What a candidate came to for one architecture."""

    arch: str  # "sm_90a"; "" is the CPU
    status: str  # "built", or a verdict's
    reason: str  # one sentence, "" for one that is built
    called: bool = field(metadata={KEY: "triton"})  # it compiles kernels when they are called
    build: BuildReport


@dataclass(frozen=True)
class Built(Message):
    """The answer to ``build``."""

    builds: list[BuiltFor]  # in the order in which they were asked for


@dataclass(frozen=True)
class BuiltAhead(Message):
    """The answer to ``build_ahead``; all but ``status`` is None where no build was tried."""

    status: str = ""  # a verdict's; "" where the candidate can be run, or that is not known
    reason: str | None = None  # one sentence
    language: str | None = None
    missing: list[str] | None = None  # of what policy wants of the machine, what it does not have
    build: BuildReport | None = None
    fingerprint: str | None = None  # of the reference, where that was read; else ""
    cutlass: str | None = None  # the version that it includes, "" for none
    seconds: float | None = None  # that all of it took


@dataclass(frozen=True)
class Exported(Message):
    """The answer to ``export``."""

    source: str  # of the standalone file


@dataclass(frozen=True)
class Check(Message):
    """One thing that doctor has looked at."""

    name: str
    ok: bool
    note: str  # what is there
    cost: str = ""  # what its absence costs, and what to do; "" when ok


@dataclass(frozen=True)
class Compiler(Message):
    """The compiler of C++."""

    path: str  # "": none was found
    version: str


@dataclass(frozen=True)
class Examined(Message):
    """The answer to ``doctor``."""

    sandbox: SandboxReport
    compiler: Compiler
    torch: str  # its version
    cuda: str  # that it was built for; "": none
    checks: list[Check]


@dataclass(frozen=True)
class Refusal(Message):
    """Why there is no answer."""

    kind: str  # of hwfeedback/protocol.go: remoteError
    message: str
    hint: str = ""  # what to do
    traceback: str = ""

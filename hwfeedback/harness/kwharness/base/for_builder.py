"""What the trusted side asks of a builder, and what that answers: see operations.py.

Answers are read once more where they go on (build/reports.py): texts are cut, and what makes no
sense is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kwharness.base.built import BuildRequest
from kwharness.base.operations import Failure, Request
from kwharness.base.records import INSIDE, Message


@dataclass(frozen=True)
class Parse(Request):
    """Read a text. The answer is verdicts.Read."""

    op = "parse"
    source: str
    what: str  # "reference" or "candidate"


@dataclass(frozen=True)
class ReadFirst(Request):
    """Tell, without running a text, what it has built first (build/first_request.py)."""

    op = "first"
    source: str


@dataclass(frozen=True)
class First(Message):
    """That, where it can be told."""

    request: Any = None  # a BuildRequest


@dataclass(frozen=True)
class Record(Request):
    """Import a candidate, and note what it asks to have built."""

    op = "record"
    source: str
    forbids: bool = False  # what policy forbids fails


@dataclass(frozen=True)
class Recorded(Message):
    """What it asked for."""

    requests: list[Any] = field(default_factory=list)  # BuildRequests
    error: Failure | None = None  # what the import raised


@dataclass(frozen=True)
class Export(Request):
    """Write the file that a user gets."""

    op = "export"
    source: str
    about: dict[str, Any] | None = None  # export.file_facts.About


@dataclass(frozen=True)
class Exported(Message):
    """That file."""

    source: str


@dataclass(frozen=True)
class Compile(Request):
    """Compile a request. The object comes as a descriptor."""

    op = "compile"
    request: BuildRequest


@dataclass
class Compiled(Message):
    """What a compiler made of a request."""

    code: int = 0  # its exit status; -1: it took too long
    log: str = ""
    seconds: float = 0.0
    killed: bool = False  # from outside, it or what it had started
    loaded: str = ""  # the digest of what is loaded of it (build/object_digest.py)
    reaches: list[Any] = field(default_factory=list)  # functions that no kernel has a use for
    errors: list[Any] = field(default_factory=list)  # (source, line, words), each
    vectorised: list[Any] = field(default_factory=list)  # likewise
    missed: list[Any] = field(default_factory=list)  # likewise
    kernels: list[Any] = field(default_factory=list)  # verdicts.Kernel
    object: str = field(default="", metadata=INSIDE)  # its path in the builder, "" where it failed


@dataclass(frozen=True)
class MakeHeader(Request):
    """Precompile the lighter header of load_inline. The file comes as a descriptor."""

    op = "header"
    flags: list[str]
    cuda: bool = False


@dataclass(frozen=True)
class MakeHelper(Request):
    """Compile what belongs to the lighter header of load_inline with CUDA."""

    op = "helper"


@dataclass(frozen=True)
class Run(Request):
    """Run an exported file in a new interpreter (standalone/looks.py). The descriptors are those
    of its requests, in order.
    """

    op = "run"
    source: str
    requests: list[dict[str, Any]]  # what the interpreter is given as JSON (standalone/script.py)
    timeout: float  # seconds
    sanitizer: str = ""  # the program under which it is looked at, "" for none
    cutlass: list[str] = field(default_factory=list)  # folders of CUTLASS's headers


@dataclass(frozen=True)
class Ran(Message):
    """How that ended."""

    code: int  # the exit status
    # Of each object that it built: its ending, and the digest of what is loaded.
    built: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Look(Request):
    """Look at the file that was run: by sanitizers, and then by a profiler."""

    op = "look"
    requests: list[dict[str, Any]] = field(default_factory=list)  # for few inputs, if there is one


@dataclass(frozen=True)
class ToolRun(Message):
    """One run of a sanitizer."""

    code: int  # the exit status
    report: str = ""
    said: str = ""  # the last of what was printed
    seconds: float = 0.0


@dataclass(frozen=True)
class LookedAt(Message):
    """What was seen."""

    checks: list[list[ToolRun]] = field(default_factory=list)  # of each tool (sanitizers.TOOLS)
    profile: str = ""  # JSON: see standalone/interpreter.py: launches_of


@dataclass(frozen=True)
class ReadFacts(Request):
    """Tell what is known of the kernels in objects, which are the descriptors."""

    op = "facts"


@dataclass(frozen=True)
class Facts(Message):
    """That."""

    kernels: list[Any] = field(default_factory=list)  # of each object, a list of verdicts.Kernel

"""What was built: an object of the cache, what came of one request, and of a whole candidate.

The trusted side of the builder makes them (build/builder_client.py), and keeps them as JSON
(build/object_cache.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from kwharness.base.records import INSIDE, Message
from kwharness.base.verdicts import BuildReport, Diagnostic, Kernel

MAX_SAID = 4000  # characters of what a process is told of a failure


class HandedOver(TypedDict, total=False):
    """Files of the candidate's process that come with a request."""

    files: dict[str, str]  # their texts, by their place in one folder
    units: list[str]  # which of them are compiled: those of sources, then of cuda_sources
    folders: list[str]  # of those files, in which to look for headers
    include_paths: list[str]  # of the machine's


class ExtensionRequest(HandedOver, total=False):
    """What load_inline and load are asked for."""

    sources: list[str]  # in C++
    cuda_sources: list[str]
    cuda_flags: list[str]
    ldflags: list[str]
    functions: dict[str, str] | None  # to bind, with their docstrings; None: it binds them itself
    headers: bool  # torch's are included first
    handling: bool  # exceptions become torch's
    module: bool  # it is a module of Python's
    whole: bool  # it is built as torch builds it (build/torch_extension.py)
    given: dict[str, list[str]]  # flags as they were given, by their kind, where it is whole


class BuildRequest(ExtensionRequest, total=False):
    """What a candidate asks to have built. Its process writes it, the referee checks it
    (build/forms.py) and adds what a builder needs. Between them it is JSON, and its keys are
    part of what names an object in the cache.
    """

    kind: str  # of the form that asks
    request: str  # its own key: the same for what is the same
    name: str  # of the object, or of the module
    asked: str  # the name that it was asked for by, where that is another
    language: str  # "cpp" or "cuda"
    flags: list[str]  # the compiler's
    notes: list[str]  # what became of flags that were not taken as they are
    arch: str  # what CUDA is compiled for, as "sm_90a"
    includes: list[str]  # folders of CUTLASS's headers
    cutlass: str  # its version, where the sources include it
    source: str  # native's
    launched: bool  # its kernels are launched from Python; native's, too


@dataclass
class CachedFile(Message):
    """A file of the cache. One whose hash is not this one counts as absent."""

    name: str
    sha256: str
    path: str


@dataclass
class Artifact(CachedFile):
    """An object that a candidate loads, or what was compiled by calling it."""

    kind: str  # of the form that asked for it (build/form.py)
    request: str  # the key of what asked for it
    key: str = ""  # its own in the cache
    loaded: str = ""  # the digest of what is loaded of it (build/object_digest.py)
    libraries: list[CachedFile] | None = None  # beside what was compiled by calling

    def asked(self) -> BuildRequest:
        """Returns what is known of its request: what a process is told that is given it."""
        return {"request": self.request, "kind": self.kind, "name": self.name}


@dataclass
class CompilerReport(Message):
    """What a compiler said of one request. A place is the source's index and a line from 1."""

    log: str = ""
    vectorised: list[Any] = field(default_factory=list)  # (source, line, words), each
    missed: list[Any] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


@dataclass
class Refused(Message):
    """What a compiler said of a source that it did not compile, or should not have."""

    late: bool  # it took too long
    log: str
    errors: list[Any]  # (source, line, words), each
    reaches: list[str]  # functions that it calls and that no kernel needs


class Failed(Exception):
    """The candidate's fault. The words of a verdict: status and reason."""

    def __init__(
        self, status: str, reason: str, log: str = "", errors: Sequence[Diagnostic] = ()
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.log, self.errors = status, reason, log, list(errors)

    def told(self) -> str:
        """Returns what a process is told: the reason, and the compiler's words."""
        return "\n".join(filter(None, [self.reason, self.log]))[:MAX_SAID]


@dataclass
class Made:
    """What came of a request: an artifact, or why there is none."""

    request: BuildRequest
    artifact: Artifact | None = None
    report: CompilerReport = field(default_factory=CompilerReport)
    failed: Failed | None = None


@dataclass
class BuildResult(Message):
    """What a candidate came to. ``status`` is "" where it can be run, else rejected, build_failed,
    crashed or timed_out.
    """

    build: BuildReport
    status: str
    reason: str
    artifacts: list[Artifact]
    normalised_hash: str
    language: str
    missing: list[str]  # of what policy wants of the machine, what it does not have
    called: list[str]  # languages of its kernels that compile when they are called
    cutlass: str = ""  # the version that it includes; see object_cache.NONE
    made: list[Made] = field(default_factory=list, metadata=INSIDE)  # just now

    def fail(self, why: Failed) -> None:
        """It ends with this."""
        self.status, self.reason = why.status, why.reason
        self.build.log = why.log or self.build.log
        self.build.errors = why.errors or self.build.errors

    def known(self) -> list[Made]:
        """Returns what came of its requests, as far as that is known."""
        return self.made or [Made(a.asked(), a) for a in self.artifacts]

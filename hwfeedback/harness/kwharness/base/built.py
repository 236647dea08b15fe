"""What was built: an object of the cache, what came of one request, and of a whole candidate.

The trusted side of the builder makes them (build/builder_client.py), and keeps them as JSON
(build/object_cache.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kwharness.base.records import INSIDE, Message
from kwharness.base.verdicts import BuildReport, Diagnostic, Kernel

MAX_SAID = 4000  # characters of what a process is told of a failure


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

    def given(self) -> dict[str, str]:
        """Returns what a process is told of an object that it is given."""
        return {"request": self.request, "kind": self.kind, "name": self.name}


@dataclass
class CompilerReport(Message):
    """What a compiler said of one request. A place is the source's index and a line from 1."""

    log: str = ""
    vectorised: list[Any] = field(default_factory=list)  # (source, line, words), each
    missed: list[Any] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


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

    request: dict[str, Any]
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
        kept = [Made({"kind": a.kind, "request": a.request}, a) for a in self.artifacts]
        return self.made or kept

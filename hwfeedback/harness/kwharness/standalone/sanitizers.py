"""What compute-sanitizer finds in an exported file that is run under it (interpreter.py).

It patches every kernel and looks at each access: memcheck finds what lies outside allocations or
is misaligned, racecheck threads of a block that do not wait for each other, synccheck barriers that
not all reach, initcheck reads of memory that nobody has written. The report is text, read here; its
forms are those of release 2025.3 (docs.nvidia.com/compute-sanitizer).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# What each finds is a fault, but for initcheck: whether what was read matters is decided where
# memory is poisoned, and a load that is wider than what is used is honest.
HINTS = {
    "memcheck": "check every index against the size of what it reads and writes",
    "racecheck": "between a write to shared memory and another thread's access to the same place "
    "there must be a barrier",
    "synccheck": "every thread that a barrier waits for must reach it",
    "initcheck": "",
}
TOOLS = tuple(HINTS)
LATE = 1000  # stands for the exit code of one that took too long
FOUND = 86  # exit code where something was found
MAX_LOG = 100_000  # bytes of a report that are read
PRINTED = 50  # findings that are printed, before they are counted
# Allocations lie side by side: what reads just past one would read the next, which is allowed.
PADDING = 1 << 20  # bytes

RACE = "Race reported"  # what a racecheck finding begins with

_LINE = re.compile(r"=========( .*)?$")
_NO_FINDING = re.compile(
    r"COMPUTE-SANITIZER|[A-Z]+ SUMMARY|Target application returned|Error: (?!Race)|Warning: |"
    r"Program hit|Error launching"
)


@dataclass(frozen=True)
class Finding:
    """One thing that a tool says, and how often."""

    what: str  # "Invalid __global__ write of size 4 bytes"
    where: str  # "softmax+0x130"
    count: int

    def __str__(self) -> str:
        often = f", {self.count} times" if self.count > 1 else ""
        return f"{self.what}{f' at {self.where}' if self.where else ''}{often}"


@dataclass(frozen=True)
class Check:
    """What came of one tool. ``failed`` says why it found out nothing, "" if it did.

    ``findings`` are those in the candidate's own kernels, ``others`` those in PyTorch's and in
    libraries', whose ways the tools do not always understand. ``fewer``: "" where the findings are
    of the task's own inputs; else they are of fewer, and this is what came of the task's own.
    """

    tool: str
    findings: Sequence[Finding]
    failed: str = ""
    others: Sequence[Finding] = ()
    fewer: str = ""

    @property
    def convicts(self) -> bool:
        return bool(self.findings) and bool(HINTS[self.tool]) and not self.fewer


def command(program: str, tool: str, report: str) -> list[str]:
    """Returns what to put before a command, so that its report is written to a file."""
    more = {
        "memcheck": ["--padding", str(PADDING)],
        "racecheck": ["--racecheck-report", "analysis"],
    }.get(tool, [])
    return [
        program, "--tool", tool, "--log-file", report, "--print-limit", str(PRINTED),
        "--error-exitcode", str(FOUND), "--target-processes", "application-only",
        "--report-api-errors", "no", "--launch-timeout", "0", *more,  # its user has a clock
    ]  # fmt: skip


def check(tool: str, code: int, report: str, said: str, own: Sequence[str]) -> Check:
    """Reads the report of a tool, the exit code of what ran under it, and the end of what that
    printed: all of it may be a candidate's own words. ``own``: the names of its kernels.
    """
    names = {m[1] for n in own if (m := re.search(r"(\w+)\s*(?:[<(]|$)", n))}
    found = _findings(report)
    findings = [f for f in found if names & set(re.findall(r"\w+", f"{f.what} {f.where}"))]
    others = [f for f in found if f not in findings]
    if found or code == 0:
        return Check(tool, findings, "", others)
    if code == LATE:
        return Check(tool, [], "it took too long")
    if code == FOUND:
        return Check(tool, [], "what it found could not be read")
    lines = [line.strip("= ") for line in (report + "\n" + said).splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return Check(tool, [], last[:200] or f"it ended with exit code {code}")


def _findings(report: str) -> list[Finding]:
    found: Counter[tuple[str, str]] = Counter()
    what, where = "", ""

    def end() -> None:
        nonlocal what, where
        if where or what.startswith(RACE):
            found[what, where] += 1
        what, where = "", ""

    for raw in report[:MAX_LOG].splitlines():
        m = _LINE.fullmatch(raw.rstrip())
        if m is None:
            continue
        text = m[1] or ""
        if text.startswith("     "):
            detail = text.strip()
            if what and not where and detail.startswith("at "):
                where = detail[3:]
            elif what.startswith(RACE) and detail.startswith("and "):
                what += " " + re.sub(r" \[\d+ hazards?\]", "", detail)
            continue
        end()
        text = text.strip()
        if text and not _NO_FINDING.match(text):
            what = text.removeprefix("Error: ").rstrip(".")
    end()
    return [Finding(a[:300], b[:300], n) for (a, b), n in found.items()]


def told(checks: Sequence[Check], at: str) -> list[str]:
    """Returns what the tools say, in sentences. ``at``: the shapes of the inputs."""
    said = []
    clean = [c.tool for c in checks if not (c.findings or c.others or c.failed)]
    if clean:
        said.append(f"compute-sanitizer finds nothing on inputs of {at}: {', '.join(clean)}")
    for c in checks:
        if c.failed:
            said.append(f"compute-sanitizer's {c.tool} could not be run: {c.failed}")
        elif c.findings and not c.convicts:
            whole = f" (on the task's own {c.fewer})" if c.fewer else ""
            said.append(
                f"compute-sanitizer's {c.tool} says on inputs of {at}{whole}: {c.findings[0]}"
            )
        elif c.others and not c.findings:
            said.append(
                f"compute-sanitizer's {c.tool} says of a kernel that is not its own: {c.others[0]}"
            )
    return said

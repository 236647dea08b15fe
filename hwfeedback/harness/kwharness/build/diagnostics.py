"""What compilers say: errors, resources of kernels, loops that were vectorised."""

from __future__ import annotations

import re

from kwharness.base.verdicts import Kernel
from kwharness.build.torch_headers import _UNDEFINED

MAX_DIAGNOSTICS = 40
LOG_KEPT = 16 << 10  # characters of what a compiler says
# Names of kernels that are templates over CuTe's layouts have thousands of letters.
_ENTRY = re.compile(r"Compiling entry function '([^']{1,20000})' for '(sm_\w{1,8})'")
_USED = re.compile(r"Used (\d{1,6}) registers")
_SHARED = re.compile(r"(\d{1,9}) bytes smem")
_SPILLS = re.compile(
    r"(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads"
)


def resources(log: str) -> list[Kernel]:
    """Returns what ptxas says that each kernel uses."""
    found: list[Kernel] = []
    for line in log[:LOG_READ].splitlines():
        if m := _ENTRY.search(line):
            found.append(Kernel(m[1], m[2]))
        elif not found:
            continue
        elif m := _SPILLS.search(line):
            k = found[-1]
            k.stack_bytes, k.spill_store_bytes, k.spill_load_bytes = map(int, m.groups())
        elif m := _USED.search(line):
            found[-1].registers = int(m[1])
            shared = _SHARED.search(line)
            found[-1].shared_bytes = int(shared[1]) if shared else 0
    return found[:MAX_DIAGNOSTICS]


_ERROR = re.compile(
    r"source(\d{1,4})\.(?:cpp:|cu[:(])(\d{1,9})(?:\)|:\d+)?: (?:fatal )?error: (.*)"
)
_FOREIGN = re.compile(
    r"(?:[^\s:]+:\d+:(?:\d+:)? |[^\s(]{1,200}\(\d{1,9}\): )?(?:fatal )?error: (.*)"
)
# Of nvcc itself and of what it and NVRTC start. The line that ptxas names is one of the PTX.
_TOOL = re.compile(
    r"\s{0,8}(?:ptxas|nvlink|nvcc) (?:[^;]{1,400}, line \d{1,9}; )?(?:error|fatal) {0,8}: (.*)"
)
_REPORT = re.compile(r"\s{0,8}(?:ptxas (?:info\b| {1,20}\.)|\d{1,9} bytes stack frame)")
# Of the assembler and the linker, where their files do not fit into the builder's folder; the
# compiler itself calls that an error of its own.
TOO_LARGE = re.compile(
    r"No space left on device|[Ff]ile (size limit|too large)|internal compiler error: Bus"
)
LOG_READ = 1 << 20  # characters of what the compiler wrote
_OUTER = re.compile(r"loop nest|nested loops")
_VECTOR = re.compile(
    r"^(?:source(\d{1,4})\.cpp|(kw/\w{1,40}\.h)):(\d{1,9}):\d+:"
    r" (optimized|missed): +(.*)$"
)


def errors(log: str) -> list[tuple[int, int, str]]:
    """Returns the compiler's errors as (source, line, message); line 0 for one that lies in no
    source of ours.
    """
    own: list[tuple[int, int, str]] = []
    others: list[tuple[int, int, str]] = []
    for line in log[:LOG_READ].split("\n"):
        if m := _ERROR.match(line):
            own.append((int(m[1]), int(m[2]), m[3][:500]))
        elif m := _FOREIGN.match(line) or _TOOL.match(line):
            others.append((0, 0, m[1][:500]))
        elif (at := line.find(_UNDEFINED)) >= 0:
            others.append((0, 0, line[at : at + 500]))
    if not own and TOO_LARGE.search(log):
        others = [(0, 0, "the object is too large: make arrays smaller, or fill them at run time")]
    found = own or others
    return list(dict.fromkeys(found))[:MAX_DIAGNOSTICS]


def last_words(log: str) -> str:
    """Returns the end of a log without errors, less what ptxas reports of kernels."""
    lines = [line for line in log.splitlines() if not _REPORT.match(line)]
    return "\n".join(lines).strip()[-300:]


def vectorisation(report: str) -> tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]:
    """Returns the loops that were vectorised and those that were not, as (source, line, what the
    compiler says).
    """
    done: dict[tuple[int, int, str], str] = {}
    missed: dict[tuple[int, int, str], str] = {}
    waiting: tuple[int, int, str] | None = None
    for line in report.splitlines():
        m = _VECTOR.match(line)
        if m is None:
            continue
        # A loop of a header of ours lies in no line of the candidate's.
        place = (0, 0, f"{m[2]}:{m[3]}: ") if m[2] else (int(m[1]), int(m[3]), "")
        what = m[5].strip()[:500]
        if m[4] == "optimized":
            if what.startswith(("loop vectorized", "basic block part vectorized")):
                best = done.get(place, "")
                done[place] = max(best, what, key=lambda w: (w.startswith("loop"), w))
        elif what.startswith("couldn't vectorize loop"):
            waiting = place
        elif waiting is not None:
            # Of an outer loop it says no more than that there are loops within.
            if what.startswith("not vectorized:") and not _OUTER.search(what):
                missed[waiting] = what.removeprefix("not vectorized:").strip()
            waiting = None
    loops = [(s, n, at + w) for (s, n, at), w in sorted(done.items()) if w.startswith("loop")]
    rest = [
        (s, n, at + w)
        for (s, n, at), w in sorted(missed.items())
        if not done.get((s, n, at), "").startswith("loop")
    ]
    return loops[:MAX_DIAGNOSTICS], rest[:MAX_DIAGNOSTICS]

"""What compilers say of a source, by its lines in the candidate's file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import kernelwright
from kwharness.base.built import BuildRequest, CompilerReport, Failed, Refused
from kwharness.base.constants import SHARED
from kwharness.base.for_builder import Compiled
from kwharness.base.records import ProtocolError
from kwharness.base.verdicts import Diagnostic, Kernel, Read
from kwharness.build import diagnostics, headers, sass
from kwharness.clients.errors import (
    sentence,
)
from kwharness.clients.workshop import name_of, sources_of

_NOT_INLINED = re.compile(r"\b(kw/\w{1,40}\.h): No such file|cannot open source file \"(kw/\w+\.h)")
VOTERS = 5000  # lines of a source that tell where it lies in its file
DIAGNOSTICS = diagnostics.MAX_DIAGNOSTICS
MAX_PROBLEMS = 20  # of a text
MAX_TOLD = 300  # characters of why something was not built, before all else
FOR_A_GPU = SHARED.for_a_gpu


def said_by(said: Compiled, log: str) -> Refused:
    """Returns what a compiler said of a source that it did not compile, or should not have."""
    errors = [list(d) for d in diagnostics_of(said.errors)]
    return Refused(said.code == -1, log, errors, [str(n)[:80] for n in said.reaches[:4]])


def failure_of(said: Refused, request: BuildRequest, text: str) -> Failed:
    """Returns that as the failure of a request, with the lines of the candidate's file."""
    log, name = said.log, name_of(request)
    if said.reaches:
        reason = f"{name} calls {', '.join(said.reaches)}, which a kernel has no use for"
        return Failed("rejected", sentence(reason), log)
    lines = Lines(text, sources_of(request))
    found = unique(lines.diagnostic(d) for d in diagnostics_of(said.errors))
    last = diagnostics.last_words(log) or "its compiler does not say why"
    first = found[0] if found else Diagnostic(0, last)
    where = f"line {first.line}: " if first.line else ""
    cuda = request.get("language") == "cuda"
    lacks = (kernelwright.without_cutlass(s) for s in sources_of(request) if cuda)
    words = next(filter(None, lacks), f"{where}{first.message}")
    m = _NOT_INLINED.search(words)
    if m is not None and (header := m[1] or m[2]) in headers.texts():
        words += f" (write #include <{header}> as a line of its own, nothing but // behind it)"
    status = "timed_out" if said.late else "build_failed"
    reason = sentence(f"{name} does not compile: {words}")
    return Failed(status, reason, lines.renumbered(log), found)


def parsed_source(said: Read, forms: Sequence[str]) -> Read:
    """Returns what a parser says of a text (source.parse), which may be of one of these forms, as
    far as it makes sense.
    """

    def word(value: str, pattern: str, otherwise: str) -> str:
        return value if re.fullmatch(pattern, value) else otherwise

    return Read(
        language=word(said.language, "[a-z]{1,16}", ""),
        form=word(said.form, "|".join(forms), forms[-1]),
        normalised_hash=word(said.normalised_hash, "[0-9a-f]{64}", ""),
        problems=[sentence(p[:500]) for p in said.problems[:MAX_PROBLEMS]],
        given=word(said.given, r"\w{1,100}", ""),
        called=[f for f in forms if f in said.called],
        lazy=said.lazy,
    )


def diagnostic_of(problem: str) -> Diagnostic:
    m = re.match(r"line ([0-9]{1,9}): ", problem)
    return Diagnostic(int(m[1]), problem[m.end() :]) if m else Diagnostic(0, problem)


def compiler_report(said: Compiled) -> CompilerReport:
    """Returns what a compiler said, from a builder's word or a record."""
    return CompilerReport(
        said.log[: diagnostics.LOG_KEPT],
        diagnostics_of(said.vectorised),
        diagnostics_of(said.missed),
        resources(said.kernels),
    )


def diagnostics_of(value: Any) -> list[tuple[int, int, str]]:
    out = []
    for item in value[: 10 * DIAGNOSTICS] if isinstance(value, list) else ():
        if isinstance(item, (list, tuple)) and len(item) == 3:
            place, text = item[:2], item[2]
            if all(type(n) is int and 0 <= n < 1 << 31 for n in place) and isinstance(text, str):
                out.append((*place, sentence(text[:500])))
    return out[:DIAGNOSTICS]


def resources(value: Any) -> list[Kernel]:
    """Returns what is sound of what a builder, or a record, says of kernels."""
    out: list[Kernel] = []
    for item in value[:DIAGNOSTICS] if isinstance(value, list) else ():
        try:
            k = Kernel.from_json(item)
        except ProtocolError:
            continue
        spilled = k.stack_bytes, k.spill_store_bytes, k.spill_load_bytes
        if not all(0 <= v < 1 << 31 for v in (k.registers, k.shared_bytes, *spilled)):
            continue
        k.name, k.arch = sentence(k.name[:500]), sentence(k.arch[:500])
        if k.instructions is not None:
            known = {n: v for n, v in k.instructions.items() if n in sass.CLASSES}
            k.instructions = {n: v for n, v in known.items() if 0 < v < 1 << 31}
        k.load_bytes, k.store_bytes = _mean(k.load_bytes), _mean(k.store_bytes)
        k.warps = k.warps if k.warps is not None and 0 < k.warps <= 64 else None
        out.append(k)
    return out


def _mean(bytes_moved: float | None) -> float | None:
    return bytes_moved if bytes_moved is not None and 0 < bytes_moved <= 64 else None


def unique(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    seen = {(d.line, d.message): d for d in found}
    return list(seen.values())[:DIAGNOSTICS]


def beside(text: str, sources: Sequence[str]) -> str:
    """Returns a file without the sources that were built, where they stand in it as they are: every
    byte of the Python that runs.
    """
    for built in sorted({s for s in sources if "\n" in s}, key=lambda s: (-len(s), s)):
        text = text.replace(built, "\0")
    return text


# Where g++ ("source0.cpp:10:5: error") and nvcc ("source0.cu(10): error") say that something is, in
# which function, and g++'s quotation of a line ("   10 |     float n;").
_SAID_AT = re.compile(r"\bsource(\d{1,4})\.(?:cpp|cu)([:(])(\d{1,9})")
_WITHIN = re.compile(r"^source\d{1,4}\.(?:cpp|cu): ")  # "source0.cpp: In function ‘...’:"
_QUOTED = re.compile(r"^( *\d{1,9})( \|)")


class Lines:
    """Finds the lines of C++ sources in the Python file that holds them, by comparing text.

    Nothing else is reliable: a source may be a literal, a join of literals, or come out of a
    format.
    """

    def __init__(self, text: str, sources: Sequence[str]) -> None:
        self._file = [line.strip() for line in text.split("\n")]
        self._where: dict[str, list[int]] = {}
        for i, line in enumerate(self._file, 1):
            if line:
                self._where.setdefault(line, []).append(i)
        self._sources = [headers.apart(s).split("\n") for s in sources]
        self._offsets = [self._offset(s) for s in self._sources]

    def _offset(self, lines: list[str]) -> int:
        votes: dict[int, int] = {}
        for i, line in enumerate(lines[:VOTERS], 1):
            for n in self._where.get(line.strip(), ())[:50]:
                votes[n - i] = votes.get(n - i, 0) + 1
        return max(votes, key=lambda o: (votes[o], -o)) if votes else 0

    def line(self, source: int, number: int) -> int:
        """The line of the file, or 0 where it cannot be told."""
        if not (0 <= source < len(self._sources) and 0 < number <= len(self._sources[source])):
            return 0
        wanted = self._sources[source][number - 1].strip()
        guess = number + self._offsets[source]
        if 0 < guess <= len(self._file) and wanted in self._file[guess - 1]:
            return guess
        found = self._where.get(wanted, [])
        return found[0] if len(found) == 1 else 0

    def diagnostic(self, d: tuple[int, int, str]) -> Diagnostic:
        return Diagnostic(self.line(d[0], d[1]), d[2])

    def renumbered(self, log: str) -> str:
        """Returns a compiler's log with the file's lines in place of a source's, also before the
        code that it quotes. What it says of places that are not in the file stays.
        """
        source = 0

        def place(m: re.Match[str]) -> str:
            nonlocal source
            source = int(m[1])
            number = self.line(source, int(m[3]))
            return f"candidate.py{m[2]}{number}" if number else m[0]

        def quoted(m: re.Match[str]) -> str:
            number = self.line(source, int(m[1]))
            return f"{number:{len(m[1])}}{m[2]}" if number else m[0]

        said = []
        for line in log.split("\n"):
            moved = _WITHIN.sub("candidate.py: ", _SAID_AT.sub(place, line))
            said.append(moved if moved != line else _QUOTED.sub(quoted, line))
        return "\n".join(said)

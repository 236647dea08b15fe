"""Whose code is at work in a process that stands still: where its threads would go on.

Read from outside, proc(5), ``syscall`` and ``maps``: what is found there the process cannot forge.
That it was stopped it can tell, afterwards, by a clock.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kwharness.base import stats

# Operators and the libraries linked into it: MKL, oneDNN. Not the threads that wait for work
# (libgomp), nor the bindings, which whoever calls anything goes through.
PYTORCH = "libtorch_cpu.so"
# Of it, functions of vectors: PyTorch's own operators call them, and whoever uses ATen's headers.
FREE = "Sleef_"
# Nobody honest is to be accused: the list of operators is of another forward, whose inputs were in
# the cache. So the share has to be large, far from what the list says, and certain.
SIGMAS, LEAST, TIMES = 3.3, 0.5, 4.0


@dataclass
class Seen:
    """What many looks into the calls of one candidate found."""

    looks: int = 0  # that found any thread computing
    pytorch: list[int] = field(default_factory=list)  # of these in PyTorch: where, from its start
    library: str = ""  # its path
    traced: float = 0.0  # share of the time of a forward whose operators were listed

    def too_much(self, objects: Iterable[str]) -> bool:
        """Whether PyTorch was at work far more than the share of time that was ``traced``.

        ``objects`` are the files with the candidate's code.
        """
        limit = self._limit()
        if self._least(self.pytorch) <= limit:
            return False
        if not any(FREE.encode() in Path(o).read_bytes() for o in objects):
            return True
        free = _free(self.library)
        own = [at for at in self.pytorch if not any(a <= at < b for a, b in free)]
        return self._least(own) > limit

    def unsure(self) -> bool:
        """Whether more looks may tell: by these few it may be too much or not."""
        others = range(self.looks - len(self.pytorch))
        return self._least(self.pytorch) <= self._limit() < 1.0 - self._least(others)

    def _limit(self) -> float:
        return max(LEAST, TIMES * self.traced)

    def _least(self, hits: Sequence[int]) -> float:
        """Returns the least share that such looks have with certainty."""
        return stats.wilson_low(len(hits), self.looks, SIGMAS) if self.looks else 0.0


class Sampler:
    """Looks at the threads of one process while it is stopped, and adds to what was ``seen``."""

    def __init__(self, pid: int, seen: Seen) -> None:
        self.seen = seen
        self._folder = f"/proc/{pid}"
        self._from = self._to = 0  # of the library, with its data: it lies in one piece

    def look(self) -> None:
        """Takes one sample, however many threads compute. None where the system tells nothing."""
        if not self._to:
            self._find()
        try:
            threads = os.listdir(f"{self._folder}/task")
        except OSError:
            return
        found = [at for at in map(self._goes_on_at, threads) if at]
        inside = [at - self._from for at in found if self._from <= at < self._to]
        self.seen.looks += bool(found)
        self.seen.pytorch.extend(inside[:1])

    def _goes_on_at(self, thread: str) -> int:
        """Returns the address of a thread's next instruction, 0 for one that waits in a call."""
        try:
            with open(f"{self._folder}/task/{thread}/syscall") as f:
                fields = f.read().split()
        except OSError:
            return 0
        return int(fields[2], 16) if len(fields) == 3 and fields[0] == "-1" else 0

    def _find(self) -> None:
        try:
            with open(f"{self._folder}/maps", errors="replace") as f:
                lines = [line.rstrip("\n").split(maxsplit=5) for line in f]
        except OSError:
            return
        own = [x for x in lines if len(x) == 6 and os.path.basename(x[5]) == PYTORCH]
        if own:
            ends = [tuple(int(end, 16) for end in x[0].split("-")) for x in own]
            self._from, self._to = min(a for a, _ in ends), max(b for _, b in ends)
            self.seen.library = own[0][5]


def _free(library: str) -> list[tuple[int, int]]:
    """Returns where a library's functions lie that are no work of PyTorch's, from its start."""
    command = ["nm", "-D", "-S", "--defined-only", library]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    found: list[tuple[int, int]] = []
    for line in done.stdout.splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[3].startswith(FREE):
            start, size = int(fields[0], 16), int(fields[1], 16)
            found.append((start, start + size))
    return found

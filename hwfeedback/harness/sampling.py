"""Whose code is at work in a process that stands still: where its threads would go on.

Read from outside, so that nobody who is looked at can tell or deny it: proc(5), ``syscall`` and
``maps``.
"""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass

import stats

# Operators and the libraries linked into it: MKL, oneDNN. Not the threads that wait for work
# (libgomp), nor the bindings, which whoever calls anything goes through.
PYTORCH = "libtorch_cpu.so"
# In an interval this wide one verdict in some thousand is wrong; and so much more than the list of
# operators shows is another way of working.
SIGMAS, MORE = 3.3, 0.25


@dataclass
class Seen:
    """In how many of all looks a thread was found computing, and how often in PyTorch."""

    pytorch: int = 0
    looks: int = 0

    def at_least(self) -> float:
        """Returns the share of PyTorch's that is certain."""
        return stats.wilson_low(self.pytorch, self.looks, SIGMAS) if self.looks else 0.0


class Sampler:
    """Looks at the threads of one process while it is stopped, and adds to what was ``seen``."""

    def __init__(self, pid: int, seen: Seen) -> None:
        self.seen = seen
        self._folder = f"/proc/{pid}"
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int]] = []  # of PyTorch's instructions

    def look(self) -> None:
        """Takes one sample of each thread that computes. None where the system tells nothing."""
        if not self._ranges:
            self._find()
        try:
            threads = os.listdir(f"{self._folder}/task")
        except OSError:
            return
        for thread in threads:
            at = self._goes_on_at(thread)
            if at:
                self.seen.looks += 1
                self.seen.pytorch += self._is_pytorch(at)

    def _goes_on_at(self, thread: str) -> int:
        """Returns the address of a thread's next instruction, 0 for one that waits in a call."""
        try:
            with open(f"{self._folder}/task/{thread}/syscall") as f:
                fields = f.read().split()
        except OSError:
            return 0
        return int(fields[2], 16) if len(fields) == 3 and fields[0] == "-1" else 0

    def _is_pytorch(self, at: int) -> bool:
        i = bisect.bisect_right(self._starts, at) - 1
        return i >= 0 and at < self._ranges[i][1]

    def _find(self) -> None:
        try:
            with open(f"{self._folder}/maps") as f:
                lines = [line.rstrip("\n").split(maxsplit=5) for line in f]
        except OSError:
            return
        for fields in lines:
            if len(fields) == 6 and "x" in fields[1] and os.path.basename(fields[5]) == PYTORCH:
                low, high = fields[0].split("-")
                self._ranges.append((int(low, 16), int(high, 16)))
        self._ranges.sort()
        self._starts = [low for low, _ in self._ranges]

"""Finds out about many operators, each in a child process, and goes on where it was killed.

An outcome is written to a journal before the next operator is tried: a line of JSON, with the place
of its operator among all. Nothing is locked. Who writes at the same time writes the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
Job = tuple[int, Entry]  # with its place among all

CPU_SECONDS = 8.0  # an operator that takes longer is left out
WALL_SECONDS = 120  # and one that waits
CHUNK = 100  # operators a child process tries
MOST = 4  # child processes: each has a copy of what PyTorch writes to
ENDED = "ends its process, or takes too long"


def outcomes(
    entries: list[Entry],
    work: Callable[[Entry], Entry],
    told: Callable[[int, int], None],
    path: str = "",
    width: int = 1,
) -> list[Entry]:
    """Returns what ``work`` makes of each entry, as JSON has it, or it with a reason.

    ``path`` names the journal, "" for none. ``told`` hears how many of how many are known.
    """
    journal = Journal(path)
    found = journal.known(entries)
    rest = [(i, e) for i, e in enumerate(entries) if i not in found]
    for i, outcome in contained(rest, work, journal, width):
        found[i] = outcome
        told(len(found), len(entries))
    journal.close()
    return [found[i] for i in range(len(entries))]


class Journal:
    """A file of outcomes, a line each."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.file = -1
        if path:
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self.file, b"\n")  # ends a line that a kill cut off

    def known(self, entries: list[Entry]) -> dict[int, Entry]:
        """Returns the outcomes that were written, of the same entries."""
        found: dict[int, Entry] = {}
        for line in Path(self.path).read_bytes().split(b"\n") if self.path else []:
            with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
                kept = json.loads(line)
                i, outcome = kept["i"], kept["outcome"]
                if i >= 0 and outcome["path"] == entries[i]["path"]:
                    found.setdefault(i, outcome)
        return found

    def add(self, i: int, outcome: Entry) -> None:
        """Writes an outcome. One that cannot be written is found again by another crawl."""
        if self.file >= 0:
            with contextlib.suppress(OSError):
                os.write(self.file, json.dumps({"i": i, "outcome": outcome}).encode() + b"\n")

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)


class Child:
    """A process that tries some operators, one after the other."""

    def __init__(self, jobs: list[Job], work: Callable[[Entry], Entry], journal: Journal) -> None:
        self.jobs, self.done = jobs, 0
        self.ended = False
        self.read, write = os.pipe()
        self.text = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.read)
            _try(jobs, work, journal, write)
        os.close(write)

    def more(self) -> Iterator[tuple[int, Entry]]:
        """Yields the outcomes that came. Waits for some."""
        part = os.read(self.read, 1 << 16)
        self.ended = not part
        *lines, self.text = (self.text + part).split(b"\n")
        for line in lines:
            yield self.jobs[self.done][0], json.loads(line)
            self.done += 1

    def close(self) -> None:
        os.close(self.read)
        os.kill(self.pid, signal.SIGKILL)  # it was not waited for: the number is its own
        os.waitpid(self.pid, 0)


def contained(
    jobs: list[Job], work: Callable[[Entry], Entry], journal: Journal, width: int = 1
) -> Iterator[tuple[int, Entry]]:
    """Tries operators in child processes, and yields outcomes as they come. The operator at which a
    process dies is left out; what it was to try after that is tried by another one.
    """
    waiting = [jobs[at : at + CHUNK] for at in range(0, len(jobs), CHUNK)]
    running: dict[int, Child] = {}
    with selectors.DefaultSelector() as events:
        try:
            while waiting or running:
                while waiting and len(running) < min(width, MOST):
                    child = Child(waiting.pop(0), work, journal)
                    running[child.read] = child
                    events.register(child.read, selectors.EVENT_READ)
                for key, _ in events.select():
                    child = running[key.fd]
                    yield from child.more()
                    if not child.ended:
                        continue
                    events.unregister(key.fd)
                    running.pop(key.fd).close()
                    if rest := child.jobs[child.done :]:
                        i, entry = rest[0]
                        left = entry | {"reason": ENDED}
                        journal.add(i, left)
                        yield i, left
                        waiting[:0] = [rest[1:]] if rest[1:] else []
        finally:
            for child in running.values():
                child.close()


def _try(jobs: list[Job], work: Callable[[Entry], Entry], journal: Journal, write: int) -> None:
    """Tries operators and ends the process."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")
        for i, entry in jobs:
            signal.alarm(WALL_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            outcome = work(entry)
            line = json.dumps(outcome).encode() + b"\n"
            journal.add(i, outcome)
            while line:
                line = line[os.write(write, line) :]
        code = 0
    finally:
        os._exit(code)

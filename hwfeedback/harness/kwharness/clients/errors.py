"""What goes wrong with a worker, and what foreign answers are checked for."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kwharness.base.operations import Failure
from kwharness.machine import health
from kwharness.machine.cuda_driver import CudaError
from kwharness.machine.device import Device

SENTENCE = 600  # characters
LAST_WORDS = 4000  # of a process that has ended


class Spawned(Protocol):
    """What is needed of fork_client.Worker."""

    channel: Any
    pid: int
    refused: dict[str, int]
    files: dict[str, int]

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> Any: ...

    def log(self) -> str: ...


class Asker(Protocol):
    """What is needed of client.Client."""

    device: Device
    worker: Spawned


def sentence(text: str) -> str:
    """Returns a text that may have foreign parts as one line that can be shown."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * SENTENCE])
    return " ".join(shown.split())[:SENTENCE]


def line_numbers(value: Any) -> list[int]:
    """Returns the line numbers that a worker named, the last eight."""
    given = value[-100:] if isinstance(value, list) else []
    return [n for n in given if type(n) is int and 0 < n < 1 << 31][-8:]


def read_failure(error: Any) -> Failure:
    """Reads what a worker says of its failure, whatever its shape."""
    e = error if isinstance(error, dict) else {}
    texts = {n: str(e.get(n) or "") for n in ("type", "message", "traceback", "stage")}
    return Failure(**texts, lines=line_numbers(e.get("lines")))


class WorkerFailure(Exception):
    """A worker did not do what it was asked.

    ``client`` is whose worker it was, None where that is not known.
    """

    client: Asker | None = None

    @property
    def ill(self) -> str:
        """What it says, by the worker's own word, of a GPU that does not work; "" where nothing. A
        worker on the CPU has none: who wants one there has brought the error about.
        """
        has_none = self.client is not None and not self.client.device.has_driver
        return "" if has_none else self._ill()

    def _ill(self) -> str:
        return ""


class WorkerError(WorkerFailure):
    """The worker answered that something failed. ``error`` is foreign text but for its shape."""

    def __init__(self, error: Failure, client: Asker | None = None) -> None:
        self.client = client
        self.stage = error.stage[:40]
        self.type = sentence((error.type or "error")[:80])
        self.message = error.message[:2000]
        self.traceback = error.traceback[:8000]
        self.lines = line_numbers(error.lines)
        super().__init__(f"{self.type}: {self.message}" if self.message else self.type)

    def _ill(self) -> str:
        words = health.said(self.message)
        if not words and self.stage == health.STAGE and not self.out_of_memory:
            words = sentence(self.message.partition("\n")[0]) or self.type
        return words

    @property
    def out_of_memory(self) -> bool:
        said = "allocate memory", "CUDA_ERROR_OUT_OF_MEMORY"
        return self.type in ("MemoryError", "OutOfMemoryError") or any(
            s in self.message for s in said
        )


def ran_out(e: BaseException) -> bool:
    """Whether it says that there was no memory, here or in a worker."""
    if isinstance(e, (CudaError, WorkerError)):
        return e.out_of_memory
    return isinstance(e, torch.OutOfMemoryError)


def ill(e: BaseException | None) -> str:
    """Returns what it says, or what led to it, of a GPU that does not work, "" where nothing."""
    words = ""
    while e is not None:
        words = (e.ill if isinstance(e, WorkerFailure) else health.said(str(e))) or words
        e = e.__cause__
    return words


class WorkerGone(WorkerFailure):
    """The worker's process ended, or broke the protocol.

    The message is a clause: "was killed by signal 11". ``doing`` is what it was asked for.
    """

    def __init__(
        self, how: str, log: str = "", oom: bool = False, doing: str = "", broke: bool = False
    ) -> None:
        super().__init__(how)
        self.log = log
        self.oom = oom
        self.doing = doing
        self.broke = broke

    def _ill(self) -> str:
        return health.said(self.log[-LAST_WORDS:])


class WorkerLate(WorkerFailure):
    """The worker did not answer in time."""

    def __init__(self, doing: str, seconds: float, log: str = "") -> None:
        super().__init__(f"{doing} took over {seconds:g} s")
        self.log = log
        self.doing = doing


_SIGNALS = {
    4: "an illegal instruction (SIGILL)",
    6: "an abort (SIGABRT)",
    7: "a bus error (SIGBUS)",
    8: "an arithmetic fault (SIGFPE)",
    9: "SIGKILL, most likely for want of memory",
    11: "a segmentation fault (SIGSEGV)",
    24: "the limit on processor time (SIGXCPU)",
    31: "a forbidden system call (SIGSYS)",
}


def how_it_ended(exit_: Any) -> str:
    """Returns how a process ended, as a clause."""
    if exit_ is None:
        return "stopped answering"
    if exit_.reason == "lost":
        return "was lost with the server that had started it"
    if exit_.reason == "foreign":
        return "was killed from outside, or by the kernel because others hold the memory"
    if exit_.signal:
        return f"died of {_SIGNALS.get(exit_.signal, f'signal {exit_.signal}')}"
    return f"ended itself with exit code {exit_.code}"


def broke_protocol(what: object) -> str:
    return f"broke the protocol: {sentence(str(what))[:200]}"

"""Stops a process from outside, every thread of it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from kwharness.base.operations import Failure
from kwharness.process.policy import SandboxError
from kwharness.timing import process_use, window_base, window_worker

STOP_NS = 2_000_000_000  # by then every thread of a process has stopped, and
PATIENCE_NS = 20_000_000_000  # by then where the machine is so busy that it gets no core to do so
RUNS = 0.05  # of the time: a process that was told to stop and runs for so long does not mean to


class Stopped:
    """Stops a process, all threads of it, from outside, and has it go on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def stop(self) -> int:
        """Returns when no thread of it ran any more. Does nothing for one that is gone.

        Raises CallFailed for one that does not let itself be stopped, SandboxError where it gets no
        core to stop on.
        """
        began = window_base.now_ns()
        end = began + STOP_NS
        ran: int | None = None  # until who stands at once is known not to
        while True:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGSTOP)
            for _ in range(100):
                if self._stands():
                    return window_base.now_ns()
                time.sleep(window_worker.PAUSE_S)  # a thread may need this core to be stopped on
            now = window_base.now_ns()
            if ran is None:
                began, ran, end = now, self._ran_ns(), now + STOP_NS
            if now < end:
                continue
            runs = self._ran_ns() - ran > RUNS * (now - began)
            if not runs and now < began + PATIENCE_NS:
                end = now + STOP_NS
                continue
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if runs:
                raise _ran_on("it does not let itself be stopped")
            seconds = (now - began) / 1e9
            raise SandboxError(f"a process did not stop in {seconds:.0f} s, nor did it run")

    def _ran_ns(self) -> int:
        """Returns for how long its threads have run."""
        return sum(u.cpu_ns for u in process_use.usage([self.pid]).values())

    def _stands(self) -> bool:
        folder = f"/proc/{self.pid}/task"
        try:
            for thread in os.listdir(folder):
                fd = os.open(f"{folder}/{thread}/stat", os.O_RDONLY)
                try:
                    state = os.read(fd, 512).rpartition(b")")[2][1:2]
                finally:
                    os.close(fd)
                if state not in b"TtZXx":
                    return False
        except (FileNotFoundError, ProcessLookupError):
            return not os.path.exists(folder)  # a thread has just ended: look again
        return True

    def gone(self) -> bool:
        """Whether it has ended."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as f:
                return f.read().rpartition(b")")[2][1:2] in b"ZX"
        except OSError:
            return True

    def check(self) -> None:
        """Raises CallFailed where it has not stayed stopped: who was woken stays awake."""
        if not self._stands():
            raise _ran_on("its threads run")

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


def _ran_on(how: str) -> window_base.CallFailed:
    message = f"while the clock stands still {how}"
    return window_base.CallFailed(Failure(window_base.RAN_ON, message))

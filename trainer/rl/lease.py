"""The share of this process in the device that it computes on.

Who measures on a device holds its lock file alone (hwfeedback/lease.go has the protocol). Who
trains, samples or serves holds it together with others of that kind, and in slices: where somebody
waits for it, what was begun is finished, and they have it first. So nothing of ours runs on a
device while something is timed there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rl.constants import SHARED

LOOK_S = 0.1  # between two looks whether somebody waits
SLICE_S = 60.0  # the longest hold


class Lease:
    """A device of a folder of leases; without a folder nothing is locked. ``finish`` returns once
    the device has done all that it was asked.
    """

    def __init__(self, folder: str, device: str, finish: Callable[[], None]) -> None:
        name = device.replace(":", "-")
        self._lock = Path(folder) / f"{name}.lock" if folder else None
        self._wanted = Path(folder) / f"{name}.wanted"
        self._alone = Path(folder) / f"{name}.alone"
        self._finish = finish
        self._file: int | None = None
        self._since = self._looked = 0.0

    @property
    def is_held(self) -> bool:
        """Whether this process may use the device now."""
        return self._lock is None or self._file is not None

    def hold(self) -> None:
        """Waits until nobody measures on the device, and keeps them off it then."""
        if self._lock is None or self._file is not None:
            return
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _open(self._lock)
        try:
            self._wait(file)
            _say(file, released=False)
        except BaseException:
            os.close(file)
            raise
        self._file, self._since = file, time.monotonic()

    def let_go(self) -> None:
        """Finishes what was begun, and lets others measure."""
        if self._file is None:
            return
        self._finish()
        file, self._file = self._file, None
        try:
            _say(file, released=True)
        finally:
            os.close(file)

    def breathe(self) -> None:
        """Lets those who wait go first. It is to be called between two pieces of work."""
        now = time.monotonic()
        if self._file is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        if not self.wanted() and now - self._since < SLICE_S:
            return
        self.let_go()
        end = time.monotonic() + SHARED.yield_s
        while self.wanted() and time.monotonic() < end:
            time.sleep(SHARED.first_poll_s)
        self.hold()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the device in a block, unless it is held already."""
        before = self._file is not None
        self.hold()
        try:
            yield
        finally:
            if not before:
                self.let_go()

    def wanted(self) -> bool:
        """Reports whether somebody waits for the device."""
        return self._lock is not None and _waits(self._wanted)

    def _wait(self, file: int) -> None:
        pause, waits = SHARED.first_poll_s, None
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    if not _waits(self._alone):
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        return
                if waits is None:
                    waits = _open(self._wanted)
                    fcntl.flock(waits, fcntl.LOCK_SH)
                os.pwrite(waits, b"\n", 0)
                time.sleep(pause)
                pause = min(pause * 1.5, SHARED.last_poll_s)
        finally:
            if waits is not None:
                os.close(waits)


# Of who computes where nobody measures.
FREE = Lease("", "cpu", lambda: None)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _waits(path: Path) -> bool:
    """Whether somebody who waits has locked the file: who was stopped does not wait any more."""
    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return time.time() - os.fstat(file).st_mtime < SHARED.waiter_gone_s
    finally:
        os.close(file)
    return False


def _say(file: int, released: bool) -> None:
    """Writes who holds the device, for people: the lock decides."""
    try:
        before = json.loads(os.pread(file, SHARED.holder_bytes + 1, 0))
        fence = int(before["fence"])
    except (ValueError, KeyError, TypeError):
        fence = 0  # it is being written, or never was
    who = {"pid": os.getpid(), "fence": fence, "since": int(time.time() * 1000)}
    line = json.dumps({**who, "released": released}).ljust(SHARED.holder_bytes) + "\n"
    os.pwrite(file, line.encode(), 0)

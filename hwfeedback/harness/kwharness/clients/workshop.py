"""Has built what a candidate's processes ask for, wherever they ask for it.

A ``Workshop`` is of one candidate: what was built for it, what does not compile, and how much may
be asked for. Each of its processes has a ``Desk`` there, a socket and a thread of ours: the process
hands sources over, a builder that has met nothing of the candidate builds them, and the process
gets the object. What one process has asked for the next ones are given when they load the
candidate.

No clock is stopped for a build. Until the first forward of a process has returned, its answers are
waited for longer (``Desk.granted``); from then on a build takes the candidate's own time. When a
process is killed so is the builder that works for it: whoever is timed next is alone.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from kwharness.base.built import Artifact, BuildRequest, CompilerReport, Failed, Made
from kwharness.base.for_candidate import Build, Built, KnownFailure
from kwharness.base.protocol import MAX_WORKER_FRAME, Channel, Closed, ProtocolError

MAX_OBJECTS = 32  # of a candidate
MAX_ASKED = 64  # different requests of its, built or not
MAX_MESSAGES = 1000  # of one process
MAX_SOURCES = 4 << 20  # characters, of all of them together
MAX_BYTES = 512 << 20  # of all objects together
BUILD_S = 600.0  # that compiling for it may take, all together
MAX_REFUSALS = 8  # that are kept
WAIT_S = 0.1  # between looks whether somebody who waits for his turn is still there
JOIN_S = 30.0
ONCE = "build once, and keep what you are given"


class Maker(Protocol):
    """Who builds. Raises Failed, and what is the machine's fault."""

    stopped: bool

    def checked(self, raw: Any) -> BuildRequest:
        """Returns a request as it is built: it comes from a process that runs the candidate."""

    def make(self, request: BuildRequest, seconds: float) -> tuple[Artifact, CompilerReport]:
        """One at a time."""

    def stop(self) -> None:
        """Has what is being made fail at once, and all that comes later. From any thread."""

    def close(self) -> None:
        """Ends the builder."""


class Workshop:
    """Of one candidate, for all of its processes. Safe to use from several threads."""

    def __init__(
        self,
        maker: Callable[[], Maker],
        opened: Callable[[Artifact], int],
    ) -> None:
        """``opened`` returns a descriptor of an artifact, the caller's to close."""
        self._new_maker, self.opened = maker, opened
        self._maker: Maker | None = None
        self._made: dict[str, Made] = {}
        self._refusals: list[Failed] = []  # of requests that are none, or one too many
        self._sources = self._bytes = 0
        self._spent = 0.0
        self._building = threading.Lock()
        self._desks: set[Desk] = set()
        self.trouble: BaseException | None = None  # that is the machine's
        self.late: list[float] = []  # seconds of builds after a process's first forward

    @property
    def made(self) -> list[Made]:
        """What was asked for, in that order."""
        return list(self._made.values())

    @property
    def artifacts(self) -> list[Artifact]:
        """What was built."""
        return [m.artifact for m in self.made if m.artifact is not None]

    @property
    def failures(self) -> list[Failed]:
        """Why other things were not, each reason once."""
        found = [*(m.failed for m in self.made if m.failed is not None), *self._refusals]
        return list({f.reason: f for f in found}.values())

    def failed(self) -> list[KnownFailure]:
        """What a process is told that does not compile."""
        made = list(self._made.items())
        return [KnownFailure(k, m.failed.told()) for k, m in made if m.failed is not None]

    def begin(self) -> None:
        """Has somebody ready to build before anybody asks."""
        self._maker = self._new_maker()

    def know(self, made: Made) -> None:
        """Takes over what another workshop of the same candidate has made."""
        self._made[str(made.request["request"])] = made

    def desk(self, given: Sequence[str] = ()) -> tuple[Desk, socket.socket]:
        """Returns the desk of a process, and the end of it that the process gets. ``given``: the
        keys of what it has been given.
        """
        channel, theirs = Channel.pair(MAX_WORKER_FRAME)
        desk = Desk(self, channel, given)
        self._desks.add(desk)
        return desk, theirs

    def get(self, raw: Any, desk: Desk | None = None) -> tuple[str, Made]:
        """Returns what comes of a request, and its key. Raises Failed for one that is refused, and
        Closed where the process is gone that asks.
        """
        while not self._building.acquire(timeout=WAIT_S):
            if desk is not None and desk.closed:
                raise Closed("its process has ended")
        try:
            if self._maker is None or self._maker.stopped:
                self._maker = self._new_maker()
            request = self._maker.checked(raw)
            key = str(request["request"])
            if key not in self._made:
                self._admit(request)
                self._made[key] = self._make(self._maker, request, desk)
            return key, self._made[key]
        except Failed as e:
            if len(self._refusals) < MAX_REFUSALS:
                self._refusals.append(e)
            raise
        except Closed:
            raise
        except BaseException as e:
            self.trouble = e
            raise
        finally:
            self._building.release()

    def _admit(self, request: BuildRequest) -> None:
        """Raises Failed for one request too many."""
        self._sources += sum(map(len, [*sources_of(request), *request.get("files", {}).values()]))
        if self._sources > MAX_SOURCES:
            raise Failed("rejected", f"the sources to build are over {MAX_SOURCES} characters long")
        if len(self._made) >= MAX_ASKED:
            raise Failed("rejected", f"it asks for over {MAX_ASKED} different builds: {ONCE}")
        if len(self.artifacts) >= MAX_OBJECTS:
            raise Failed("rejected", f"it builds over {MAX_OBJECTS} objects: {ONCE}")

    def _make(self, maker: Maker, request: BuildRequest, desk: Desk | None) -> Made:
        made = Made(request)
        left = BUILD_S - self._spent
        began = time.monotonic()
        try:
            if left <= 0:
                raise Failed("timed_out", f"building its extensions takes over {BUILD_S:g} s")
            with desk.waits_for(maker) if desk is not None else nullcontext():
                made.artifact, made.report = maker.make(request, left)
            self._bytes += os.path.getsize(made.artifact.path)
            if self._bytes > MAX_BYTES:
                made.artifact = None
                raise Failed("rejected", f"its objects are over {MAX_BYTES} bytes together")
        except Failed as e:
            if maker.stopped:
                raise Closed("its process has ended") from e  # which is why it failed
            made.failed = e
        finally:
            self._spent += time.monotonic() - began
        return made

    def leave(self, desk: Desk | None = None) -> None:
        """Somebody needs nothing more: the builder ends with the last of them."""
        if desk is not None:
            self._desks.discard(desk)
        if self._desks:
            return
        with self._building:
            maker, self._maker = self._maker, None
            if maker is not None:
                maker.close()


class Desk:
    """Where one process asks. Its end of the socket lies in that process."""

    def __init__(self, workshop: Workshop, channel: Channel, given: Sequence[str]) -> None:
        """``given``: the keys of what the process has been given."""
        self.workshop, self._channel = workshop, channel
        self._given = set(given)  # each object is handed over once
        self._lock = threading.Lock()
        self._maker: Maker | None = None  # that works for this process
        self.closed = False
        self._grants = True  # until its first forward has returned
        self._granted = 0.0  # seconds of builds that are over
        self._began = math.inf  # time.monotonic() when the one that goes on did
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> BaseException | None:
        """What is wrong with the machine, where something is."""
        return self.workshop.trouble

    def granted(self) -> float:
        """Returns the seconds of builds that are not this process's own time."""
        with self._lock:
            return self._granted + self._running()

    def no_more(self) -> None:
        """From here on builds take the process's own time."""
        with self._lock:
            self._granted += self._running()
            self._grants = False

    def _running(self) -> float:
        return max(time.monotonic() - self._began, 0.0) if self._grants else 0.0

    def waits_for(self, maker: Maker) -> _Waits:
        """The part in which something is made for it."""
        return _Waits(self, maker)

    def begin(self, maker: Maker) -> None:
        with self._lock:
            if self.closed:
                raise Closed("its process has ended")
            self._maker, self._began = maker, time.monotonic()

    def end(self) -> None:
        with self._lock:
            self._granted += self._running()
            if not self._grants:
                self.workshop.late.append(time.monotonic() - self._began)
            self._maker, self._began = None, math.inf

    def close(self) -> None:
        """Ends it with its process: nothing is made for that any more when this returns."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            maker = self._maker
        if maker is not None:
            maker.stop()
        self._channel.shut()
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._channel.close()
        self.workshop.leave(self)

    def _serve(self) -> None:
        try:
            for _ in range(MAX_MESSAGES):
                msg, fds = self._channel.recv()
                for fd in fds:
                    os.close(fd)
                self._answer(Build.from_json(msg).request)
        except ProtocolError:
            pass  # the process is gone, or talks nonsense: it gets nothing more
        except Exception:
            pass  # the workshop knows: its trouble is the machine's
        finally:
            self._channel.shut()

    def _answer(self, raw: Any) -> None:
        fds: list[int] = []
        try:
            key, made = self.workshop.get(raw, self)
            if made.failed is not None:
                raise made.failed
            if key in self._given:
                raise Failed("crashed", "it was handed over before")
            self._given.add(key)
            assert made.artifact is not None
            fds.append(self.workshop.opened(made.artifact))
            answer = Built(True)
        except Failed as e:
            answer = Built(said=e.told())
        try:
            self._channel.send(answer.to_json(), fds)
        finally:
            for fd in fds:
                os.close(fd)


class _Waits:
    """While something is made for a desk."""

    def __init__(self, desk: Desk, maker: Maker) -> None:
        self._desk, self._maker = desk, maker

    def __enter__(self) -> None:
        self._desk.begin(self._maker)

    def __exit__(self, *_: object) -> None:
        self._desk.end()


def name_of(request: BuildRequest) -> str:
    """Returns the name that an object was asked for by."""
    return str(request.get("asked") or request["name"])


def sources_of(request: BuildRequest) -> list[str]:
    """Returns the texts of a request whose lines a compiler may name, in their order."""
    if "source" in request:
        return [request["source"]]
    return [*request["sources"], *request.get("cuda_sources", ())]

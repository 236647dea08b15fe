"""What a fork server is asked, and what it tells: forkserver.py says when.

A class here is one value of the key "type". Go knows them, too: protocol.schema.json has the keys.
Nobody compares or prints them: methods for that would take most of the time that an import takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from kwharness.base.records import NULL, Message, Natural
from kwharness.process.policy import Settings


@dataclass(eq=False, repr=False)
class Typed(Message):
    """A message that says which one it is."""

    kind: ClassVar[str]  # its "type"

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, **super().to_json()}


# What it is asked.


@dataclass(eq=False, repr=False)
class Asked(Typed):
    """A request. ``id`` is the asker's name for it, and for the worker that it is about."""

    id: Natural


@dataclass(eq=False, repr=False)
class Spawn(Asked):
    """Start a worker. The descriptors are its socket, and then its own."""

    kind = "spawn"
    role: str  # a key of worker_start.MODULES
    settings: Settings = field(default_factory=Settings)
    config: dict[str, Any] | None = None  # a referee's; None: Start comes over the worker's socket


class Kill(Asked):
    """Kill a worker with all its descendants. Exited follows."""

    kind = "kill"


class Rest(Asked):
    """Keep a referee for who comes next. The descriptor is its user's end of their conversation."""

    kind = "rest"


class ReadLog(Asked):
    """Tell what a worker has printed. The answer is Log."""

    kind = "log"


class Ping(Asked):
    """Tell how the server is. The answer is Pong."""

    kind = "ping"


# What it tells.


@dataclass(eq=False, repr=False)
class Ready(Typed):
    """It has imported what it needs: the first word to whoever has started or found it."""

    kind = "ready"
    versions: dict[str, str]  # of "python" and "torch"
    pid: Natural  # the server's


@dataclass(eq=False, repr=False)
class Spawned(Asked):
    """A worker is confined and runs."""

    kind = "spawned"
    pid: Natural
    mode: str  # of its sandbox: "strict" or "weak"; "trusted": a referee, which has none
    missing: list[str]  # what the machine could not give the sandbox


@dataclass(eq=False, repr=False)
class Failed(Asked):
    """There is no worker."""

    kind = "failed"
    message: str = ""  # a sentence on why


@dataclass(eq=False, repr=False)
class Log(Asked):
    """What is known of a worker's doings. What it printed is foreign text."""

    kind = "log"
    log: str = ""  # the beginning and the end of what it printed, 64 KiB together
    refused: dict[str, int] = field(default_factory=dict)  # times, by system call
    files: dict[str, int] = field(default_factory=dict)  # times, by path that is not its own


@dataclass(kw_only=True, eq=False, repr=False)
class Exited(Log):
    """A worker has ended, and was reaped."""

    kind = "exited"
    pid: Natural
    code: int | None = field(default=None, metadata=NULL)  # None: by a signal
    signal: int | None = field(default=None, metadata=NULL)
    reason: str = "exited"  # see fork_client.Exit


@dataclass(eq=False, repr=False)
class Pong(Asked):
    """How the server is."""

    kind = "pong"
    threads: Natural  # of its own: 1, or something is wrong
    workers: Natural  # that live


EVENTS: dict[str, type[Asked]] = {k.kind: k for k in (Spawned, Failed, Log, Exited, Pong)}


# What a referee is told that rests.


class Left(Typed):
    """Its user has gone."""

    kind = "left"


class Taken(Typed):
    """The descriptor is its conversation with its next user."""

    kind = "taken"


# Of a worker that starts.


@dataclass(eq=False, repr=False)
class Start(Typed):
    """To it, over its own socket: what it is started with, and its further descriptors."""

    kind = "start"
    config: dict[str, Any] = field(default_factory=dict)  # of configs.Config


@dataclass(eq=False, repr=False)
class Forked(Message):
    """From the process before it, to the server."""

    pid: Natural = 0  # the worker's, 0 where there is none
    contained: bool = False  # it is the first of its own pid namespace
    scratch: str = ""  # see policy.Departure
    error: str = ""  # why there is none


@dataclass(eq=False, repr=False)
class Confined(Message):
    """From it to the server, before it meets anything foreign."""

    missing: list[str]  # what the machine could not give the sandbox
    error: str | None = None  # why it is not confined, and has ended
